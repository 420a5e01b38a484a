// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over the children of all windows. A thread keeps the statistics and sums of
// one parent in registers. A block does a group of windows: it stages weights and poses
// of kChunk children at a time in shared memory, double-buffered, and all its threads
// use the same weights.
//
// The work is a list of units (group, chunk), which blocks split evenly. A group may
// therefore begin in one block and end in another; such blocks write partial sums to
// the workspace, and FinishKernel adds them in order.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/fma/tile.cuh"

namespace capsops::capsule_moments::fma {

enum class Kind {
  kFirst,       // mass and first
  kSecond,      // mass, first and second
  kScales,      // {max, scale} of the logits of each row [position, k]
  kDots,        // the sum of share dr of each row
  kStatistics,  // sums of dz, dz u, dz u^2; state and sum of share dq per row
};
constexpr bool kIsGradient(Kind kind) {
  return kind == Kind::kDots || kind == Kind::kStatistics;
}

constexpr int kChunk = 8;

// Work split: windows and children are divided into units (group, chunk).
struct Division {
  int lanes;    // threads per window
  int windows;  // windows per group
  int positions;
  int children;
  int outs;
  int groups, chunks, blocks;

  __host__ __device__ int64_t Units() const { return int64_t{groups} * chunks; }
  // First unit of a block, and the block that has a given unit.
  __host__ __device__ int64_t First(int64_t block) const {
    return block * Units() / blocks;
  }
  __host__ __device__ int BlockOf(int64_t unit) const {
    return static_cast<int>(((unit + 1) * blocks - 1) / Units());
  }
};

template <int Q>
struct Stage {
  float* weights;   // [kChunk][outs][kWeightStep]
  float* poses;     // [kChunk][windows][kPoseStep]
  RowState* state;  // [kChunk][windows]

  __device__ Stage(const Division& d, float* from)
      : weights(from),
        poses(weights + kChunk * d.outs * kWeightStep<Q>),
        state(reinterpret_cast<RowState*>(poses + kChunk * d.windows * kPoseStep<Q>)) {}
};
// Size of a stage in floats.
template <int Q>
__host__ __device__ int StageSize(const Division& d) {
  return kChunk * (d.outs * kWeightStep<Q> + d.windows * (kPoseStep<Q> + 4));
}

// Starts the asynchronous copies of one stage. A thread takes pose rows, in the order
// [child][window][row], of only the window whose `corner` it has.
template <int Q>
__device__ void FillStage(const Inputs& in, const Division& d, int group, int chunk,
                          const Corner<int>& corner, const Stage<Q>& stage) {
  const int k0 = chunk * kChunk, rows = min(kChunk, d.children - k0) * d.outs * Q;
  const int64_t first = int64_t{k0} * d.outs * Q;
  for (int row = threadIdx.x; row < rows; row += kThreads) {
    StageRow<kSide>(in.element, in.weights, first + row,
                    stage.weights + row / Q * kWeightStep<Q> + row % Q * kSide);
  }
  for (int i = threadIdx.x; i < kChunk * d.windows * kSide; i += kThreads) {
    const int e = i / kSide, row = i % kSide, k = k0 + e / d.windows;
    const int position = group * d.windows + e % d.windows;
    const bool any = k < d.children && position < d.positions;
    const int capsule = any ? corner.Child(in.p, k) : -1;
    if (row == 0) StageState(in, capsule, stage.state + e);
    StagePoseRow<Q>(in, capsule, row,
                    stage.poses + e * kPoseStep<Q> + row * kPoseRow<Q>);
  }
}
static_assert(kThreads / kSide % kLanes == 0, "a thread's items are of one window");

// Loads 16 numbers of a parent's tensor, zeros where it is absent.
__device__ inline void LoadParent(const float* tensor, int64_t parent,
                                  float (&to)[kSize]) {
  if (tensor != nullptr) {
    LoadWords(tensor + parent * kSize, to);
  } else {
#pragma unroll
    for (float& x : to) x = 0;
  }
}

// Runs the pass `kKind` over this block's units.
template <Kind kKind, bool kLinear, bool kPrecision, int Q>
__global__ void __launch_bounds__(kThreads, kIsGradient(kKind) || kLinear ? 1 : 2)
    PassKernel(Inputs in, Division d, Gradient grad, Results out) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);
  const int window = threadIdx.x / d.lanes, o = threadIdx.x % d.lanes;
  const bool parent_exists = o < d.outs;
  const int64_t begin = d.First(blockIdx.x), end = d.First(blockIdx.x + 1);
  for (int64_t unit = begin; unit < end;) {
    const int group = static_cast<int>(unit / d.chunks);
    const int chunk0 = static_cast<int>(unit % d.chunks);
    const int chunk1 = static_cast<int>(min(int64_t{d.chunks}, chunk0 + (end - unit)));
    const int position = group * d.windows + window;
    const bool mine = parent_exists && position < d.positions;
    const int64_t parent = mine ? int64_t{position} * d.outs + o : 0;
    // Without a parent there are no votes, so that any statistics will do.
    float center[kSize], linear[kSize], half[kSize], first_grad[kSize],
        second_grad[kSize];
    LoadParent(in.center, parent, center);
    float bias = At(in.bias, parent), mass_grad = 0;
    if constexpr (kLinear) {
      LoadParent(in.linear, parent, linear);
      // <linear, vote> = <linear, u> + <linear, center>
#pragma unroll
      for (int h = 0; h < kSize; ++h) bias += linear[h] * center[h];
    }
    if constexpr (kPrecision) {
      LoadParent(in.precision, parent, half);
#pragma unroll
      for (float& x : half) x *= -0.5f;
    }
    if constexpr (kIsGradient(kKind)) {
      mass_grad = grad.mass[parent];
      LoadParent(grad.first, parent, first_grad);
      LoadParent(grad.second, parent, second_grad);
    }
    float sum = 0, first[kSize] = {}, second[kSize] = {};
    const Corner<int> corner(in.p, group * d.windows + threadIdx.x / kSide % d.windows);
    FillStage<Q>(in, d, group, chunk0, corner, Stage<Q>(d, memory));
    __pipeline_commit();
    for (int chunk = chunk0; chunk < chunk1; ++chunk) {
      const int buffer = (chunk - chunk0) % 2;
      if (chunk + 1 < chunk1) {
        FillStage<Q>(in, d, group, chunk + 1, corner,
                     Stage<Q>(d, memory + (1 - buffer) * StageSize<Q>(d)));
      }
      __pipeline_commit();
      __pipeline_wait_prior(1);
      __syncthreads();
      const Stage<Q> stage(d, memory + buffer * StageSize<Q>(d));
      const int k0 = chunk * kChunk, count = min(kChunk, d.children - k0);
      for (int j = 0; j < count; ++j) {
        RowState state = stage.state[j * d.windows + window];
        float weights[Q * kSide], u[kSize];
        LoadWords(stage.weights + (j * d.outs + min(o, d.outs - 1)) * kWeightStep<Q>,
                  weights);
#pragma unroll
        for (int h = 0; h < kSize; ++h) u[h] = -center[h];
        AddVote<Q>(stage.poses + (j * d.windows + window) * kPoseStep<Q>, weights, u);
        float logits[kSide] = {bias, 0, 0, 0}, dqs[kSide] = {mass_grad, 0, 0, 0};
        if (in.prior != nullptr && parent_exists) {
          logits[0] += in.prior[int64_t{k0 + j} * d.outs + o];
        }
#pragma unroll
        for (int h = 0; h < kSize; ++h) {
          if constexpr (kLinear && kPrecision) {
            logits[h % kSide] += u[h] * (linear[h] + half[h] * u[h]);
          } else if constexpr (kPrecision) {
            logits[h % kSide] += half[h] * (u[h] * u[h]);
          }
          if constexpr (kIsGradient(kKind)) {
            dqs[h % kSide] += u[h] * (first_grad[h] + second_grad[h] * u[h]);
          }
        }
        const float z = (logits[0] + logits[1]) + (logits[2] + logits[3]);
        const float dq = (dqs[0] + dqs[1]) + (dqs[2] + dqs[3]);
        const bool child_exists = state.scale != 0;
        const float share = ShareOf(in.rule, d.lanes, z, parent_exists, &state);
        float factor = state.activation * share;  // multiplies u in `first`
        const int64_t row = int64_t{position} * d.children + k0 + j;
        const bool writes = o == 0 && position < d.positions;
        if constexpr (kKind == Kind::kScales) {
          if (writes) out.scales[row] = {state.maximum, child_exists ? state.scale : 0};
        } else if constexpr (kIsGradient(kKind)) {
          const float mean =
              SumOverGroup(child_exists && parent_exists ? share * dq : 0, d.lanes);
          if constexpr (kKind == Kind::kDots) {
            if (writes) out.dots[row] = state.activation * mean;
          } else {
            if (in.rule == Rule::kLogit) {
              factor = state.activation * dq;
            } else {
              if (in.dots == nullptr) state.dot = state.activation * mean;
              factor = share * (state.activation * dq - state.dot);
            }
            if (writes) {
              out.state[row] = state;
              if (out.activations != nullptr) out.activations[row] = mean;
            }
          }
        }
        if constexpr (kKind == Kind::kScales || kKind == Kind::kDots) continue;
        // A vote of a missing child may be infinite.
        if (!child_exists) continue;
        sum += factor;
#pragma unroll
        for (int h = 0; h < kSize; ++h) {
          first[h] += factor * u[h];
          if constexpr (kKind != Kind::kFirst) second[h] += factor * (u[h] * u[h]);
        }
      }
      __syncthreads();
    }
    unit += chunk1 - chunk0;
    if constexpr (kKind == Kind::kScales || kKind == Kind::kDots) continue;
    if (chunk0 == 0 && chunk1 == d.chunks) {
      if (!mine) continue;
#pragma unroll
      for (int h = 0; h < kSize; h += 4) {
        using Four = const float (&)[4];
        Finish(in, grad, out, kIsGradient(kKind), parent, h, sum,
               reinterpret_cast<Four>(first[h]), reinterpret_cast<Four>(second[h]));
      }
    } else {
      const int64_t slot =
          int64_t{2} * blockIdx.x + (begin / d.chunks == group ? 0 : 1);
      float* const partial = out.partial + slot * kSums * kThreads + threadIdx.x;
      partial[0] = sum;
#pragma unroll
      for (int h = 0; h < kSize; ++h) {
        partial[(1 + h) * kThreads] = first[h];
        if (kKind != Kind::kFirst) partial[(1 + kSize + h) * kThreads] = second[h];
      }
    }
  }
}

// Adds the partial sums of each group that several blocks share. Block (x, y) does four
// numbers, from 4 y on, of the votes of group x's parents.
__global__ void __launch_bounds__(kThreads)
    FinishKernel(Inputs in, Division d, Gradient grad, Results out) {
  const int group = blockIdx.x, h = blockIdx.y * 4;
  const int block0 = d.BlockOf(int64_t{group} * d.chunks);
  const int block1 = d.BlockOf(int64_t{group + 1} * d.chunks - 1);
  const int position = group * d.windows + threadIdx.x / d.lanes;
  const int o = threadIdx.x % d.lanes;
  if (block0 == block1 || position >= d.positions || o >= d.outs) return;
  const bool has_second = out.gradients || in.p.order == 2;
  float sum = 0, first[4] = {}, second[4] = {};
  for (int block = block0; block <= block1; ++block) {
    const int64_t slot =
        int64_t{2} * block + (d.First(block) / d.chunks == group ? 0 : 1);
    const float* const partial = out.partial + slot * kSums * kThreads + threadIdx.x;
    sum += partial[0];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      first[e] += partial[(1 + h + e) * kThreads];
      if (has_second) second[e] += partial[(1 + kSize + h + e) * kThreads];
    }
  }
  Finish(in, grad, out, out.gradients, int64_t{position} * d.outs + o, h, sum, first,
         second);
}

}  // namespace capsops::capsule_moments::fma
