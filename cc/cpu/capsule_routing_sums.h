// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Sums over input capsules, sum_i c u_hat and sum_i db u_hat, and their coefficients. A
// task has a chunk of input capsules and some groups of samples, which are in lanes. It
// processes a block of input capsules at a time, so that their weights stay in the
// cache for all groups.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

constexpr int64_t kBlockCaps = 16;          // most input capsules per block
constexpr int64_t kBlockBytes = 128 << 10;  // bytes of a block's weights

// The scratch layout: the offset of each array in elements.
template <typename T>
struct SumLayout {
  using A = Accumulator<T>;
  int64_t caps, x, u, block, b, size;  // the copy of weights has offset 0

  explicit SumLayout(const Problem& p) : caps(Block<A>(p, kBlockBytes, kBlockCaps)) {
    x = WeightsCopy<T>(p, caps);
    u = x + caps * p.in_dim * kLanes<A>;
    block = u + GroupSize<A>(p);
    b = block + GroupSize<A>(p);
    size = b + Max(caps, 2) * p.out_caps * kLanes<A>;
  }
};

// The input capsules and groups of one of the sum_tasks.
struct SumTask {
  int64_t chunk, caps_begin, caps_end, group_begin, group_end;

  SumTask(const Problem& p, const Division& d, int64_t task) {
    const int64_t ranges = CeilDivide(d.groups, d.range_groups);
    chunk = task / ranges;
    caps_begin = d.caps_begin(task);
    caps_end = Min(caps_begin + d.chunk_caps, p.in_caps);
    group_begin = task % ranges * d.range_groups;
    group_end = Min(group_begin + d.range_groups, d.groups);
  }
};

// Computes c or, with sum_grads, db of an input capsule and stores it to b. Stores
// u_hat to u unless that is null.
template <typename T, typename A, typename Depth>
void ComputeCoefficients(Depth in_dim, const Problem& p, const A* weights, const A* x,
                         const T* logits, const A* totals, const A* sum_grads, A* u,
                         A* b) {
  const int64_t row = p.out_caps * kLanes<A>;
  const int64_t count = sum_grads == nullptr ? 1 : 2;
  for (int64_t j = 0; j < p.out_caps; ++j) {
    const int64_t tile = j * p.out_dim * kLanes<A>;
    Dots<A>(p.out_dim, in_dim, weights + j * p.out_dim * p.in_dim, x,
            {totals + tile, count, count == 1 ? 0 : sum_grads - totals}, row,
            b + j * kLanes<A>, u == nullptr ? nullptr : u + tile);
  }
  Softmax(p.out_caps, logits, b);
  if (sum_grads != nullptr) {
    SoftmaxGrad<A>(p.out_caps, b, b + row, nullptr);
  }
}

// Adds c u_hat of `caps` input capsules to `sum`, with c from FirstCoefficients.
template <typename A, typename Depth>
void AddFirstIteration(Depth in_dim, const Problem& p, int64_t caps, const A* weights,
                       const A* x, const A* c, A* sum) {
  for (int64_t j = 0; j < p.out_caps; ++j) {
    AddPredictions(p.out_dim, in_dim, caps, weights + j * p.out_dim * p.in_dim,
                   Matrix(p), x, c + j * kLanes<A>, p.out_caps * kLanes<A>,
                   sum + j * p.out_dim * kLanes<A>);
  }
}

// Adds b u of all output capsules to `sum`, or stores it there if `first` is true.
template <typename A>
void AddWeighted(const Problem& p, bool first, const A* b, const A* u, A* sum) {
  for (int64_t j = 0; j < p.out_caps; ++j) {
    const int64_t tile = j * p.out_dim * kLanes<A>;
    Add<A>(p.out_dim, first, Load(b + j * kLanes<A>), u + tile, sum + tile);
  }
}

// Computes the partial sum of a task. Each block of input capsules is summed separately
// before it is added, because adding thousands of terms one after the other loses
// digits.
template <typename T, typename Depth>
void AddTask(Depth in_dim, const Problem& p, const Division& d, int64_t task,
             const T* input, const T* weights, const T* logits,
             const Accumulator<T>* totals, const Accumulator<T>* sum_grads,
             Accumulator<T>*, Accumulator<T>* parts, void* scratch) {
  using A = Accumulator<T>;
  const SumTask t(p, d, task);
  const SumLayout<T> at(p);
  A* const numbers = static_cast<A*>(scratch);
  A* const x = numbers + at.x;
  A* const u = numbers + at.u;
  A* const block = numbers + at.block;
  A* const b = numbers + at.b;
  const int64_t matrix = Matrix(p), group = GroupSize<A>(p);
  A* const part = parts + t.chunk * d.tile;
  std::memset(part + t.group_begin * group, 0,
              (t.group_end - t.group_begin) * group * sizeof(A));
  for (int64_t i0 = t.caps_begin; i0 < t.caps_end; i0 += at.caps) {
    const int64_t caps = Min(at.caps, t.caps_end - i0);
    const A* const w =
        Widened(weights + (i0 - t.caps_begin) * matrix, caps * matrix, numbers);
    for (int64_t i = 0; i < caps && totals == nullptr; ++i) {
      FirstCoefficients(p, logits + (i0 + i) * p.out_caps,
                        b + i * p.out_caps * kLanes<A>);
    }
    for (int64_t g = t.group_begin; g < t.group_end; ++g) {
      LoadSamples(p, input, g, i0, caps, x);
      if (totals == nullptr) {
        AddFirstIteration<A>(in_dim, p, caps, w, x, b, part + g * group);
        continue;
      }
      for (int64_t i = 0; i < caps; ++i) {
        ComputeCoefficients<T, A>(
            in_dim, p, w + i * matrix, x + i * p.in_dim * kLanes<A>,
            logits + (i0 + i) * p.out_caps, totals + g * group,
            sum_grads == nullptr ? nullptr : sum_grads + g * group, u, b);
        AddWeighted(p, i == 0, b, u, block);
      }
      for (int64_t n = 0; n < group; n += kLanes<A>) {
        A* const to = part + g * group + n;
        Store(to, Load(to) + Load(block + n));
      }
    }
  }
}

// Computes c of the input capsules and groups of one task.
template <typename T, typename Depth>
void CoefficientsTask(Depth in_dim, const Problem& p, const Division& d, int64_t task,
                      const T* input, const T* weights, const T* logits,
                      const Accumulator<T>* totals, T* coefficients, void* scratch) {
  using A = Accumulator<T>;
  const SumTask t(p, d, task);
  const SumLayout<T> at(p);
  A* const numbers = static_cast<A*>(scratch);
  A* const x = numbers + at.x;
  A* const b = numbers + at.b;
  const int64_t matrix = Matrix(p);
  for (int64_t i0 = t.caps_begin; i0 < t.caps_end; i0 += at.caps) {
    const int64_t caps = Min(at.caps, t.caps_end - i0);
    const A* const w =
        Widened(weights + (i0 - t.caps_begin) * matrix, caps * matrix, numbers);
    for (int64_t g = t.group_begin; g < t.group_end; ++g) {
      LoadSamples(p, input, g, i0, caps, x);
      for (int64_t i = 0; i < caps; ++i) {
        const T* const row = logits + (i0 + i) * p.out_caps;
        if (totals == nullptr) {
          FirstCoefficients(p, row, b);
        } else {
          ComputeCoefficients<T, A>(in_dim, p, w + i * matrix,
                                    x + i * p.in_dim * kLanes<A>, row,
                                    totals + g * GroupSize<A>(p), nullptr, nullptr, b);
        }
        FromLanes(b, p.out_caps, GroupSamples<A>(p, g), p.in_caps * p.out_caps,
                  coefficients + (g * kLanes<A> * p.in_caps + i0 + i) * p.out_caps);
      }
    }
  }
}

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
