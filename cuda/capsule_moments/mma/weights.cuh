// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Gradients of weights and prior. A warp has eight parents of four windows, a thread
// one pair, for some children, whose gradients stay in registers while the warp walks
// over the windows. So a parent's statistics are loaded once for several votes.
// PassKernel has left the facts of each row [position, k], so that no softmax crosses
// threads.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WEIGHTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WEIGHTS_CUH_

#include <cstdint>

#include "cuda/capsule_moments/mma/pass.cuh"

namespace capsops::capsule_moments::mma {

// How WeightKernel divides its work, and what it has in shared memory: tiles of kFour
// windows.
template <bool kSecond, int kLogit, int Q, bool kSmall>
struct Tile {
  // Three warps to a scheduler, with 168 registers a thread, unless statistics alone
  // take half of them; one where shared memory is small.
  static constexpr int kWarps = kSmall ? 4 : kLogit == 2 ? 8 : 12;
  static constexpr int kThreads = kWarps * kLanes;
  // Sums of eight columns are those of two children with four each.
  static constexpr int kPair = Q == kFour ? 2 : 1;
  static constexpr int kOwn = (kSmall ? 2 : 4) * kPair;  // children of a warp
  // The tensors of a parent that are staged, and its numbers: theirs, the bias and the
  // gradient of the mass. Neither from one parent to the next, nor from one window to
  // the next, eight threads meet a bank twice.
  static constexpr int kTensors = 2 + kSecond + kLogit;
  static constexpr int kParentStep = kTensors * kSize + 4;
  // [kOwn][Q][4], and for the banks' sake half of all more or less.
  static constexpr int kWeightsStep = kOwn * Q * kSide + (kOwn * Q % 8 == 4 ? 0 : 16);

  float* weights;  // [teams' children][outs][kWeightsStep], for the whole kernel
  float* parents;  // [kFour][WindowStep], two of these
  float* poses;    // [children][kFour][Q][4], two of these
  Facts* facts;    // [children][kFour], two of these
  Child* places;   // of the children, for the whole kernel

  __host__ __device__ static int Children(const Division& d) {
    return kOwn * kWarps * kEight >> d.lanes_log2;
  }
  __host__ __device__ static int WindowStep(const Division& d) {
    return (d.outs * kParentStep + 23) / 32 * 32 + 8;
  }
  static int Floats(const Division& d) {
    return Children(d) / kOwn * d.outs * kWeightsStep +
           Children(d) * (2 * kFour * (Q * kSide + 4) + 3) + 2 * kFour * WindowStep(d);
  }

  __device__ Tile(const Division& d, float* from)
      : weights(from),
        parents(weights + Children(d) / kOwn * d.outs * kWeightsStep),
        poses(parents + 2 * kFour * WindowStep(d)),
        facts(reinterpret_cast<Facts*>(poses + 2 * Children(d) * kFour * Q * kSide)),
        places(reinterpret_cast<Child*>(facts + 2 * Children(d) * kFour)) {}
  // Where row `q` of a child's and a parent's weights is.
  __device__ float* Weights(const Division& d, int slot, int parent, int q) const {
    return weights + (slot / kOwn * d.outs + parent) * kWeightsStep +
           (slot % kOwn * Q + q) * kSide;
  }
  // The one of the two for these windows.
  __device__ float* Parents(const Division& d, int turn) const {
    return parents + turn * kFour * WindowStep(d);
  }
  __device__ float* Poses(const Division& d, int turn) const {
    return poses + turn * Children(d) * kFour * Q * kSide;
  }
  __device__ Facts* FactsOf(const Division& d, int turn) const {
    return facts + turn * Children(d) * kFour;
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

// Begins to bring the statistics of the windows from `first` on. What is absent is left
// as it is. From `end` on no child exists, so any statistics will do: those of the last
// window.
template <typename TileOf, bool kSecond, int kLogit>
__device__ void FillParents(const Inputs& in, const Division& d, const Gradient& grad,
                            int first, int end, float* parents) {
  constexpr int kMost = (kFour * kLanes * kFour - 1) / TileOf::kThreads + 1;
  const int words = d.outs * kFour;  // of a window, in 16 bytes
  int from[kMost], to[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int w = threadIdx.x + i * TileOf::kThreads;
    const int window = (w >= words) + (w >= 2 * words) + (w >= 3 * words);
    const int word = w - window * words;
    from[i] = (min(first + window, end - 1) * d.outs * kFour + word) * 4;
    to[i] = window * TileOf::WindowStep(d) + word / kFour * TileOf::kParentStep +
            word % kFour * 4;
    if (w >= kFour * words) to[i] = -1;
  }
  const auto bring = [&](const float* tensor, int at) {
    if (tensor == nullptr) return;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (to[i] < 0) continue;
      __pipeline_memcpy_async(parents + to[i] + at * kSize, tensor + from[i], 16);
    }
  };
  bring(in.center, 0);
  bring(grad.first, 1);
  if constexpr (kSecond) bring(grad.second, 2);
  if constexpr (kLogit > 0) bring(in.precision, 2 + kSecond);
  if constexpr (kLogit > 1) bring(in.linear, 3 + kSecond);
  if constexpr (kLogit == 0) return;
  const float* const one = threadIdx.x % kFour == 0 ? in.bias : grad.mass;
  if (threadIdx.x % kFour > 1 || one == nullptr) return;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (to[i] < 0) continue;
    const int word = threadIdx.x % kFour;
    __pipeline_memcpy_async(parents + to[i] - 3 * word + TileOf::kTensors * kSize,
                            one + from[i] / kSize, sizeof(float));
  }
}

// Begins to bring the poses and the facts of the windows from `first` on. `pixel` is
// that of window first + threadIdx.x / 4 % 4, and goes on to the next tile.
template <typename TileOf, int Q>
__device__ void FillChildren(const Inputs& in, const Division& d, const Facts* from,
                             int first, int end, const Child* places, Pixel* pixel,
                             float* poses, Facts* facts) {
  const int children = TileOf::Children(d);
  const Corner corner(d.image, *pixel);
  pixel->Advance(d.image, kFour);
  const int position = first + threadIdx.x / kSide % kFour;
  WithElements(in.element, [&](auto zero) {
    using N = decltype(zero);
#pragma unroll 1
    for (int i = threadIdx.x; i < children * kFour * kSide; i += TileOf::kThreads) {
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
                      any ? corner.Capsule(d.image, places[pair / kFour]) : -1, row,
                      poses + pair * Q * kSide);
    }
  });
}

// Waits for what this thread has brought, and prepares the poses.
template <typename TileOf, int Q>
__device__ void AwaitChildren(const Inputs& in, const Division& d, float* poses) {
  __pipeline_wait_prior(0);
  if (in.element != Element::kFloat) return;  // exact in TF32
#pragma unroll 1
  for (int i = threadIdx.x; i < TileOf::Children(d) * kFour * kSide;
       i += TileOf::kThreads) {
    PreparePoseRow<Q>(i % kSide, poses + i / kSide * Q * kSide);
  }
}

template <bool kSecond, int kLogit, int Q, bool kSmall>
__global__ void __launch_bounds__((Tile<kSecond, kLogit, Q, kSmall>::kThreads), 1)
    WeightKernel(Inputs in, Division d, Gradient grad, WeightSums out) {
  LetKernelAfterBegin();
  WaitForKernelBefore();
  extern __shared__ float4 shared[];
  using TileOf = Tile<kSecond, kLogit, Q, kSmall>;
  constexpr int kOwn = TileOf::kOwn, kPair = TileOf::kPair;
  constexpr bool kPrior = kLogit == 2;
  const TileOf tile(d, reinterpret_cast<float*>(shared));
  const int lane = threadIdx.x % kLanes, g = lane / kFour, t = lane % kFour;
  const int warp = threadIdx.x / kLanes, teams = d.lanes() / kEight;
  const int children = TileOf::Children(d);
  const int slot0 = warp / teams * kOwn;  // of the block's children, this warp's first
  const int child0 = blockIdx.x * children + slot0;
  const int o = warp % teams * kEight + g, parent = min(o, d.outs - 1);
  const int begin = static_cast<int>(int64_t{blockIdx.y} * d.positions / gridDim.y);
  const int end = static_cast<int>(int64_t{blockIdx.y + 1} * d.positions / gridDim.y);
  const int64_t part = int64_t{blockIdx.y} * d.children;

  const auto weights_of = [&](int row) {
    const int matrix = row / Q, slot = matrix / d.outs;
    return tile.Weights(d, slot, matrix - slot * d.outs, row % Q);
  };
  const int weight_rows =
      min(children, d.children - static_cast<int>(blockIdx.x) * children) * d.outs * Q;
  WithElements(in.element, [&](auto zero) {
    const auto* const from = static_cast<const decltype(zero)*>(in.weights) +
                             int64_t{blockIdx.x} * children * d.outs * Q * kSide;
    for (int row = threadIdx.x; row < weight_rows; row += TileOf::kThreads) {
      Stage<kSide, 1>(from + row * kSide, weights_of(row));
    }
  });
  ClearRows<TileOf::kThreads>(weight_rows, children * d.outs * Q, weights_of);
  for (int i = threadIdx.x; i < 2 * kFour * TileOf::WindowStep(d);
       i += TileOf::kThreads) {
    tile.parents[i] = 0;
  }
  for (int c = threadIdx.x; c < children; c += TileOf::kThreads) {
    tile.places[c] = Child(d.image, static_cast<int>(blockIdx.x) * children + c);
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  for (int row = threadIdx.x; row < weight_rows; row += TileOf::kThreads) {
    if (in.element == Element::kFloat) PrepareRow(weights_of(row));
  }
  __syncthreads();

  // Calls each(where it is stored, sum) for each of this thread's sums.
  float sums[kOwn / kPair][2][4] = {}, priors[kPrior ? kOwn : 1] = {};
  const auto visit = [&](const auto& each) {
#pragma unroll
    for (int c = 0; c < kOwn; c += kPair) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 2 * t + e % 2, child = child0 + c + column / Q;
        const int q = column % Q, r = e / 2;
        if (column >= kPair * Q || child >= d.children || o >= d.outs) continue;
        float* const to = out.weights + (((part + child) * d.outs + o) * Q + q) * kSide;
        each(to + r, sums[c / kPair][0][e]);
        each(to + 2 + r, sums[c / kPair][1][e]);
      }
    }
    if constexpr (kPrior) {
      if (in.prior == nullptr || t > 0 || o >= d.outs) return;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        if (child0 + c >= d.children) continue;
        each(out.prior + (part + child0 + c) * d.outs + o, priors[c]);
      }
    }
  };
  if (!out.begins) visit([](const float* from, float& sum) { sum = *from; });

  // Of the columns of a product, this thread's: those of every kPair-th child.
  const int column = min(g % (Q == kFour ? kFour : kEight), Q - 1);
  const float* const weights = tile.Weights(d, slot0, parent, t);
  const int right_at = ((slot0 * kFour + g / 2) * Q + t) * kSide + g % 2 * 2;
  const int back_at = ((slot0 * kFour + t) * Q + column) * kSide;
  const int parent_at = t * TileOf::WindowStep(d) + parent * TileOf::kParentStep;
  Pixel pixel(d.image, begin + static_cast<int>(threadIdx.x) / kSide % kFour);
  int turn = 1;
  for (int first = begin - kFour; first < end; first += kFour, turn = 1 - turn) {
    const float* const poses = tile.Poses(d, turn);
    if (first >= begin) AwaitChildren<TileOf, Q>(in, d, tile.Poses(d, turn));
    __syncthreads();
    if (first + kFour < end) {
      FillParents<TileOf, kSecond, kLogit>(in, d, grad, first + kFour, end,
                                           tile.Parents(d, 1 - turn));
      FillChildren<TileOf, Q>(in, d, out.facts, first + kFour, end, tile.places, &pixel,
                              tile.Poses(d, 1 - turn), tile.FactsOf(d, 1 - turn));
    }
    __pipeline_commit();
    if (first < begin) continue;
    // In the order in which FillParents has them.
    ParentAt my_parent{};
    my_parent.center = tile.Parents(d, turn) + parent_at;
    my_parent.first_grad = my_parent.center + kSize;
    my_parent.second_grad = my_parent.first_grad + kSecond * kSize;
    my_parent.precision = my_parent.second_grad + kSize;
    my_parent.linear = my_parent.precision + kSize;
    const float* const one = my_parent.center + TileOf::kTensors * kSize;
    const Statistics<true, kSecond, kLogit> statistics(std::true_type(), my_parent,
                                                       one[0], one[1]);
    const Facts* const all_facts = tile.FactsOf(d, turn) + slot0 * kFour + t;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const Facts facts = all_facts[c * kFour];
      float u[kSize], gradient[kSize], factor = 1;
      if constexpr (kLogit > 0 || kSecond) {
        MakeVote<true, Q>(weights + c * Q * kSide,
                          poses + c * kFour * Q * kSide + right_at,
                          statistics.minus_center, u);
      }
      if constexpr (kLogit == 0) {
        // Poses of float have been prepared.
        factor = facts.activation * facts.scale *
                 (in.element == Element::kFloat ? 1 : kLift);
#pragma unroll
        for (int h = 0; h < kSize; ++h) gradient[h] = statistics.OfMoments(h, u[h]);
      } else {
        float prior = 0;
        if (kPrior && in.prior != nullptr && child0 + c < d.children) {
          prior = in.prior[int64_t{child0 + c} * d.outs + parent];
        }
        const float dz = statistics.Differentiate(u, in.rule, facts, prior, gradient);
        if constexpr (kPrior) priors[c] += dz;
      }
      Contract<true>(gradient, poses + c * kFour * Q * kSide + back_at,
                     kPair == 1 || g / kFour == c % 2, factor, sums[c / kPair]);
    }
  }
  // The four windows of a tile have parts of the prior's.
#pragma unroll
  for (int c = 0; kPrior && c < kOwn; ++c) {
    priors[c] += __shfl_xor_sync(~0u, priors[c], 1);
    priors[c] += __shfl_xor_sync(~0u, priors[c], 2);
  }
  visit([](float* to, float sum) { *to = sum; });
}

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WEIGHTS_CUH_
