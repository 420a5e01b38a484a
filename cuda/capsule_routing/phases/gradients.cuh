// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The last backward pass of capsule routing: computes the gradients of input, weights
// and logits from V, ds and softmax moments of every iteration. In the first iteration
// c is the same for all samples, and only the sum of db over samples is needed, which
// follows from the summed inner products. A warp has one output capsule and a few input
// capsules at a time (gradients_warp.cuh).
#pragma once

#include <algorithm>

#include "cuda/capsule_routing/phases/gradients_warp.cuh"

namespace capsops::capsule_routing::phases {

constexpr int kGradientWarps = 12;  // warps per block

// A block's working set for `tile_caps` input capsules and `tiles` tiles of samples:
// offsets in elements.
struct GradientsLayout {
  int tile_caps, tiles, iterations;
  int parts;         // parts of the input capsules; each warp works on one of them
  int adders;        // warps per part, each with its own sums of grad_input
  int moments_step;  // elements from one input capsule to the next
  int input_size;    // elements of a warp's sums of one tile
  int64_t moments, input_sums, logits_sums, first_sums, first_shares, size;

  GradientsLayout() = default;
  GradientsLayout(const Sizes& z, int of_caps, int of_samples, int of_problem,
                  int of_warps, int together)
      : tile_caps(of_caps),
        tiles(of_samples),
        iterations(of_problem),
        parts(of_warps),
        adders(std::min(kGradientWarps / parts, z.out_caps)),
        moments_step(together * (kMomentNumbers * kTileSamples) + 8) {  // spreads banks
    const int64_t caps = int64_t{tile_caps} * z.out_caps;
    const int64_t input = int64_t{tile_caps} * z.steps * (4 * kLanes);
    input_size = static_cast<int>(input);
    moments = int64_t{tiles} * tile_caps * kTileSamples * z.pitch;
    input_sums = moments + int64_t{tiles} * tile_caps * moments_step;
    logits_sums = input_sums + input * adders * tiles;
    first_sums = logits_sums + caps;
    first_shares = first_sums + caps;
    size = (first_shares + caps + 3) / 4 * 4;
  }
};

// Computes grad_input, grad_weights and grad_logits of the input capsules `caps`. A
// block has some of these at a time, with all output capsules and samples, so that it
// alone accumulates the gradients of its weights and logits. Its working set is in
// shared memory, or if kSpills in its layout.size elements of `scratch`. If S cannot
// hold sums, grad_weights is summed in `weights_scratch`. `vectors` are V and ds of
// each iteration; the first V is zero and not read. `moments` start with the second
// iteration.
template <typename S, typename A, bool kSpills, int kK>
__global__ void __launch_bounds__(kGradientWarps* kLanes, 1)
    GradientsKernel(Sizes z, GradientsLayout layout, Caps caps,
                    const S* __restrict__ input, const S* __restrict__ weights,
                    const S* __restrict__ logits, const A* __restrict__ vectors,
                    const Moments<A>* __restrict__ moments, S* __restrict__ grad_input,
                    S* grad_weights, S* __restrict__ grad_logits, A* scratch,
                    A* weights_scratch) {
  constexpr int kPairs = kPerStep<A>, kVectors = 1 + 2 * kPairs;
  extern __shared__ float4 shared[];
  z.SetInDim<kK>();
  const Place place;
  auto* const own = reinterpret_cast<WarpMemory<A>*>(shared) + place.warp;
  A* memory;
  if constexpr (kSpills) {
    memory = scratch + blockIdx.x * layout.size;
  } else {
    memory =
        reinterpret_cast<A*>(reinterpret_cast<WarpMemory<A>*>(shared) + kGradientWarps);
  }
  A* const staged_moments = memory + layout.moments;
  A* const input_sums = memory + layout.input_sums;
  A* const logits_sums = memory + layout.logits_sums;
  A* const first_sums = memory + layout.first_sums;
  A* const first_shares = memory + layout.first_shares;
  const int x_size = layout.tile_caps * kTileSamples * z.pitch;  // per tile
  const int moments_size = layout.tile_caps * layout.moments_step;

  const int part = place.warp % layout.parts, adder = place.warp / layout.parts;
  A* const own_sums = input_sums + adder * layout.tiles * layout.input_size;
  GridDependencySynchronize();
  for (int64_t i0 = caps.begin + int64_t{blockIdx.x} * layout.tile_caps;
       i0 < caps.end(); i0 += int64_t{gridDim.x} * layout.tile_caps) {
    const int count = static_cast<int>(min(int64_t{layout.tile_caps}, caps.end() - i0));
    A* weights_sums;
    if constexpr (kHoldsSums<S, A>) {
      weights_sums = reinterpret_cast<A*>(grad_weights) + i0 * z.matrices;
    } else {
      weights_sums = weights_scratch + blockIdx.x * layout.tile_caps * z.matrices;
    }
    __syncthreads();
    for (int n = place.warp; n < count; n += place.warps) {
      FirstShares(z.out_caps, place.lane, logits + (i0 + n) * z.out_caps,
                  A{1} / kScale<A>, first_shares + n * z.out_caps);
    }
    for (int e = threadIdx.x; e < count * z.out_caps; e += blockDim.x) {
      logits_sums[e] = first_sums[e] = 0;
    }
    for (int64_t tile = 0; tile < z.tiles; tile += layout.tiles) {
      const int tiles = static_cast<int>(min(int64_t{layout.tiles}, z.tiles - tile));
      Samples<S, A, kSpills, 1> x(z, input, tile, memory);
      const int rows = static_cast<int>(
          min(z.batch - tile * kTileSamples, int64_t{kTileSamples} * tiles));
      __syncthreads();
      x.rows = rows;
      x.Stage(i0, count, tiles, x_size);
      for (int e = threadIdx.x * 4;
           e < layout.adders * layout.tiles * layout.input_size; e += blockDim.x * 4) {
        *reinterpret_cast<Pack<A, 4>*>(input_sums + e) = {};
      }
      for (int r0 = 1; r0 == 1 || r0 < layout.iterations; r0 += kPairs) {
        const bool first = r0 == 1;
        const int there = min(layout.iterations - r0, kPairs);
        if (!first) __syncthreads();  // staged_moments is overwritten next
        for (int e = threadIdx.x; e < there * tiles * count * kTileSamples;
             e += blockDim.x) {
          const int b = e % kTileSamples, n = e / kTileSamples % count;
          const int m = e / kTileSamples / count % tiles;
          const int r = e / kTileSamples / count / tiles;
          *reinterpret_cast<Moments<A>*>(staged_moments + m * moments_size +
                                         n * layout.moments_step +
                                         (r * kTileSamples + b) * kMomentNumbers) =
              moments[(((r0 + r - 1) * z.tiles + tile + m) * caps.count + i0 -
                       caps.begin + n) *
                          kTileSamples +
                      b];
        }
        __syncthreads();
        // Starts with ds of the iteration before r0, followed by V and ds from r0 on.
        const A* const group = vectors + int64_t{2 * r0 - 1} * z.length;
        const int begin = part * count / layout.parts;
        const int end = (part + 1) * count / layout.parts;
        const int runs = (end - begin + kRun - 1) / kRun;
#pragma unroll 1
        for (Item item(adder, z.out_caps, runs);
             item.second == 0 && adder < layout.adders && runs > 0;
             item.Next(layout.adders, z.out_caps, runs)) {
          const int j = item.j;
          const int n0 = begin + item.first * (end - begin) / runs;
          const int left = begin + (item.first + 1) * (end - begin) / runs - n0;
          A of_logits[2], grad_logits[4] = {};
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int n = n0 + min(place.t + 4 * e, left - 1);
            of_logits[e] = Widen(logits[(i0 + n) * z.out_caps + j]);
          }
          const S* const matrix = weights + (i0 + n0) * z.matrices + j * z.matrix;
          WeightsBatch<S, A, kK> batch;
          const S* const at = batch.Begin(z, place, matrix);
          // Keeps the weights for all tiles if they are a single batch.
          const bool single = left <= kBatch<A> && z.blocks * z.steps == 1;
          const A* of_vectors = group + VectorIndex(z, tile, j, 0, 0, place.lane);
#pragma unroll 1
          for (int m = 0; m < tiles; ++m) {
            const Samples<S, A, kSpills, 1> of_tile(z, input, tile + m,
                                                    memory + m * x_size);
            Fragment<4, A> v[kVectors][1][2];
            const auto load = [&](int block) {
              const A* from = of_vectors + block * (8 * kLanes);
#pragma unroll
              for (int q = 0; q < kVectors; ++q) {
                LoadVector(from, v[q][0]);
                if (q < 2 * there) from += z.length;
              }
            };
            A sum[kVectors][1][4] = {};
            InnerProducts(z, place, of_tile, i0, n0, left, 0, load, v, at,
                          single && m > 0, batch, sum);
            MakeFactors(place, of_logits, n0, left, there, sum,
                        staged_moments + m * moments_size, layout.moments_step, own,
                        grad_logits);
            grad_logits[2] += sum[0][0][0] + sum[0][0][2];
            grad_logits[3] += sum[0][0][1] + sum[0][0][3];
            __syncwarp();
            for (int block = 0; block < z.blocks; ++block) {
              if (z.blocks > 1) load(block);
              AddGradients<S, A, kSpills, kK>(
                  z, place, of_tile, matrix, i0, n0, left, block, v,
                  first ? first_shares + n0 * z.out_caps + j : nullptr,
                  tile + m == 0 && first, own, own_sums + m * layout.input_size,
                  weights_sums + n0 * z.matrices + j * z.matrix);
            }
            __syncwarp();
            of_vectors += VectorIndex(z, 1, 0, 0, 0, 0);
          }
          SumOverRows(grad_logits);
          if (place.g == 0) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (place.t + 4 * e >= left) continue;
              const int to = (n0 + place.t + 4 * e) * z.out_caps + j;
              logits_sums[to] += grad_logits[e];
              if (first) first_sums[to] += grad_logits[2 + e] / kScale<A>;
            }
          }
          __syncwarp();
        }
      }
      __syncthreads();
      // Adds the warps' sums of grad_input, which are in the layout of product results.
      const int depth = z.steps * kStepK;
      for (int b = place.warp; b < rows; b += place.warps) {
        S* const row =
            grad_input + ((tile * kTileSamples + b) * z.in_caps + i0) * z.in_dim;
        const A* const of_tile = input_sums + b / kTileSamples * layout.input_size +
                                 b % 8 * 16 + b / 8 % 2 * 2;
        for (int e = place.lane; e < count * depth; e += kLanes) {
          const int n = e / depth, k = e % depth;
          if (k >= z.in_dim) continue;
          const A* const from = of_tile + (n * z.steps + k / kStepK) * (4 * kLanes) +
                                k % kStepK / 2 * 4 + k % 2;
          A sum = 0;
          for (int w = 0; w < layout.adders; ++w) {
            sum += from[w * layout.tiles * layout.input_size];
          }
          Narrow(sum, row + n * z.in_dim + k);
        }
      }
    }

    __syncthreads();
    for (int n = place.warp; n < count; n += place.warps) {
      const A* const c = first_shares + n * z.out_caps;
      const A* const dc = first_sums + n * z.out_caps;
      A mean = 0;
      for (int j = place.lane; j < z.out_caps; j += kLanes) mean += c[j] * dc[j];
      mean = SumOfWarp(mean) * kScale<A>;
      for (int j = place.lane; j < z.out_caps; j += kLanes) {
        const A sum = logits_sums[n * z.out_caps + j] + c[j] * (dc[j] - mean);
        Narrow(sum * kScale<A>, grad_logits + (i0 + n) * z.out_caps + j);
      }
    }
    if constexpr (!kHoldsSums<S, A>) {
      for (int64_t e = threadIdx.x; e < count * z.matrices; e += blockDim.x) {
        Narrow(weights_sums[e], grad_weights + i0 * z.matrices + e);
      }
    }
  }
}

}  // namespace capsops::capsule_routing::phases
