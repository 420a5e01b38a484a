// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The last pass of the gradient of capsule routing: from V and ds of every iteration
// and the moments of its softmaxes to the gradients of input, weights and logits. A
// warp has an output capsule and up to kRun input capsules at a time:
//   A: inner products of the predictions with all vectors, as in the other passes;
//   B: c_r and db_r from those and the moments, to the warp's own memory;
//   C: du_hat = sum_r (c_r ds_r + db_r V_r) in FMA, as a left operand of products with
//      weights, which makes the gradient of input, and transposed, of products with
//      input, which makes that of weights.
// The c of the first iteration is the same for all samples, so that of its db only the
// sum over samples is needed, which follows from that of its inner products.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_GRADIENTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_GRADIENTS_CUH_

#include <algorithm>

#include "cuda/capsule_routing/phases/pass.cuh"

namespace capsops::capsule_routing::phases {

constexpr int kGradientWarps = 12;  // of a block
// From one element of an output capsule to the next where a warp transposes: neither
// rows nor columns share banks.
constexpr int kTransposedPitch = 24;
// Iterations after the first that are worked on together.
template <typename A>
constexpr int kTogether = sizeof(A) == 8 ? 1 : 2;

// Where a block of the gradients keeps what, in elements from the beginning of its
// memory, for `tile_caps` input capsules and `tiles` tiles of samples.
struct GradientsLayout {
  int tile_caps, tiles, iterations;
  int parts;         // of input capsules; a warp always has the same one
  int adders;        // warps that then add up gradients of input
  int moments_step;  // from one input capsule to the next
  int input_size;    // of a warp's sums of one tile
  int64_t moments, input_sums, logits_sums, first_sums, first_shares, size;

  GradientsLayout() = default;
  GradientsLayout(const Sizes& z, int of_caps, int of_samples, int of_problem,
                  int of_warps, int together)
      : tile_caps(of_caps),
        tiles(of_samples),
        iterations(of_problem),
        parts(of_warps),
        adders(kGradientWarps / parts),
        moments_step(together * (2 * kTileSamples) + 8),  // on other banks
        input_size(tile_caps * z.steps * (4 * kLanes)) {
    const int64_t caps = int64_t{tile_caps} * z.out_caps;
    const int64_t runs = CeilDivide(CeilDivide(tile_caps, parts), kRun);
    adders = static_cast<int>(std::min<int64_t>(adders, runs * z.out_caps));
    moments = int64_t{tiles} * tile_caps * kTileSamples * z.pitch;
    input_sums = moments + int64_t{tiles} * tile_caps * moments_step;
    logits_sums = input_sums + int64_t{adders} * tiles * input_size;
    first_sums = logits_sums + caps;
    first_shares = first_sums + caps;
    size = (first_shares + caps + 3) / 4 * 4;
  }
};

// A warp's own part of shared memory.
template <typename A>
struct WarpMemory {
  static constexpr int kPairs = kTogether<A>;
  A transposed[kBlockD * kTransposedPitch];
  // Of an input capsule and rows g and g + 8: what V and ds of each iteration are
  // multiplied by.
  Pack<A, 4> factors[kRun][8][kPairs];
};

// A pair of elements of a row of weights' gradient, of which `count` are there.
template <typename A>
__device__ void LoadPair(const A* from, int count, bool aligned, A* x, A* y) {
  *x = *y = 0;
  if (aligned && count >= 2) {
    const auto pair = *reinterpret_cast<const Pack<A, 2>*>(from);
    *x = pair.at[0];
    *y = pair.at[1];
  } else {
    if (count >= 1) *x = from[0];
    if (count >= 2) *y = from[1];
  }
}
template <typename A>
__device__ void StorePair(A x, A y, int count, bool aligned, A* to) {
  if (aligned && count >= 2) {
    *reinterpret_cast<Pack<A, 2>*>(to) = {x, y};
  } else {
    if (count >= 1) to[0] = x;
    if (count >= 2) to[1] = y;
  }
}

// Phase B of `left` input capsules from n0 on, and output capsule j: `memory` gets the
// factors of `there` iterations' vectors, 1 / kScale times, from the inner products
// `sum` and the `moments`. Adds up the gradients of the logits of a lane's samples of
// input capsules t and t + 4.
template <typename A, int kVectors>
__device__ void MakeFactors(const Place& place, const A (&logits)[2], int n0, int left,
                            int there, const A (&sum)[kVectors][1][4], const A* moments,
                            int moments_step, WarpMemory<A>* memory,
                            A (&grad_logits)[2]) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (4 * e >= left) break;
    const int n = place.t + 4 * e;
    if (n < left) {
#pragma unroll
      for (int r = 0; r < kTogether<A>; ++r) {
        Pack<A, 4> factors{};
        if (r < there) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const auto own = *reinterpret_cast<const Moments<A>*>(
                moments + (n0 + n) * moments_step +
                (r * kTileSamples + place.g + 8 * h) * 2);
            const A x = sum[2 * r + 1][0][e + 2 * h] / kScale<A> + logits[e];
            const A dc = sum[2 * r + 2][0][e + 2 * h] / kScale<A>;
            const A c = ExpBelow(x, own.offset);
            const A db = c * (dc - own.mean);
            factors.at[h] = db;
            factors.at[2 + h] = c;
            grad_logits[e] += db;
          }
        }
        memory->factors[n][place.g][r] = factors;
      }
    }
  }
}

// Adds up numbers of all g of a lane's t.
template <typename A, int N>
__device__ void SumOverRows(A (&x)[N]) {
#pragma unroll
  for (int offset = 4; offset < kLanes; offset *= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] += __shfl_xor_sync(~0u, x[n], offset);
  }
}

// Phase C of `left` input capsules from n0 on, output capsule j and a block of its
// elements: adds to the warp's `input_sums` [input capsule][step][lane][4] and to
// `weights_sums`, or writes where `fresh`. `v` are the vectors, and `first_shares`,
// where not null, what the first of them is multiplied by.
template <typename S, typename A, bool kSpills, int kK, int kVectors>
__device__ void AddGradients(const Sizes& z, const Place& place,
                             const Samples<S, A, kSpills, 1>& x, const S* weights,
                             int64_t i0, int n0, int left, int j, int block,
                             const Numbers<4, A> (&v)[kVectors][1][2],
                             const A* first_shares, bool fresh, WarpMemory<A>* memory,
                             A* input_sums, A* weights_sums) {
  A* const transposed = memory->transposed;
  const int row = block * kBlockD;
  const S* matrix = weights + (i0 + n0) * z.matrices + j * z.matrix;
  A* weights_sum = weights_sums + n0 * z.matrices + j * z.matrix;
#pragma unroll 1
  for (int s = 0; s < left; ++s, matrix += z.matrices, weights_sum += z.matrices) {
    const int n = n0 + s;
    S w[4];
    A sum[4];
    int there_k[2];
    const auto load = [&](int k0) {
      const int k = k0 + place.g, k2 = k0 + 2 * place.t;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int d = row + place.t + 4 * e;
        const bool has = kK > 0 || (d < z.out_dim && k < z.in_dim);
        w[e] = has ? matrix[d * z.in_dim + k] : S{0};
        sum[e] = 0;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int d = row + h * 8 + place.g;
        there_k[h] = kK > 0 ? 2 : d < z.out_dim ? z.in_dim - k2 : 0;
        if (fresh) continue;
        LoadPair(weights_sum + d * z.in_dim + k2, there_k[h], z.pairs, &sum[2 * h],
                 &sum[2 * h + 1]);
      }
    };
    load(0);
    A du[2][4] = {};
    if (first_shares != nullptr) {
      const A c = first_shares[n * z.out_caps];
#pragma unroll
      for (int e = 0; e < 8; ++e) du[e / 4][e % 4] = c * v[0][0][e / 4].at[e % 4];
    }
#pragma unroll
    for (int r = 0; r < kTogether<A>; ++r) {
      const Pack<A, 4> factors = memory->factors[s][place.g][r];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          du[h][e] += factors.at[e % 2] * v[2 * r + 1][0][h].at[e];
          du[h][e] += factors.at[2 + e % 2] * v[2 * r + 2][0][h].at[e];
        }
      }
    }
    Numbers<4, A> by_sample[2], by_element[2];
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        by_sample[h].Set(e, du[h][e]);
        transposed[(h * 8 + place.t + e / 2 * 4) * kTransposedPitch + e % 2 * 8 +
                   place.g] = du[h][e];
      }
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const auto pair = *reinterpret_cast<const Pack<A, 2>*>(
          transposed + (place.g + e % 2 * 8) * kTransposedPitch + e / 2 * 8 +
          2 * place.t);
      by_element[e / 2].Set(e % 2, pair.at[0]);
      by_element[e / 2].Set(e % 2 + 2, pair.at[1]);
    }
    for (int k0 = 0; k0 < z.steps * kStepK; k0 += kStepK) {
      if (k0 > 0) load(k0);
      // Gradient of weights: rows are elements of the output capsule.
      const int k = k0 + place.g, k2 = k0 + 2 * place.t;
      A by_input[4];
      A* const to =
          input_sums + ((n * z.steps + k0 / kStepK) * kLanes + place.lane) * 4;
      *reinterpret_cast<Pack<A, 4>*>(by_input) = *reinterpret_cast<Pack<A, 4>*>(to);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Numbers<2, A> b;
        b.Set(0, Rounded<S>(A{Widen(w[2 * h])}));
        b.Set(1, Rounded<S>(A{Widen(w[2 * h + 1])}));
        MultiplyAdd(by_sample[h], b, by_input);
        b.Set(0, x.At(i0, n, h * 8 + 2 * place.t, k));
        b.Set(1, x.At(i0, n, h * 8 + 2 * place.t + 1, k));
        MultiplyAdd(by_element[h], b, sum);
      }
      *reinterpret_cast<Pack<A, 4>*>(to) = *reinterpret_cast<Pack<A, 4>*>(by_input);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        StorePair(sum[2 * h], sum[2 * h + 1], there_k[h], z.pairs,
                  weights_sum + (row + h * 8 + place.g) * z.in_dim + k2);
      }
    }
  }
}

// A block has some input capsules at a time, all output capsules and all samples, a
// tile after the other, so that it alone adds up the gradients of its weights and
// logits. It keeps what it works on in shared memory or, where kSpills, in its
// layout.size elements of `scratch`. Where S cannot hold sums, those of the gradient of
// weights go to `weights_scratch`. At `vectors` are V and ds of each iteration, of
// which the first is zero and not read; at `moments` those of the second iteration, and
// so on.
template <typename S, typename A, bool kSpills, int kK>
__global__ void __launch_bounds__(kGradientWarps* kLanes, 1)
    GradientsKernel(Sizes z, GradientsLayout layout, const S* __restrict__ input,
                    const S* __restrict__ weights, const S* __restrict__ logits,
                    const A* __restrict__ vectors,
                    const Moments<A>* __restrict__ moments, S* __restrict__ grad_input,
                    S* grad_weights, S* __restrict__ grad_logits, A* scratch,
                    A* weights_scratch) {
  constexpr int kPairs = kTogether<A>, kVectors = 1 + 2 * kPairs;
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
  const int x_size = layout.tile_caps * kTileSamples * z.pitch;  // of one tile
  const int moments_size = layout.tile_caps * layout.moments_step;
  const int part = place.warp % layout.parts, adder = place.warp / layout.parts;
  A* const own_sums = input_sums + adder * layout.tiles * layout.input_size;
  WaitForKernelBefore();
  for (int64_t i0 = int64_t{blockIdx.x} * layout.tile_caps; i0 < z.in_caps;
       i0 += int64_t{gridDim.x} * layout.tile_caps) {
    const int count = static_cast<int>(min(int64_t{layout.tile_caps}, z.in_caps - i0));
    const S* const of_block = weights + i0 * z.matrices;
    A* weights_sums;
    if constexpr (std::is_same_v<S, A>) {
      weights_sums = grad_weights + i0 * z.matrices;
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
        if (!first) __syncthreads();
        for (int e = threadIdx.x; e < there * tiles * count * kTileSamples;
             e += blockDim.x) {
          const int b = e % kTileSamples, n = e / kTileSamples % count;
          const int m = e / kTileSamples / count % tiles;
          const int r = e / kTileSamples / count / tiles;
          *reinterpret_cast<Moments<A>*>(staged_moments + m * moments_size +
                                         n * layout.moments_step +
                                         (r * kTileSamples + b) * 2) =
              moments[(((r0 + r - 1) * z.tiles + tile + m) * z.in_caps + i0 + n) *
                          kTileSamples +
                      b];
        }
        __syncthreads();
        // That of the iteration before r0, then V and ds of it and those after it.
        const A* const group = vectors + int64_t{2 * r0 - 1} * z.length;
        const int begin = part * count / layout.parts;
        const int end = (part + 1) * count / layout.parts;
        const int runs = (end - begin + kRun - 1) / kRun;
#pragma unroll 1
        for (int at = adder; at < z.out_caps * runs;
             at += kGradientWarps / layout.parts) {
          const int run = at / z.out_caps, j = at % z.out_caps;
          const int n0 = begin + run * (end - begin) / runs;
          const int left = begin + (run + 1) * (end - begin) / runs - n0;
          A of_logits[2], grad_logits[4] = {};
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int n = n0 + min(place.t + 4 * e, left - 1);
            of_logits[e] = Widen(logits[(i0 + n) * z.out_caps + j]);
          }
          WeightsBatch<S, A, kK> batch;
          batch.Load(z, place, of_block, n0, n0 + left, j, 0, 0);
#pragma unroll 1
          for (int m = 0; m < tiles; ++m) {
            Samples<S, A, kSpills, 1> of_tile(z, input, tile + m, memory + m * x_size);
            Numbers<4, A> v[kVectors][1][2];
            const auto load = [&](int block) {
#pragma unroll
              for (int q = 0; q < kVectors; ++q) {
                LoadVector(group + min(q, 2 * there) * z.length +
                               VectorIndex(z, tile + m, j, block, 0, place.lane),
                           v[q][0]);
              }
            };
            A sum[kVectors][1][4] = {};
            InnerProducts(z, place, of_tile, of_block, i0, n0, left, n0, n0 + left, j,
                          0, load, v, batch, sum);
            A sums[2] = {};
            MakeFactors(place, of_logits, n0, left, there, sum,
                        staged_moments + m * moments_size, layout.moments_step, own,
                        sums);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              grad_logits[e] += sums[e];
              grad_logits[2 + e] += sum[0][0][e] + sum[0][0][e + 2];
            }
            __syncwarp();
            for (int block = 0; block < z.blocks; ++block) {
              if (z.blocks > 1) load(block);
              AddGradients<S, A, kSpills, kK>(
                  z, place, of_tile, weights, i0, n0, left, j, block, v,
                  first ? first_shares + j : nullptr, tile + m == 0 && first, own,
                  own_sums + m * layout.input_size, weights_sums);
            }
            __syncwarp();
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
    // Everyone is done with the sums.
    __syncthreads();
    for (int n = place.warp; n < count; n += place.warps) {
      const A* const c = first_shares + n * z.out_caps;
      const A* const dc = first_sums + n * z.out_caps;
      A mean = 0;
      for (int j = place.lane; j < z.out_caps; j += kLanes) mean += c[j] * dc[j];
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        mean += __shfl_xor_sync(~0u, mean, offset);
      }
      mean *= kScale<A>;
      for (int j = place.lane; j < z.out_caps; j += kLanes) {
        const A sum = logits_sums[n * z.out_caps + j] + c[j] * (dc[j] - mean);
        Narrow(sum * kScale<A>, grad_logits + (i0 + n) * z.out_caps + j);
      }
    }
    if constexpr (!std::is_same_v<S, A>) {
      for (int64_t e = threadIdx.x; e < count * z.matrices; e += blockDim.x) {
        Narrow(weights_sums[e], grad_weights + i0 * z.matrices + e);
      }
    }
  }
}

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_GRADIENTS_CUH_
