// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/cpu/capsule_moments.h"

#include "cc/cpu/capsule_moments_common.h"
#include "cc/cpu/capsule_moments_pixels.h"
#include "cc/cpu/capsule_moments_windows.h"

namespace capsops::capsule_moments::CAPSOPS_ISA {
namespace {

constexpr int64_t kTasks = 32;  // number of tasks to aim for
// The number of tasks is about a multiple of this, so that up to this many threads get
// equal shares.
constexpr int64_t kThreads = 16;
constexpr int64_t kWindows = 8;  // most windows per task; they read the same weights
constexpr int64_t kPartsBytes = 8 << 20;  // most bytes of several partial sums
constexpr int64_t kParts = 16;            // most partial sums; each is written and read

template <typename T>
Division Divide(const Problem& p) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  Division d;
  // If children have nothing to pack, there may be too many of them to iterate over.
  const int64_t pair = s.matrix + p.has_prior * s.parents;
  d.pairs = pair == 0 ? 0 : Children(p);
  d.packed = d.pairs * pair;
  const int64_t windows = Max(Min(NumWindows(p) / kTasks, kWindows), 1);
  const int64_t tasks = RoundUp(CeilDivide(NumWindows(p), windows), kThreads);
  d.windows = Max(CeilDivide(NumWindows(p), Max(tasks, 1)), 1);
  d.window_tasks = CeilDivide(NumWindows(p), d.windows);
  d.forward_scratch = WindowLayout<A>(p, d, s, false).size * sizeof(A);
  d.statistics_scratch = WindowLayout<A>(p, d, s, true).size * sizeof(A);
  d.normalize_tasks = CeilDivide(Pixels(p), kBlockPixels) * ChannelBlocks(p);
  d.normalize_scratch = PixelLayout<A>(p, s, true, 3 * kLanes<A>).size * sizeof(A);
  const int64_t fit = kPartsBytes / Max(d.packed * int64_t{sizeof(A)}, 1);
  const int64_t parts =
      Max(Min(Min(fit, kParts), CeilDivide(Pixels(p), kBlockPixels)), 1);
  d.pixels = Max(CeilDivide(Pixels(p), parts), 1);
  d.parts = Max(CeilDivide(Pixels(p), d.pixels), 1);
  d.children_tasks = d.parts * ChannelBlocks(p);
  d.children_scratch = ChildrenLayout<A>(p, s).size * sizeof(A);
  return d;
}

// Implements CpuKernels::pack.
template <typename T>
void Pack(const Problem& p, const Division& d, Range pairs, const T* weights,
          const Statistic<T>* prior, Statistic<T>* packed) {
  const Sizes<Statistic<T>> s(p);
  const int64_t matrix = p.pose_inner * p.pose_columns;
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t first = pair * p.out_channels;
    PackRows(p, s, weights + first * matrix, matrix, packed + pair * s.matrix);
    if (prior == nullptr) continue;
    PackRows(p, s, prior + first, 1, packed + d.pairs * s.matrix + pair * s.parents);
  }
}

// Implements CpuKernels::finish.
template <typename T>
void Finish(const Problem& p, const Division& d, Range pairs, Statistic<T>* parts,
            const Gradients<T>& to) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  const int64_t matrix = p.pose_inner * p.pose_columns;
  const auto add = [&](A* first, int64_t size) {
    for (int64_t part = 1; part < d.parts; ++part) {
      const A* const from = first + part * d.packed;
      for (int64_t n = 0; n < size; ++n) first[n] += from[n];
    }
    return first;
  };
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t first = pair * p.out_channels;
    UnpackRows(p, s, add(parts + pair * s.matrix, s.matrix), matrix,
               to.weights + first * matrix);
    if (to.prior == nullptr) continue;
    A* const prior = parts + d.pairs * s.matrix + pair * s.parents;
    UnpackRows(p, s, add(prior, s.parents), 1, to.prior + first);
  }
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {Divide<T>,         Pack<T>,         NormalizeTask<T>, WindowsTask<T>,
          StatisticsTask<T>, ChildrenTask<T>, Finish<T>};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::capsule_moments::CAPSOPS_ISA
