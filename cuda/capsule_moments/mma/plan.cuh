// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Host code that forward.cu.cc and backward.cu.cc share: which problems these kernels
// support, how a pass is divided into blocks, the layout of the workspace, and the
// launch of a pass. A row is a pair [position, k] of a window and one of its children.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/mma/inputs.cuh"
#include "cuda/capsule_moments/mma/pass.cuh"
#include "cuda/capsule_moments/samples.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments::mma {

// Launchers of reduce.cu.cc, where S is float, __half or __nv_bfloat16.

// Adds the partial sums of groups that several blocks share, and writes the results.
LaunchError FinishPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Division& d, const Gradient& grad, const Results& out);

// Merges {max, scale} of each capsule's rows and, unless `row_dots` is null, the rows'
// sums of share dr, in which each row has used the shares of its own softmax.
LaunchError MergeRows(const GpuExec& exec, const char* name, const Problem& p,
                      const float2* row_scales, const float* row_dots, float2* scales,
                      float* dots);

// Adds up the gradients of each capsule's pose and activation over its rows.
// `grad_activations` may be null.
template <typename S>
LaunchError SumRows(const GpuExec& exec, const char* name, const Problem& p,
                    const float* poses, const float* activations, S* grad_poses,
                    S* grad_activations);

// Writes the sums of the blocks' WeightSums.
template <typename S>
LaunchError SumWeights(const GpuExec& exec, const char* name, const Problem& p,
                       const Division& d, const float* sums, S* grad_weights,
                       float* grad_prior);

// Returns PassKernel's shared memory in bytes.
template <bool kGradient>
int PassBytes(const Problem& p, const Division& d) {
  const int floats = p.pose_inner == 5 ? SharedSize<kGradient, 5>(d, p.has_prior)
                                       : SharedSize<kGradient, 4>(d, p.has_prior);
  return floats * static_cast<int>(sizeof(float));
}

// Returns the size of a block's WeightSums in bytes.
inline int SumsBytes(const Problem& p, const Division& d) {
  const int floats = p.pose_inner == 5 ? WeightSums<5>(d, p.has_prior).Size()
                                       : WeightSums<4>(d, p.has_prior).Size();
  return floats * static_cast<int>(sizeof(float));
}

// Divides the children of a backward pass into ranges, and sets the blocks per range.
// If shared memory has room for the weight gradients of a chunk, it must have room for
// those of a range. Takes the split with the least time, counted in chunks.
inline void DivideChildren(const Problem& p, const GpuDevice& device, Division* d) {
  const int chunks = static_cast<int>(CeilDivide(d->children, kChunk));
  d->chunks = 1, d->sums_in_shared = false;
  const int each = SumsBytes(p, *d);
  const int room = (device.shared - PassBytes<true>(p, *d)) / each;
  d->sums_in_shared = room > 0;
  // The workspace keeps the weight gradients of all blocks between slices, or always if
  // not even a chunk fits in shared memory. More than half is left to rows.
  constexpr int64_t kMostSums = 14 << 20;
  const int most =
      std::clamp(room > 0 ? room : static_cast<int>(kMostSums / each), 1, chunks);
  int64_t least = std::numeric_limits<int64_t>::max();
  Division best = *d;
  for (d->chunks = most; d->chunks > 0; --d->chunks) {
    d->ranges = static_cast<int>(CeilDivide(chunks, d->chunks));
    const int64_t fit = kMostSums / (int64_t{d->ranges} * SumsBytes(p, *d));
    d->blocks = static_cast<int>(
        std::clamp<int64_t>(device.processors / d->ranges, 1,
                            std::min<int64_t>(d->Units(), std::max<int64_t>(fit, 1))));
    const int64_t units = CeilDivide(d->Units(), d->blocks);
    // Loading a group's statistics and storing its sums takes about as long as a chunk.
    const int64_t time = (units + CeilDivide(units, d->chunks)) *
                         CeilDivide(d->ranges * d->blocks, device.processors);
    if (time < least) least = time, best = *d;
  }
  *d = best;
}

// Whether shares are normalized over several windows, so that Merge() comes first.
inline bool MergesRows(const Problem& p) { return p.normalize == kAll && HasLogits(p); }

// Sets the number of windows. With fewer than before, some blocks may have none.
inline void SetWindows(const Problem& p, Division* d) {
  d->positions = static_cast<int>(NumWindows(p));
  d->groups = static_cast<int>(CeilDivide(d->positions, d->windows()));
}

// Returns the work split of a pass, or of the pass before it for Merge().
template <bool kGradient>
Division Divide(const Problem& p, const GpuExec& exec, bool merges = false) {
  Division d;
  d.chunks = 0, d.ranges = 1, d.sums_in_shared = false, d.ordered = false;
  d.direct = !merges && (p.normalize != kParents || !HasLogits(p));
  d.image = Image(p);
  d.outs = static_cast<int>(p.out_channels);
  // If shared memory is small, pads the parents more, so that a group has fewer
  // windows.
  for (d.lanes_log2 = 3;
       d.lanes() < d.outs ||
       (d.lanes() < kLanes && PassBytes<kGradient>(p, d) > exec.device.shared);) {
    ++d.lanes_log2;
  }
  d.children = static_cast<int>(Children(p));
  SetWindows(p, &d);
  if (kGradient && !merges) {
    DivideChildren(p, exec.device, &d);
    return d;
  }
  d.chunks = static_cast<int>(CeilDivide(d.children, kChunk));
  const int blocks_per_sm = kGradient || p.has_linear || p.has_prior ? 1 : 2;
  d.blocks = std::min(d.Units(), blocks_per_sm * exec.device.processors);
  return d;
}

constexpr char kTooLittleShared[] = "a block has too little shared memory";

// Returns why the passes cannot handle a problem, as the end of a refusal's sentence,
// or "".
template <typename T, bool kGradient>
std::string Refusal(const Problem& p, const GpuExec& exec) {
  if (std::is_same_v<T, double>) return "T is double";
  if (p.pose_rows != kSide || p.pose_columns != kSide ||
      (p.pose_inner != 4 && p.pose_inner != 5)) {
    return "poses are not 4x4 or 4x5 and weights not of 4 columns";
  }
  if (p.out_channels < 1 || p.out_channels > kLanes) {
    return "out_channels is not from 1 to 32";
  }
  if (NumWindows(p) == 0 || Capsules(p) == 0 || Children(p) == 0) {
    return "there are no votes";
  }
  constexpr int64_t kMax = int64_t{1} << 28;
  for (const int64_t number :
       {NumWindows(p), Capsules(p), Children(p) * p.out_channels * p.pose_inner,
        p.out_height * p.stride_height + p.pad_top,
        p.out_width * p.stride_width + p.pad_left, p.in_height + p.pad_top,
        p.in_width + p.pad_left, p.kernel_height * p.dilation_height,
        p.kernel_width * p.dilation_width, NumWindows(p) * Children(p) / kLanes}) {
    if (number > kMax) return "a dimension is too large for 32-bit indices";
  }
  const Division d = Divide<kGradient>(p, exec);
  if (d.ranges > 65535) return "a window has too many children";
  int bytes = PassBytes<kGradient>(p, d);
  if (MergesRows(p)) {
    bytes = std::max(bytes, PassBytes<kGradient>(p, Divide<kGradient>(p, exec, true)));
  }
  return bytes > exec.device.shared ? kTooLittleShared : "";
}

// Offsets of a plan's buffers in bytes. They hold one slice of the batch at a time.
struct Workspace {
  int64_t samples;    // samples per slice
  Division division;  // work split of a slice's passes
  int64_t row_scales, row_dots, scales, dots, partial, added;
  int64_t activations, poses, weights;
  int64_t size = 0;

  // Allocates a buffer, and returns its offset.
  int64_t Take(int64_t bytes) {
    const int64_t at = size;
    size += RoundUp(bytes, 64);
    return at;
  }
  template <typename To>
  static To* In(void* workspace, int64_t at) {
    return reinterpret_cast<To*>(static_cast<char*>(workspace) + at);
  }
};

// Limit of the workspace in bytes, unless one sample needs most of it (see LayOut).
// TensorFlow may allocate the next power of two.
constexpr int64_t kMostBytes = int64_t{1} << 25;

// Whether a pass sums over the children of a window. Without logits, only `center` has
// a gradient among a parent's statistics, which needs no sums.
template <bool kGradient>
bool SumsOverChildren(const Problem& p) {
  return !kGradient || HasLogits(p) || p.normalize == kNone;
}

// Size in bytes of the flags of ordered ranges.
inline int64_t FlagBytes(const Division& d) {
  return d.ordered ? int64_t{d.Slots()} * kWarps * sizeof(int) : 0;
}

// Lays out the workspace for slices of `samples` samples.
template <bool kGradient>
Workspace LayOutSlice(const Problem& p, const GpuExec& exec, int64_t samples,
                      bool ordered) {
  Problem slice = p;
  slice.batch = samples;
  Workspace w;
  w.samples = samples;
  w.division = Divide<kGradient>(slice, exec);
  w.division.ordered = ordered;
  const int64_t pose = kSide * p.pose_inner * sizeof(float);
  const int64_t slot =
      SumsOverChildren<kGradient>(p) ? kSums * kThreads * sizeof(float) : 0;
  const int64_t rows = NumWindows(slice) * Children(p), capsules = Capsules(slice);
  const bool merges = MergesRows(p);
  const int64_t merged = merges ? rows : 0, seen = merges ? capsules : 0;
  const int64_t mine = kGradient ? rows : 0;
  w.row_scales = w.Take(merged * sizeof(float2));
  w.row_dots = w.Take(kGradient ? merged * sizeof(float) : 0);
  w.scales = w.Take(seen * sizeof(float2));
  w.dots = w.Take(kGradient ? seen * sizeof(float) : 0);
  w.partial = w.Take(w.division.Slots() * slot);
  w.added = w.Take(FlagBytes(w.division));
  w.activations = w.Take(mine * sizeof(float));
  w.poses = w.Take(mine * pose);
  const int64_t blocks = w.division.ranges * w.division.blocks;
  w.weights = w.Take(kGradient ? blocks * SumsBytes(p, w.division) : 0);
  return w;
}

// Lays out the workspace for the slices and sums that take the least time. Ordered
// ranges need less of it, so that there are fewer slices, but each waits for the one
// before. That costs about a tenth of what a slice costs besides its passes.
template <bool kGradient>
Workspace LayOut(const Problem& p, const GpuExec& exec) {
  // Doubles the limit until a quarter of kMostBytes is left beyond what one sample
  // needs, so that a slice has several.
  const int64_t least = LayOutSlice<kGradient>(p, exec, 1, true).size;
  int64_t limit = kMostBytes;
  while (limit < least + kMostBytes / 4) limit *= 2;
  Workspace best{};
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (const bool ordered : {false, true}) {
    int64_t slices = 1;
    Workspace w = LayOutSlice<kGradient>(p, exec, p.batch, ordered);
    while (w.size > limit && w.samples > 1) {
      slices = std::max(slices + 1, slices * w.size / limit);
      const int64_t samples = CeilDivide(p.batch, slices);
      w = LayOutSlice<kGradient>(p, exec, samples, ordered);
    }
    const int64_t time = slices * (10 + (ordered ? w.division.ranges : 1));
    if (time < fastest) fastest = time, best = w;
  }
  return best;
}

// Calls run(second, logit, Q) with the kernels' compile-time parameters.
template <typename Run>
LaunchError WithVariant(const Problem& p, bool second, const Run& run) {
  const int logit = p.has_linear || p.has_prior            ? 2
                    : HasLogits(p) || p.normalize == kNone ? 1
                                                           : 0;
  return WithConstant<0, 1, 2>(logit, [&](auto logit) {
    return WithConstant<4, 5>(p.pose_inner, [&](auto q) {
      return second ? run(std::true_type(), logit, q)
                    : run(std::false_type(), logit, q);
    });
  });
}

// Launches one pass, and FinishKernel if blocks share groups. tile.cuh explains kSplit.
template <bool kGradient, bool kSplit>
LaunchError LaunchPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Division& d, const Gradient& grad, const Results& out) {
  const Problem& p = in.p;
  const auto run = [&](auto second, auto logit, auto q) -> LaunchError {
    const auto launch = [&](auto direct) {
      constexpr auto kKernel = PassKernel<kGradient, second, logit, q, kSplit, direct>;
      return LaunchDependent<kKernel>(name, dim3(d.blocks, d.ranges), kThreads,
                                      PassBytes<kGradient>(p, d), exec, in, d, grad,
                                      out);
    };
    if constexpr (logit > 0) {
      if (!d.direct) return launch(std::false_type{});
    }
    return launch(std::true_type{});
  };
  const bool sums = out.scales == nullptr;
  const LaunchError error = WithVariant(p, p.order == 2 && (kGradient || sums), run);
  // FinishKernel has no work if no group is split between blocks.
  const bool whole = d.Sets() == 1 && d.Units() % (int64_t{d.blocks} * d.chunks) == 0;
  if (!error.empty() || !sums || whole || !SumsOverChildren<kGradient>(p)) return error;
  return FinishPass(exec, name, in, d, grad, out);
}

// If the shares are normalized over several windows, computes {max, scale} of each
// capsule, and if kGradient also the sums of share dr, and sets their pointers in `in`.
template <bool kGradient, bool kSplit>
LaunchError Merge(const GpuExec& exec, const char* name, Inputs* in,
                  const Gradient& grad, const Workspace& at, void* workspace) {
  if (!MergesRows(in->p)) return {};
  float2* const scales = Workspace::In<float2>(workspace, at.scales);
  float* const dots = Workspace::In<float>(workspace, at.dots);
  in->rule = Rule::kSoftmax;
  Results out{};
  out.gradients = kGradient;
  out.scales = Workspace::In<float2>(workspace, at.row_scales);
  if (kGradient) out.dots = Workspace::In<float>(workspace, at.row_dots);
  CAPSOPS_RETURN_IF_ERROR(LaunchPass<kGradient, kSplit>(
      exec, name, *in, Divide<kGradient>(in->p, exec, true), grad, out));
  CAPSOPS_RETURN_IF_ERROR(
      MergeRows(exec, name, in->p, out.scales, out.dots, scales, dots));
  in->rule = Rule::kGiven;
  in->scales = scales;
  if (kGradient) in->dots = dots;
  return {};
}

// Calls plan(split) with std::true_type if float32 must not be rounded to TF32.
template <typename T, typename Plan>
auto WithSplit(const GpuExec& exec, const Plan& plan) {
  if constexpr (std::is_same_v<T, float>) {
    if (!exec.tf32) return plan(std::true_type());
  }
  return plan(std::false_type());
}

}  // namespace capsops::capsule_moments::mma
