// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Gradients of weights and prior. A warp has eight parents and four windows, and a
// thread one pair of these for several children. The children's gradients stay in
// registers while the warp loops over windows, and a parent's statistics are loaded
// once for several votes. Shared memory holds the weights of the block's children, and
// two stages of four windows' poses, states and statistics, which are copied
// asynchronously. PassKernel has written the state of each row [position, k], so that
// the softmax needs no reduction here.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/mma/pass.cuh"

namespace capsops::capsule_moments::mma {

// WeightKernel's work split and shared memory. A tile has kFour windows.
template <bool kSecond, int kLogit, int Q, bool kSmall>
struct Tile {
  // Three warps per scheduler, with 168 registers per thread; two if the statistics
  // alone take half of these registers, and one if shared memory is small.
  static constexpr int kWarps = kSmall ? 4 : kLogit == 2 ? 8 : 12;
  static constexpr int kThreads = kWarps * kLanes;
  // With Q = 4, a product's eight columns are the weight gradients of two children.
  static constexpr int kPair = Q == kFour ? 2 : 1;
  static constexpr int kOwn = (kSmall ? 2 : 4) * kPair;  // children per warp
  // Number of staged tensors of a parent, and the stride between parents, which also
  // has the bias and the mass gradient. It is 4 modulo 16 words, and the stride between
  // windows 8 modulo 32, so that two parents x four windows load 16 bytes each without
  // bank conflicts.
  static constexpr int kTensors = 2 + kSecond + kLogit;
  static constexpr int kParentStep = kTensors * kSize + 4;
  // Stride of [kOwn][Q][4]. It is 16 modulo 32 words, so that four rows of two parents
  // are in different banks, except with kSmall and Q = 5.
  static constexpr int kWeightsStep = kOwn * Q * kSide + (kOwn * Q % 8 == 4 ? 0 : 16);

  float* weights;   // [children / kOwn][outs][kWeightsStep], loaded once
  float* parents;   // [2][kFour][WindowStep]
  float* poses;     // [2][children][kFour][Q][4]
  RowState* state;  // [2][children][kFour]
  Child* places;    // [children], computed once

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
        state(reinterpret_cast<RowState*>(poses + 2 * Children(d) * kFour * Q * kSide)),
        places(reinterpret_cast<Child*>(state + 2 * Children(d) * kFour)) {}
  // Returns row `q` of the weights of a child and a parent.
  __device__ float* Weights(const Division& d, int slot, int parent, int q) const {
    return weights + (slot / kOwn * d.outs + parent) * kWeightsStep +
           (slot % kOwn * Q + q) * kSide;
  }
  // These three return one of the two buffers.
  __device__ float* Parents(const Division& d, int buffer) const {
    return parents + buffer * kFour * WindowStep(d);
  }
  __device__ float* Poses(const Division& d, int buffer) const {
    return poses + buffer * Children(d) * kFour * Q * kSide;
  }
  __device__ RowState* StateOf(const Division& d, int buffer) const {
    return state + buffer * Children(d) * kFour;
  }
};

// Starts the copies of the parents' statistics of four windows, from `first` on. Skips
// absent tensors. Windows from `end` on have no children, and get a copy of the last
// window's statistics.
template <typename TileOf, bool kSecond, int kLogit>
__device__ void FillParents(const Inputs& in, const Division& d, const Gradient& grad,
                            int first, int end, float* parents) {
  constexpr int kMax = (kFour * kLanes * kFour - 1) / TileOf::kThreads + 1;
  const int words = d.outs * kFour;  // 16-byte words per window
  int from[kMax], to[kMax];
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    const int w = threadIdx.x + i * TileOf::kThreads;
    const int window = (w >= words) + (w >= 2 * words) + (w >= 3 * words);
    const int word = w - window * words;
    from[i] = (min(first + window, end - 1) * d.outs * kFour + word) * 4;
    to[i] = window * TileOf::WindowStep(d) + word / kFour * TileOf::kParentStep +
            word % kFour * 4;
    if (w >= kFour * words) to[i] = -1;
  }
  const auto start_copy = [&](const float* tensor, int at) {
    if (tensor == nullptr) return;
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (to[i] < 0) continue;
      __pipeline_memcpy_async(parents + to[i] + at * kSize, tensor + from[i], 16);
    }
  };
  start_copy(in.center, 0);
  start_copy(grad.first, 1);
  if constexpr (kSecond) start_copy(grad.second, 2);
  if constexpr (kLogit > 0) start_copy(in.precision, 2 + kSecond);
  if constexpr (kLogit > 1) start_copy(in.linear, 3 + kSecond);
  if constexpr (kLogit == 0) return;
  // The first two of the four threads of a parent copy its bias and its mass gradient.
  const float* const one = threadIdx.x % kFour == 0 ? in.bias : grad.mass;
  if (threadIdx.x % kFour > 1 || one == nullptr) return;
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    if (to[i] < 0) continue;
    const int word = threadIdx.x % kFour;
    __pipeline_memcpy_async(parents + to[i] - 3 * word + TileOf::kTensors * kSize,
                            one + from[i] / kSize, sizeof(float));
  }
}

// Starts the copies of the poses and row state of four windows, from `first` on.
// `pixel` is that of window first + threadIdx.x / 4 % 4, and advances to the next tile.
template <typename TileOf, int Q>
__device__ void FillChildren(const Inputs& in, const Division& d, const RowState* from,
                             int first, int end, const Child* places, Pixel* pixel,
                             float* poses, RowState* state) {
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
        __pipeline_memcpy_async(state + pair, from + int64_t{position} * d.children + k,
                                sizeof(RowState));
      } else if (row == 0) {
        state[pair] = {0, 0, 0, 0};
      }
      StagePoseRow<Q>(static_cast<const N*>(in.poses),
                      any ? corner.Capsule(d.image, places[pair / kFour]) : -1, row,
                      poses + pair * Q * kSide);
    }
  });
}

// Waits for this thread's copies, and rounds the poses to TF32 unless kSplit.
template <typename TileOf, bool kSplit, int Q>
__device__ void WaitForChildren(const Inputs& in, const Division& d, float* poses) {
  __pipeline_wait_prior(0);
  if constexpr (!kSplit) {
    if (in.element != Element::kFloat) return;  // 16-bit elements are exact in TF32
#pragma unroll 1
    for (int i = threadIdx.x; i < TileOf::Children(d) * kFour * kSide;
         i += TileOf::kThreads) {
      PreparePoseRow<Q>(i % kSide, poses + i / kSide * Q * kSide);
    }
  }
}

// Computes the gradients of weights and prior: block (x, y) sums over part y of the
// windows, for tile x of the children.
template <bool kSecond, int kLogit, int Q, bool kSmall, bool kSplit>
__global__ void __launch_bounds__((Tile<kSecond, kLogit, Q, kSmall>::kThreads), 1)
    WeightKernel(Inputs in, Division d, Gradient grad, WeightSums out) {
  TriggerDependentLaunch();
  GridDependencySynchronize();
  extern __shared__ float4 shared[];
  using TileOf = Tile<kSecond, kLogit, Q, kSmall>;
  constexpr int kOwn = TileOf::kOwn, kPair = TileOf::kPair;
  constexpr bool kPrior = kLogit == 2;
  const TileOf tile(d, reinterpret_cast<float*>(shared));
  const int lane = threadIdx.x % kLanes, g = lane / kFour, t = lane % kFour;
  const int warp = threadIdx.x / kLanes, teams = d.lanes() / kEight;
  const int children = TileOf::Children(d);
  const int slot0 = warp / teams * kOwn;  // this warp's first child in the block
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
    if (!kSplit && in.element == Element::kFloat) PrepareRow(weights_of(row));
  }
  __syncthreads();

  // Calls each(address, sum) for each of this thread's sums.
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
  if (!out.overwrite) visit([](const float* from, float& sum) { sum = *from; });

  // This thread's column in the products of every kPair-th child.
  const int column = min(g % (Q == kFour ? kFour : kEight), Q - 1);
  const float* const weights = tile.Weights(d, slot0, parent, t);
  const int right_at = ((slot0 * kFour + g / 2) * Q + t) * kSide + g % 2 * 2;
  const int back_at = ((slot0 * kFour + t) * Q + column) * kSide;
  const int parent_at = t * TileOf::WindowStep(d) + parent * TileOf::kParentStep;
  Pixel pixel(d.image, begin + static_cast<int>(threadIdx.x) / kSide % kFour);
  int buffer = 1;
  // The first iteration only starts the copies of the first four windows.
  for (int first = begin - kFour; first < end; first += kFour, buffer = 1 - buffer) {
    const float* const poses = tile.Poses(d, buffer);
    if (first >= begin)
      WaitForChildren<TileOf, kSplit, Q>(in, d, tile.Poses(d, buffer));
    __syncthreads();
    if (first + kFour < end) {
      FillParents<TileOf, kSecond, kLogit>(in, d, grad, first + kFour, end,
                                           tile.Parents(d, 1 - buffer));
      FillChildren<TileOf, Q>(in, d, out.state, first + kFour, end, tile.places, &pixel,
                              tile.Poses(d, 1 - buffer), tile.StateOf(d, 1 - buffer));
    }
    __pipeline_commit();
    if (first < begin) continue;
    // Uses the order of FillParents.
    ParentAt my_parent{};
    my_parent.center = tile.Parents(d, buffer) + parent_at;
    my_parent.first_grad = my_parent.center + kSize;
    my_parent.second_grad = my_parent.first_grad + kSecond * kSize;
    my_parent.precision = my_parent.second_grad + kSize;
    my_parent.linear = my_parent.precision + kSize;
    const float* const one = my_parent.center + TileOf::kTensors * kSize;
    const Statistics<true, kSecond, kLogit, kSplit, (kLogit > 0)> statistics(
        std::true_type(), my_parent, one[0], one[1]);
    const RowState* const all_states = tile.StateOf(d, buffer) + slot0 * kFour + t;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const RowState state = all_states[c * kFour];
      float u[kSize], gradient[kSize], factor = 1;
      if constexpr (kLogit > 0 || kSecond) {
        MakeVote<true, kSplit, Q>(weights + c * Q * kSide,
                                  poses + c * kFour * Q * kSide + right_at,
                                  statistics.minus_center, u);
      }
      if constexpr (kLogit == 0) {
        // Float poses have already been compensated for truncation.
        factor = state.activation * state.scale *
                 (in.element == Element::kFloat ? 1 : kDebias<kSplit>);
#pragma unroll
        for (int h = 0; h < kSize; ++h)
          gradient[h] = statistics.MomentGradient(h, u[h]);
      } else {
        float prior = 0, share_dq;
        if (kPrior && in.prior != nullptr && child0 + c < d.children) {
          prior = in.prior[int64_t{child0 + c} * d.outs + parent];
        }
        const float dz =
            statistics.Differentiate(u, in.rule, state, prior, gradient, &share_dq);
        if constexpr (kPrior) priors[c] += dz;
      }
      Contract<true, kSplit>(gradient, poses + c * kFour * Q * kSide + back_at,
                             kPair == 1 || g / kFour == c % 2, factor, sums[c / kPair]);
    }
  }
  // Adds the prior's gradients over the tile's four windows.
#pragma unroll
  for (int c = 0; kPrior && c < kOwn; ++c) {
    priors[c] += __shfl_xor_sync(~0u, priors[c], 1);
    priors[c] += __shfl_xor_sync(~0u, priors[c], 2);
  }
  visit([](float* to, float sum) { *to = sum; });
}

}  // namespace capsops::capsule_moments::mma
