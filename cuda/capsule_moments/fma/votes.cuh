// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Gradients of poses and weights. A thread has one child k and one parent type, keeps
// their weights and weight gradient in registers, and loops over windows, whose
// statistics are shared by all children of its block. PassKernel has written the
// state of each row [position, k], so that the softmax needs no reduction here.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/fma/pass.cuh"

namespace capsops::capsule_moments::fma {

constexpr int kPerStep = 4;  // windows per stage

// Stride in floats between parents in shared memory, an odd number of 16-byte words:
// center, precision, first and second gradient, linear, {bias, mass gradient}.
template <bool kLinear>
constexpr int kParentStep = (kLinear ? 5 : 4) * kSize + 4;

template <bool kLinear, int Q>
struct WindowStage {
  float* parents;   // [kPerStep][outs][kParentStep]
  float* poses;     // [kPerStep][slots][kPoseStep]
  RowState* state;  // [kPerStep][slots]

  __device__ WindowStage(const Division& d, float* from)
      : parents(from),
        poses(parents + kPerStep * d.outs * kParentStep<kLinear>),
        state(
            reinterpret_cast<RowState*>(poses + kPerStep * d.windows * kPoseStep<Q>)) {}
};
template <bool kLinear, int Q>
__host__ __device__ int WindowStageSize(const Division& d) {
  return kPerStep * (d.outs * kParentStep<kLinear> + d.windows * (kPoseStep<Q> + 4));
}

// Starts the copies of kPerStep windows. Here d.windows counts the block's children.
template <bool kLinear, int Q>
__device__ void FillWindows(const Inputs& in, const Division& d, const Gradient& grad,
                            const RowState* state, int first, int end,
                            const WindowStage<kLinear, Q>& stage) {
  const float* const tensors[] = {in.center, in.precision, grad.first, grad.second,
                                  in.linear};
  const int words = d.outs * kSize / 4;
  for (int i = 0; i < kPerStep && first + i < end; ++i) {
    const int64_t from = int64_t{first + i} * d.outs;
    float* const to = stage.parents + i * d.outs * kParentStep<kLinear>;
#pragma unroll
    for (int t = 0; t < (kLinear ? 5 : 4); ++t) {
      for (int w = threadIdx.x; w < words; w += kThreads) {
        float* const at = to + w / 4 * kParentStep<kLinear> + t * kSize + w % 4 * 4;
        if (tensors[t] != nullptr) {
          __pipeline_memcpy_async(at, tensors[t] + from * kSize + w * 4, 16);
        } else {
          *reinterpret_cast<float4*>(at) = {0, 0, 0, 0};
        }
      }
    }
    for (int o = threadIdx.x; o < d.outs; o += kThreads) {
      float* const at = to + (o + 1) * kParentStep<kLinear> - 4;
      if (in.bias != nullptr) {
        __pipeline_memcpy_async(at, in.bias + from + o, sizeof(float));
      } else {
        at[0] = 0;
      }
      __pipeline_memcpy_async(at + 1, grad.mass + from + o, sizeof(float));
    }
  }
  for (int i = threadIdx.x; i < kPerStep * d.windows * kSide; i += kThreads) {
    const int e = i / kSide, row = i % kSide, position = first + e / d.windows;
    const int k = blockIdx.x * d.windows + e % d.windows;
    const bool any = k < d.children && position < end;
    const int capsule = any ? ChildOf<int>(in.p, position, k) : -1;
    if (row == 0 && any) {
      __pipeline_memcpy_async(stage.state + e,
                              state + int64_t{position} * d.children + k, 16);
    } else if (row == 0) {
      stage.state[e] = {0, 0, 0, 0};
    }
    StagePoseRow<Q>(in, capsule, row,
                    stage.poses + e * kPoseStep<Q> + row * kPoseRow<Q>);
  }
}

// Adds `row` over the kGroup lanes of a child, and writes the N sums.
template <int kGroup, int N>
__device__ void SumAndWrite(const float (&row)[N], bool writes, float* to) {
  constexpr int kPiece = kGroup < 16 ? kGroup : 16;
  const int lane = threadIdx.x % kGroup;
#pragma unroll
  for (int i = 0; i < N; i += kPiece) {
    constexpr int kLast = N % kPiece == 0 ? kPiece : N % kPiece;
    if (i + kPiece <= N) {
      float piece[kPiece];
#pragma unroll
      for (int e = 0; e < kPiece; ++e) piece[e] = row[i + e];
      const float sum = SumOverLanes<kGroup / 2>(piece);
      constexpr int kEach = kGroup / kPiece;
      if (writes && lane % kEach == 0) to[i + lane / kEach] = sum;
    } else {
      float piece[kLast];
#pragma unroll
      for (int e = 0; e < kLast; ++e) piece[e] = row[N - kLast + e];
      const float sum = SumOverLanes<kGroup / 2>(piece);
      constexpr int kEach = kGroup / kLast;
      if (writes && lane % kEach == 0) to[i + lane / kEach] = sum;
    }
  }
}

// Computes the gradients of poses, weights and prior: block (x, y) does the children of
// x and the windows of part y.
template <bool kLinear, int Q>
__global__ void __launch_bounds__(kThreads, 2)
    VoteKernel(Inputs in, Division d, Gradient grad, VoteSums out) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);
  const int slot = threadIdx.x / d.lanes, o = threadIdx.x % d.lanes;
  const int k = blockIdx.x * d.windows + slot;
  const bool mine = k < d.children && o < d.outs;
  const int64_t matrix = mine ? int64_t{k} * d.outs + o : 0;
  const int parent = min(o, d.outs - 1);
  const int64_t begin = int64_t{blockIdx.y} * d.positions / gridDim.y;
  const int64_t end = int64_t{blockIdx.y + 1} * d.positions / gridDim.y;
  const int64_t part = int64_t{blockIdx.y} * d.children * d.outs + matrix;
  float weights[Q * kSide], sums[Q * kSide] = {}, prior_sum = 0;
  WithElements(in.element, [&](auto zero) {
    const auto* const from = static_cast<const decltype(zero)*>(in.weights);
#pragma unroll
    for (int e = 0; e < Q * kSide; ++e) {
      weights[e] = mine ? Widen(from[matrix * Q * kSide + e]) : 0;
    }
  });
  if (!out.overwrite && mine) {
    LoadWords(out.weights + part * Q * kSide, sums);
    if (in.prior != nullptr) prior_sum = out.prior[part];
  }
  const float prior = mine ? At(in.prior, matrix) : 0;
  const int stage_size = WindowStageSize<kLinear, Q>(d);
  FillWindows<kLinear, Q>(in, d, grad, out.state, begin, end,
                          WindowStage<kLinear, Q>(d, memory));
  __pipeline_commit();
  int buffer = 0;
  for (int first = begin; first < end; first += kPerStep, buffer = 1 - buffer) {
    if (first + kPerStep < end) {
      FillWindows<kLinear, Q>(
          in, d, grad, out.state, first + kPerStep, end,
          WindowStage<kLinear, Q>(d, memory + (1 - buffer) * stage_size));
    }
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const WindowStage<kLinear, Q> stage(d, memory + buffer * stage_size);
    for (int i = 0; i < kPerStep && first + i < end; ++i) {
      const RowState state = stage.state[i * d.windows + slot];
      const float* const pose = stage.poses + (i * d.windows + slot) * kPoseStep<Q>;
      const float* const statistics =
          stage.parents + (i * d.outs + parent) * kParentStep<kLinear>;
      float u[kSize], precision[kSize], linear[kSize] = {};
      float first_grad[kSize], second_grad[kSize];
      LoadWords(statistics, u);
      float ones[4];
      LoadWords(statistics + kParentStep<kLinear> - 4, ones);
      float z = ones[0] + prior, dq = ones[1];
      if constexpr (kLinear) {
        LoadWords(statistics + 4 * kSize, linear);
#pragma unroll
        for (int h = 0; h < kSize; ++h) z += linear[h] * u[h];
      }
#pragma unroll
      for (float& x : u) x = -x;
      AddVote<Q>(pose, weights, u);
      LoadWords(statistics + kSize, precision);
      LoadWords(statistics + 2 * kSize, first_grad);
      LoadWords(statistics + 3 * kSize, second_grad);
      float squares[kSide] = {}, dqs[kSide] = {dq, 0, 0, 0};
#pragma unroll
      for (int h = 0; h < kSize; ++h) {
        squares[h % kSide] += precision[h] * u[h] * u[h];
        if constexpr (kLinear) z += linear[h] * u[h];
        dqs[h % kSide] += u[h] * (first_grad[h] + second_grad[h] * u[h]);
      }
      z -= 0.5f * ((squares[0] + squares[1]) + (squares[2] + squares[3]));
      dq = (dqs[0] + dqs[1]) + (dqs[2] + dqs[3]);
      const bool exists = state.scale != 0 && mine;
      float q = 0, dz = 0;
      if (exists) {
        const float share =
            in.rule == Rule::kLogit ? z : ExpBelow(z, state.maximum) * state.scale;
        q = state.activation * share;
        const float dr = state.activation * dq;
        dz = in.rule == Rule::kLogit ? dr : share * (dr - state.dot);
      }
      prior_sum += dz;
      float pose_grad[kSide * Q];
#pragma unroll
      for (int row = 0; row < kSide; ++row) {
        float dv[kSide], left[kPoseRow<Q>];
        LoadWords(pose + row * kPoseRow<Q>, left);
#pragma unroll
        for (int r = 0; r < kSide; ++r) {
          const int h = row * kSide + r;
          dv[r] =
              q * first_grad[h] + (2 * q * second_grad[h] - dz * precision[h]) * u[h];
          if constexpr (kLinear) dv[r] += dz * linear[h];
          if (!exists) dv[r] = 0;
        }
#pragma unroll
        for (int c = 0; c < Q; ++c) {
          float sum = 0;
#pragma unroll
          for (int r = 0; r < kSide; ++r) {
            sum += dv[r] * weights[c * kSide + r];
            sums[c * kSide + r] += left[c] * dv[r];
          }
          pose_grad[row * Q + c] = sum;
        }
      }
      float* const to = out.poses + (int64_t{first + i} * d.children + k) * kSide * Q;
      const bool writes = k < d.children && state.scale != 0;
      if (d.lanes == kLanes) {
        SumAndWrite<kLanes>(pose_grad, writes, to);
      } else {
        SumAndWrite<kLanes / 2>(pose_grad, writes, to);
      }
    }
    __syncthreads();
  }
  if (!mine) return;
#pragma unroll
  for (int e = 0; e < Q * kSide; ++e) out.weights[part * Q * kSide + e] = sums[e];
  if (in.prior != nullptr) out.prior[part] = prior_sum;
}

}  // namespace capsops::capsule_moments::fma
