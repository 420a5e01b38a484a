// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Gradients of weights and prior. A warp has eight parents of four windows, a thread
// one pair, for kOwn children, whose gradients stay in registers while the warp walks
// over the windows. So a parent's statistics are loaded once for kOwn votes. PassKernel
// has left the facts of each row [position, k], so that no softmax crosses threads.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WEIGHTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WEIGHTS_CUH_

#include <cstdint>

#include "cuda/capsule_moments/mma/pass.cuh"

namespace capsops::capsule_moments::mma {

constexpr int kOwn = 8;  // children of a warp

// The tensors of a parent that WeightKernel stages, and its numbers: theirs, the bias
// and the gradient of the mass. Neither from one parent to the next, nor from one
// window to the next, eight threads meet a bank twice.
constexpr int kTensors(bool second, int logit) { return 2 + second + logit; }
constexpr int kParentStep(int tensors) { return tensors * kSize + 4; }
__host__ __device__ constexpr int WindowStep(int outs, int tensors) {
  return (outs * kParentStep(tensors) + 23) / 32 * 32 + 8;
}

// Children of a block.
__host__ __device__ inline int BlockChildren(const Division& d) {
  return kOwn * kWarps * kEight >> d.lanes_log2;
}

// What WeightKernel has in shared memory. Its tiles are of kFour windows.
template <int Q, int kTensorCount>
struct Tile {
  float* weights;  // [children][outs][Q][4], for the whole kernel
  float* parents;  // [kFour][WindowStep]
  float* poses;    // [children][kFour][Q][4], two of these
  Facts* facts;    // [children][kFour], two of these
  Child* places;   // of the children, for the whole kernel

  __host__ __device__ Tile(const Division& d, float* from)
      : weights(from),
        parents(weights + BlockChildren(d) * d.outs * Q * kSide),
        poses(parents + kFour * WindowStep(d.outs, kTensorCount)),
        facts(
            reinterpret_cast<Facts*>(poses + 2 * BlockChildren(d) * kFour * Q * kSide)),
        places(reinterpret_cast<Child*>(facts + 2 * BlockChildren(d) * kFour)) {}
  static int Floats(const Division& d) {
    return BlockChildren(d) * (d.outs * Q * kSide + 2 * kFour * (Q * kSide + 4) + 3) +
           kFour * WindowStep(d.outs, kTensorCount);
  }
};

// What WeightKernel reads beside the inputs, and writes: of each part of the windows
// the sums of the gradients of weights and prior. Where not `begins`, the sums go on
// from what they are.
struct WeightSums {
  const Facts* facts;
  float *weights, *prior;
  bool begins;
};

// Begins to bring the statistics of the windows from `first` on, zeros from `end` on.
template <bool kSecond, int kLogit, int Q>
__device__ void FillParents(const Inputs& in, const Division& d, const Gradient& grad,
                            int first, int end, float* parents) {
  constexpr int kCount = kTensors(kSecond, kLogit), kStep = kParentStep(kCount);
  const float* tensors[5] = {in.center, grad.first};
  if constexpr (kSecond) tensors[2] = grad.second;
  if constexpr (kLogit > 0) tensors[2 + kSecond] = in.precision;
  if constexpr (kLogit > 1) tensors[3 + kSecond] = in.linear;
  const int64_t from = int64_t{first} * d.outs;
  const int window_step = WindowStep(d.outs, kCount);
  for (int w = threadIdx.x; w < kFour * d.outs * kFour; w += kThreads) {
    const int parent = w / kFour;
    const int window =
        (parent >= d.outs) + (parent >= 2 * d.outs) + (parent >= 3 * d.outs);
    const bool any = first + window < end;
    float* const to =
        parents + window * window_step + (parent - window * d.outs) * kStep;
#pragma unroll
    for (int tensor = 0; tensor < kCount; ++tensor) {
      float* const at = to + tensor * kSize + w % kFour * 4;
      if (any && tensors[tensor] != nullptr) {
        __pipeline_memcpy_async(at, tensors[tensor] + from * kSize + w * 4, 16);
      } else {
        *reinterpret_cast<float4*>(at) = {0, 0, 0, 0};
      }
    }
    if (w % kFour > 1) continue;
    const float* const one = w % kFour == 0 ? in.bias : grad.mass;
    float* const at = to + kCount * kSize + w % kFour;
    if (any && one != nullptr) {
      __pipeline_memcpy_async(at, one + from + parent, sizeof(float));
    } else {
      *at = 0;
    }
  }
}

// Begins to bring the poses and the facts of the windows from `first` on. `pixel` is
// that of window first + threadIdx.x / 4 % 4, and goes on to the next tile.
template <int Q>
__device__ void FillChildren(const Inputs& in, const Division& d, const Facts* from,
                             int first, int end, const Child* places, Pixel* pixel,
                             float* poses, Facts* facts) {
  const int children = BlockChildren(d);
  const Corner corner(in.p, *pixel);
  pixel->Advance(in.p, kFour);
  const int position = first + threadIdx.x / kSide % kFour;
  WithElements(in.element, [&](auto zero) {
    using N = decltype(zero);
    for (int i = threadIdx.x; i < children * kFour * kSide; i += kThreads) {
      const int row = i % kSide, pair = i / kSide;
      const int k = blockIdx.x * children + pair / kFour;
      const bool any = k < d.children && position < end;
      if (row == 0 && any) {
        __pipeline_memcpy_async(facts + pair, from + int64_t{position} * d.children + k,
                                sizeof(Facts));
      } else if (row == 0) {
        facts[pair] = {0, 0, 0, 0};
      }
      StagePoseRow<Q>(static_cast<const N*>(in.poses),
                      any ? corner.Capsule(in.p, places[pair / kFour]) : -1, row,
                      poses + pair * Q * kSide);
    }
  });
}

// Waits for what this thread has brought, and prepares the poses.
template <int Q>
__device__ void AwaitChildren(const Inputs& in, const Division& d, float* poses) {
  __pipeline_wait_prior(0);
  if (in.element != Element::kFloat) return;  // exact in TF32
  for (int i = threadIdx.x; i < BlockChildren(d) * kFour * kSide; i += kThreads) {
    PreparePoseRow<Q>(i % kSide, poses + i / kSide * Q * kSide);
  }
}

template <bool kSecond, int kLogit, int Q>
__global__ void __launch_bounds__(kThreads, 1)
    WeightKernel(Inputs in, Division d, Gradient grad, WeightSums out) {
  extern __shared__ float4 shared[];
  constexpr int kCount = kTensors(kSecond, kLogit);
  const Tile<Q, kCount> tile(d, reinterpret_cast<float*>(shared));
  const int lane = threadIdx.x % kLanes, g = lane / kFour, t = lane % kFour;
  const int warp = threadIdx.x / kLanes, teams = d.lanes() / kEight;
  const int children = BlockChildren(d);
  const int slot0 = warp / teams * kOwn;  // of the block's children, this warp's first
  const int child0 = blockIdx.x * children + slot0;
  const int o = warp % teams * kEight + g, parent = min(o, d.outs - 1);
  const int begin = static_cast<int>(int64_t{blockIdx.y} * d.positions / gridDim.y);
  const int end = static_cast<int>(int64_t{blockIdx.y + 1} * d.positions / gridDim.y);
  const int64_t part = int64_t{blockIdx.y} * d.children;

  const int weight_rows =
      min(children, d.children - static_cast<int>(blockIdx.x) * children) * d.outs * Q;
  WithElements(in.element, [&](auto zero) {
    StageWeights(static_cast<const decltype(zero)*>(in.weights) +
                     int64_t{blockIdx.x} * children * d.outs * Q * kSide,
                 weight_rows, tile.weights);
  });
  for (int c = threadIdx.x; c < children; c += kThreads) {
    tile.places[c] = Child(in.p, static_cast<int>(blockIdx.x) * children + c);
  }
  __syncthreads();
  Pixel pixel(in.p, begin + static_cast<int>(threadIdx.x) / kSide % kFour);
  FillParents<kSecond, kLogit, Q>(in, d, grad, begin, end, tile.parents);
  FillChildren<Q>(in, d, out.facts, begin, end, tile.places, &pixel, tile.poses,
                  tile.facts);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  PrepareWeights(weight_rows, tile.weights);

  // Calls each(where it is stored, sum) for each of this thread's sums.
  float sums[kOwn][2][4] = {}, priors[kOwn] = {};
  const auto visit = [&](const auto& each) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const int64_t matrix = (part + child0 + c) * d.outs + o;
      if (child0 + c >= d.children || o >= d.outs) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int q = 2 * t + e % 2, r = e / 2;
        if (q >= Q) continue;
        each(out.weights + (matrix * Q + q) * kSide + r, sums[c][0][e]);
        each(out.weights + (matrix * Q + q) * kSide + 2 + r, sums[c][1][e]);
      }
      if (in.prior != nullptr && t == 0) each(out.prior + matrix, priors[c]);
    }
  };
  if (!out.begins) visit([](const float* from, float& sum) { sum = *from; });

  // In the order in which FillParents has them.
  ParentAt my_parent{};
  my_parent.center =
      tile.parents + t * WindowStep(d.outs, kCount) + parent * kParentStep(kCount);
  my_parent.first_grad = my_parent.center + kSize;
  my_parent.second_grad = my_parent.first_grad + kSecond * kSize;
  my_parent.precision = my_parent.second_grad + kSize;
  my_parent.linear = my_parent.precision + kSize;
  const float* const one = my_parent.center + kCount * kSize;
  int turn = 0;
  for (int first = begin; first < end; first += kFour, turn = 1 - turn) {
    float* const poses = tile.poses + turn * children * kFour * Q * kSide;
    const Facts* const all_facts = tile.facts + turn * children * kFour;
    AwaitChildren<Q>(in, d, poses);
    __syncthreads();
    const Statistics<true, kSecond, kLogit> statistics(my_parent, one[0], one[1]);
    __syncthreads();
    if (first + kFour < end) {
      FillParents<kSecond, kLogit, Q>(in, d, grad, first + kFour, end, tile.parents);
      FillChildren<Q>(in, d, out.facts, first + kFour, end, tile.places, &pixel,
                      tile.poses + (1 - turn) * children * kFour * Q * kSide,
                      tile.facts + (1 - turn) * children * kFour);
    }
    __pipeline_commit();
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const int slot = slot0 + c;
      const float* const child_poses = poses + slot * kFour * Q * kSide;
      float u[kSize];
      MakeVote<true, Q>(tile.weights + ((slot * d.outs + parent) * Q + t) * kSide,
                        child_poses + (g / 2 * Q + t) * kSide + g % 2 * 2,
                        statistics.minus_center, u);
      const Facts facts = all_facts[slot * kFour + t];
      float z, dq, gradient[kSize];
      statistics.Sum(u, &z, &dq);
      if (in.prior != nullptr && child0 + c < d.children) {
        z += in.prior[int64_t{child0 + c} * d.outs + parent];
      }
      float share = in.rule == Rule::kLogit ? z : ExpOf(z, facts.most) * facts.scale;
      if (facts.scale == 0) share = 0;
      const float dr = facts.activation * dq;
      const float dz = in.rule == Rule::kLogit ? dr : share * (dr - facts.dot);
      priors[c] += dz;
      statistics.Differentiate(u, facts.activation * share, dz, gradient);
      Contract<true>(gradient, child_poses + (t * Q + min(g, Q - 1)) * kSide, sums[c]);
    }
  }
  // The four windows of a tile have parts of the prior's.
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    if (in.prior == nullptr) continue;
    priors[c] += __shfl_xor_sync(~0u, priors[c], 1);
    priors[c] += __shfl_xor_sync(~0u, priors[c], 2);
  }
  visit([](float* to, float sum) { *to = sum; });
}

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WEIGHTS_CUH_
