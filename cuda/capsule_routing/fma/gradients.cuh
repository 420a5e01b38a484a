// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The last pass of the gradient of capsule routing of any sizes: from V and ds of every
// iteration to the gradients of input, weights and logits.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_GRADIENTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_GRADIENTS_CUH_

#include "cuda/capsule_routing/fma/pass.cuh"

namespace capsops::capsule_routing::fma {

// Where a block of the gradients keeps what, in elements from the beginning of its
// memory, for `tile` input capsules.
struct GradientsLayout {
  int tile, iterations, adders;
  int64_t products, input_sums, logits_sums, size;

  // `adders` warps add up their own gradients of input.
  template <typename A>
  static GradientsLayout Of(const Sizes& z, int tile, int iterations, int adders) {
    GradientsLayout l{tile, iterations, adders};
    const int64_t x = int64_t{tile} * z.depth * kPitch<A>;
    l.products = x;
    l.input_sums = l.products + int64_t{2} * tile * iterations * z.out_caps * kSamples;
    l.logits_sums = l.input_sums + adders * x;
    l.size = l.logits_sums + int64_t{tile} * z.out_caps;
    return l;
  }
};

// du_hat = sum_r (c_r ds_r + db_r V_r) for the lane's samples and rows of output
// capsule j. At `products` are c and db of every iteration.
template <typename A>
__device__ void PredictionGradient(const Sizes& z, const Place& place, const Rows& rows,
                                   int j, const A* products, const A* vectors,
                                   int iterations, A (&du)[kRows][kEach]) {
#pragma unroll
  for (int e = 0; e < kRows; ++e) {
#pragma unroll
    for (int b = 0; b < kEach; ++b) du[e][b] = 0;
  }
  const int one = z.out_caps * kSamples;  // of products
  const A* at = products + j * kSamples;
  const A* from = vectors + (int64_t{j} * z.out_dim + rows.first) * z.padded;
  for (int r = 0; r < iterations; ++r) {
    const auto c = Samples<A>::Load(place, at);
    const auto db = Samples<A>::Load(place, at + one);
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      if (!rows.has(e)) continue;
      const A* const v = from + e * kStripes * z.padded;
      const auto ds_r = Samples<A>::Load(place, v + z.length);
#pragma unroll
      for (int b = 0; b < kEach; ++b) du[e][b] += c.at[b] * ds_r.at[b];
      if (r > 0) {
        const auto v_r = Samples<A>::Load(place, v);
#pragma unroll
        for (int b = 0; b < kEach; ++b) du[e][b] += db.at[b] * v_r.at[b];
      }
    }
    at += 2 * one;
    from += 2 * z.length;
  }
}

// Adds what du_hat of one row block makes of the gradients: weights^T du_hat to
// `input_sum`, the warp's own tile [k][sample], and du_hat (outer) x to `weights_sum`,
// a matrix [D, K]; or writes them, where the one or the other is `fresh`.
template <typename S, typename A>
__device__ void AddGradients(const Sizes& z, const Place& place, const Rows& rows,
                             const S* matrix, const A* x, const A (&du)[kRows][kEach],
                             bool fresh_input, bool fresh_weights, A* input_sum,
                             A* weights_sum) {
  constexpr int kK = kPack<A>;
  const auto add = [&](int k0, const A(&w)[kRows][kK]) {
    A to_input[kK * kEach] = {}, to_weights[kRows * kK] = {};
    Samples<A> xs[kK];
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      xs[k] = Samples<A>::Load(place, x + (k0 + k) * kPitch<A>);
    }
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      if (!rows.has(e)) continue;
#pragma unroll
      for (int k = 0; k < kK; ++k) {
#pragma unroll
        for (int b = 0; b < kEach; ++b) {
          to_input[k * kEach + b] += w[e][k] * du[e][b];
          to_weights[e * kK + k] += xs[k].at[b] * du[e][b];
        }
      }
    }
    SumHalves<kLanes / 2, kLanes / kStripes, kK * kEach>(to_input);
    {
      const int first = place.stripe * kK;
      auto* const to =
          reinterpret_cast<Pack<A, kK>*>(input_sum + (k0 + first / kEach) * kPitch<A> +
                                         place.sample<A>(first % kEach));
      Pack<A, kK> sum{};
      if (!fresh_input) sum = *to;
#pragma unroll
      for (int m = 0; m < kK; ++m) sum.at[m] += to_input[m];
      *to = sum;
    }
    SumHalves<kLanes / kStripes / 2, 1, kRows * kK>(to_weights);
    constexpr int kLeft = kRows * kK * kStripes / kLanes;
#pragma unroll
    for (int m = 0; m < kLeft; ++m) {
      const int at = place.lane % (kLanes / kStripes) * kLeft + m;
      const int e = at / kK, k = k0 + at % kK;
      if (!rows.has(e) || k >= z.in_dim) continue;
      A* const to = weights_sum + (rows.first + e * kStripes) * z.in_dim + k;
      *to = fresh_weights ? to_weights[m] : *to + to_weights[m];
    }
  };
  EachWeights<S, A>(z, rows, matrix, add);
}

// A block has a tile of input capsules at a time, all output capsules and all samples,
// a group after the other, so that it alone adds up the gradients of its weights and
// logits. It keeps what it works on in shared memory or, where there is one, in its
// layout.size elements of `scratch`. Where S cannot hold sums, those of the gradient of
// weights go to `weights_scratch`.
template <typename S, typename A>
__global__ void __launch_bounds__(kMaxWarps* kLanes, 1)
    GradientsKernel(Sizes z, GradientsLayout layout, const S* __restrict__ input,
                    const S* __restrict__ weights, const S* __restrict__ logits,
                    const A* __restrict__ vectors, S* __restrict__ grad_input,
                    S* grad_weights, S* __restrict__ grad_logits, A* scratch,
                    A* weights_scratch) {
  extern __shared__ float4 shared[];
  const Place place;
  A* const x = scratch != nullptr ? scratch + blockIdx.x * layout.size
                                  : reinterpret_cast<A*>(shared);
  A* const products = x + layout.products;
  A* const input_sums = x + layout.input_sums;
  A* const logits_sums = x + layout.logits_sums;
  const int one = 2 * layout.iterations * z.out_caps * kSamples;  // of products
  const int x_size = z.depth * kPitch<A>;                         // of one x
  for (int64_t i0 = int64_t{blockIdx.x} * layout.tile; i0 < z.in_caps;
       i0 += int64_t{gridDim.x} * layout.tile) {
    const int count = min(int64_t{layout.tile}, z.in_caps - i0);
    const S* const tile_weights = weights + i0 * z.matrices;
    A* weights_sums;
    if constexpr (std::is_same_v<S, A>) {
      weights_sums = grad_weights + i0 * z.matrices;
    } else {
      weights_sums = weights_scratch + blockIdx.x * layout.tile * z.matrices;
    }
    for (int64_t b0 = 0; b0 < z.batch; b0 += kSamples) {
      __syncthreads();
      StageInput(z, place, input, b0 / kSamples, i0, count, x);
      __syncthreads();
      Agree<2>(z, place, tile_weights, x, count, vectors + b0, layout.iterations, true,
               products);
      __syncthreads();
      for (int e = place.warp; e < count * layout.iterations; e += place.warps) {
        A* const c = products + int64_t{e} * 2 * z.out_caps * kSamples + place.lane;
        Softmax<true>(z.out_caps, logits + (i0 + e / layout.iterations) * z.out_caps,
                      e % layout.iterations > 0, b0 + place.lane < z.batch, c,
                      c + z.out_caps * kSamples);
      }
      __syncthreads();
      for (int item = place.warp; item < z.items(); item += place.warps) {
        const int j = item / z.row_blocks;
        const Rows rows(z, place, item % z.row_blocks * kBlockRows);
        for (int n = 0; n < count; ++n) {
          A du[kRows][kEach];
          PredictionGradient(z, place, rows, j, products + n * one, vectors + b0,
                             layout.iterations, du);
          const int64_t matrix = n * z.matrices + j * z.matrix;
          AddGradients(z, place, rows, tile_weights + matrix, x + n * x_size, du,
                       item == place.warp, b0 == 0,
                       input_sums + (place.warp * layout.tile + n) * x_size,
                       weights_sums + matrix);
        }
      }
      for (int e = place.warp; e < count * z.out_caps; e += place.warps) {
        const int n = e / z.out_caps, j = e % z.out_caps;
        A sum = 0;
        for (int r = 0; r < layout.iterations; ++r) {
          sum += products[n * one + ((2 * r + 1) * z.out_caps + j) * kSamples +
                          place.lane];
        }
        sum = SumOverLanes(reinterpret_cast<const A(&)[1]>(sum));
        if (place.lane == 0) logits_sums[e] = b0 > 0 ? logits_sums[e] + sum : sum;
      }
      __syncthreads();
      for (int e = place.lane; e < count * z.depth; e += kLanes) {
        const int n = e / z.depth, k = e % z.depth;
        if (k >= z.in_dim) continue;
        for (int s = place.warp; s < kSamples && b0 + s < z.batch; s += place.warps) {
          A sum = 0;
          for (int w = 0; w < layout.adders; ++w) {
            sum += input_sums[w * layout.tile * x_size + e * kPitch<A> + s];
          }
          Narrow(sum, grad_input + ((b0 + s) * z.in_caps + i0 + n) * z.in_dim + k);
        }
      }
    }
    for (int e = threadIdx.x; e < count * z.out_caps; e += blockDim.x) {
      Narrow(logits_sums[e], grad_logits + i0 * z.out_caps + e);
    }
    if constexpr (!std::is_same_v<S, A>) {
      for (int64_t e = threadIdx.x; e < count * z.matrices; e += blockDim.x) {
        Narrow(weights_sums[e], grad_weights + i0 * z.matrices + e);
      }
    }
  }
}

}  // namespace capsops::capsule_routing::fma

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_GRADIENTS_CUH_
