// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The last pass of the gradient of capsule routing, in the phases of pass.cuh: from V
// and ds of every iteration to the gradients of input, weights and logits.
//   A: inner products of the predictions with all vectors.
//   B: the softmaxes, c_r and db_r.
//   C: du_hat = sum_r (c_r ds_r + db_r V_r) in FMA, as a left operand of products with
//      weights, which makes the gradient of input, and transposed, of products with
//      input, which makes that of weights.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_GRADIENTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_GRADIENTS_CUH_

#include "cuda/capsule_routing/phases/pass.cuh"

namespace capsops::capsule_routing::phases {

// Vectors that are worked on together: those of the first three iterations, the first
// of which has no V, and then of two at a time.
constexpr int kVectors = 5;
constexpr int kGradientWarps = 12;  // of a block
// From one element of an output capsule to the next where a warp transposes: neither
// rows nor columns share banks.
constexpr int kTransposedPitch = 24;

// Where a block of the gradients keeps what, in elements from the beginning of its
// memory, for `tile_caps` input capsules and one tile of samples.
struct GradientsLayout {
  int tile_caps, iterations;
  int groups;  // of input capsules that warps share out in phase A, and
  int parts;   // in phase C
  int adders;  // warps that then add up gradients of input
  int64_t shares, input_sums, logits_sums, first_shares, size;

  GradientsLayout() = default;
  GradientsLayout(const Sizes& z, int of_tile, int of_problem, int of_items)
      : tile_caps(of_tile), iterations(of_problem), parts(of_items) {
    const int64_t items = int64_t{parts} * z.items();
    adders = items < kGradientWarps ? static_cast<int>(items) : kGradientWarps;
    const int vectors = 2 * iterations - 1 < kVectors ? 2 * iterations - 1 : kVectors;
    const int64_t caps = int64_t{tile_caps} * z.out_caps;
    shares = int64_t{tile_caps} * kTileSamples * z.pitch;
    input_sums =
        (shares + vectors * (caps * kTileSamples + int64_t{tile_caps} * Shares::kPad) +
         3) /
        4 * 4;
    logits_sums = input_sums + int64_t{adders} * tile_caps * z.steps * (4 * kLanes);
    first_shares = logits_sums + caps;
    size = (first_shares + caps + 3) / 4 * 4;
  }
  // Of a warp, always in shared memory, before what else is there.
  static constexpr int kTransposed = kBlockD * kTransposedPitch;
};

// dc becomes c (dc - sum_j c dc / factor) for one sample, where c is the same for all
// samples, and `factor` times the softmax.
template <typename A>
__device__ void FirstGradient(int out_caps, A factor, const A* c, A* dc) {
  A mean = 0;
  for (int j1 = 0; j1 < out_caps; j1 += kLanes) {  // rounding grows less
    A run = 0;
#pragma unroll 4
    for (int j = j1; j < min(j1 + kLanes, out_caps); ++j) {
      run += c[j] * dc[j * kTileSamples];
    }
    mean += run;
  }
  mean /= factor;
#pragma unroll 4
  for (int j = 0; j < out_caps; ++j) {
    A* const at = dc + j * kTileSamples;
    *at = c[j] * (*at - mean);
  }
}

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

// Phase C of one tile of samples: adds to the warp's `input_sums`
// [input capsule][step][lane][4] and to `weights_sums`, or writes where `fresh`.
// `there` vectors exist, and where `first`, the first of them is ds of the first
// iteration, whose c is `first_shares`.
template <typename S, typename A, bool kSpills, int kK>
__device__ void AddGradients(const Sizes& z, const Place& place,
                             const Samples<S, A, kSpills, 1>& x, const S* weights,
                             int64_t i0, int count, const A* vectors, int there,
                             bool first, int64_t tile, const Shares& layout, int parts,
                             const A* shares, const A* first_shares, bool fresh,
                             A* transposed, A* input_sums, A* weights_sums) {
  for (Item item(place, z.out_caps, z.blocks, parts); item.third == 0;
       item.Next(place, z.out_caps, z.blocks, parts)) {
    const int j = item.j, block = item.first;
    const int n_begin = item.second * count / parts;
    const int n_end = (item.second + 1) * count / parts;
    Pack<A, 4> v[kVectors][2];
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        v[q][h] = *reinterpret_cast<const Pack<A, 4>*>(
            vectors + min(q, there - 1) * z.length +
            VectorIndex(z, tile, j, block, h, place.lane));
      }
    }
    // Of each vector, where what it is multiplied by lies: c of ds, and db of V.
    const A* factors[kVectors];
    const int odd = first ? 1 : 0;
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      factors[q] = shares + (((q + odd) ^ 1) - odd) * layout.vector +
                   n_begin * layout.step + j * layout.samples + place.g;
    }
    if (first) factors[0] = first_shares + n_begin * z.out_caps + j;
    const int first_step = first ? z.out_caps : layout.step;
    const int first_row = first ? 0 : 8;
#pragma unroll 1
    for (int n = n_begin; n < n_end; ++n) {
      A du[2][4] = {};
#pragma unroll
      for (int q = 0; q < kVectors; ++q) {
        if (q < there) {
          const A row[2] = {factors[q][0], factors[q][q == 0 ? first_row : 8]};
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int e = 0; e < 4; ++e) du[h][e] += row[e % 2] * v[q][h].at[e];
          }
        }
        factors[q] += q == 0 ? first_step : layout.step;
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
      const S* const matrix = weights + (i0 + n) * z.matrices + j * z.matrix;
      A* const weights_sum = weights_sums + n * z.matrices + j * z.matrix;
      const int row = block * kBlockD;
      for (int k0 = 0; k0 < z.steps * kStepK; k0 += kStepK) {
        const int k = k0 + place.g, k2 = k0 + 2 * place.t;
        S w[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int d = row + place.t + 4 * e;
          const bool has = kK > 0 || (d < z.out_dim && k < z.in_dim);
          w[e] = has ? matrix[d * z.in_dim + k] : S{0};
        }
        // Gradient of weights: rows are elements of the output capsule.
        A sum[4] = {};
        int there_k[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int d = row + h * 8 + place.g;
          there_k[h] = kK > 0 ? 2 : d < z.out_dim ? z.in_dim - k2 : 0;
          if (fresh) continue;
          LoadPair(weights_sum + d * z.in_dim + k2, there_k[h], z.pairs, &sum[2 * h],
                   &sum[2 * h + 1]);
        }
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
}

// A block has some input capsules at a time, all output capsules and all samples, a
// tile after the other, so that it alone adds up the gradients of its weights and
// logits. It keeps what it works on in shared memory or, where kSpills, in its
// layout.size elements of `scratch`. Where S cannot hold sums, those of the gradient of
// weights go to `weights_scratch`.
template <typename S, typename A, bool kSpills, int kK>
__global__ void __launch_bounds__(kGradientWarps* kLanes, 1)
    GradientsKernel(Sizes z, GradientsLayout layout, const S* __restrict__ input,
                    const S* __restrict__ weights, const S* __restrict__ logits,
                    const A* __restrict__ vectors, S* __restrict__ grad_input,
                    S* grad_weights, S* __restrict__ grad_logits, A* scratch,
                    A* weights_scratch) {
  // Operands of as many vectors at a time stay in registers.
  constexpr int kAtOnce = sizeof(A) == 8 ? 3 : kVectors;
  extern __shared__ float4 shared[];
  z.SetInDim<kK>();
  const Place place;
  A* const transposed =
      reinterpret_cast<A*>(shared) + place.warp * GradientsLayout::kTransposed;
  A* memory;
  if constexpr (kSpills) {
    memory = scratch + blockIdx.x * layout.size;
  } else {
    memory = reinterpret_cast<A*>(shared) + place.warps * GradientsLayout::kTransposed;
  }
  A* const shares = memory + layout.shares;
  A* const input_sums = memory + layout.input_sums;
  A* const logits_sums = memory + layout.logits_sums;
  A* const first_shares = memory + layout.first_shares;
  const int input_size = layout.tile_caps * z.steps * (4 * kLanes);  // of a warp's sums
  const Shares places(z, layout.tile_caps, 1);
  const int all = 2 * layout.iterations - 1;  // vectors after the first, which is zero
  WaitForKernelBefore();
  for (int64_t i0 = int64_t{blockIdx.x} * layout.tile_caps; i0 < z.in_caps;
       i0 += int64_t{gridDim.x} * layout.tile_caps) {
    const int count = static_cast<int>(min(int64_t{layout.tile_caps}, z.in_caps - i0));
    A* weights_sums;
    if constexpr (std::is_same_v<S, A>) {
      weights_sums = grad_weights + i0 * z.matrices;
    } else {
      weights_sums = weights_scratch + blockIdx.x * layout.tile_caps * z.matrices;
    }
    __syncthreads();
    for (int n = place.warp; n < count; n += place.warps) {
      FirstShares(z.out_caps, place.lane, logits + (i0 + n) * z.out_caps, kUncut<A>,
                  first_shares + n * z.out_caps);
    }
    for (int64_t tile = 0; tile < z.tiles; ++tile) {
      const Samples<S, A, kSpills, 1> x(z, input, tile, memory);
      __syncthreads();
      x.Stage(i0, count);
      for (int q0 = 0; q0 < all; q0 += q0 > 0 ? kVectors - 1 : kVectors) {
        const bool first = q0 == 0;
        const int there = min(all - q0, first ? kVectors : kVectors - 1);
        const A* const group = vectors + (q0 + 1) * z.length;
        __syncthreads();
        const int logical = first ? 1 : 0;
        Agree<S, A, kSpills, kK, 1, kAtOnce>(z, place, x, weights, logits, i0, count,
                                             group, z.length, there, logical, tile,
                                             layout.groups, places, shares);
        if constexpr (kAtOnce < kVectors) {
          if (there > kAtOnce) {
            Agree<S, A, kSpills, kK, 1, kVectors - kAtOnce>(
                z, place, x, weights, logits, i0, count, group + kAtOnce * z.length,
                z.length, there - kAtOnce, logical + kAtOnce, tile, layout.groups,
                places, shares + kAtOnce * places.vector);
          }
        }
        __syncthreads();
        const int iterations = (there + 1) / 2;
        for (int e = threadIdx.x; e < count * kTileSamples * iterations;
             e += blockDim.x) {
          const int b = e % kTileSamples, n = e / kTileSamples % count;
          const int r = e / kTileSamples / count;
          A* const c = shares + (2 * r - first) * places.vector + n * places.step + b;
          // What stands for no sample must not add to a sum over samples.
          if (b >= x.rows) {
            for (int j = 0; j < z.out_caps; ++j) {
              if (!first || r > 0) c[j * kTileSamples] = 0;
              c[places.vector + j * kTileSamples] = 0;
            }
          } else if (first && r == 0) {
            FirstGradient(z.out_caps, kUncut<A>, first_shares + n * z.out_caps,
                          c + places.vector);
          } else {
            Softmax<true, true, kTileSamples>(z.out_caps, kUncut<A>, c,
                                              c + places.vector);
          }
        }
        __syncthreads();
        for (int e = threadIdx.x; e < count * z.out_caps; e += blockDim.x) {
          A sum = 0;
          for (int q = first ? 0 : 1; q < there; q += 2) {
            const A* const db = shares + q * places.vector +
                                e / z.out_caps * places.step +
                                e % z.out_caps * kTileSamples;
#pragma unroll 8
            for (int b = 0; b < kTileSamples; ++b) {
              sum += db[(b + threadIdx.x) % kTileSamples];  // from different banks
            }
          }
          logits_sums[e] = tile > 0 || q0 > 0 ? logits_sums[e] + sum : sum;
        }
        A* const own_sums = input_sums + place.warp * input_size;
        if (first && place.warp < layout.adders) {
          for (int e = place.lane * 4; e < input_size; e += kLanes * 4) {
            *reinterpret_cast<Pack<A, 4>*>(own_sums + e) = {};
          }
          __syncwarp();
        }
        AddGradients<S, A, kSpills, kK>(z, place, x, weights, i0, count, group, there,
                                        first, tile, places, layout.parts, shares,
                                        first_shares, tile == 0 && first, transposed,
                                        own_sums, weights_sums);
      }
      __syncthreads();
      const int depth = z.steps * kStepK;
      for (int b = place.warp; b < x.rows; b += place.warps) {
        S* const row =
            grad_input + ((tile * kTileSamples + b) * z.in_caps + i0) * z.in_dim;
        for (int e = place.lane; e < count * depth; e += kLanes) {
          const int n = e / depth, k = e % depth;
          if (k >= z.in_dim) continue;
          const A* const from =
              input_sums +
              ((n * z.steps + k / kStepK) * kLanes + b % 8 * 4 + k % kStepK / 2) * 4 +
              b / 8 * 2 + k % 2;
          A sum = 0;
          for (int w = 0; w < layout.adders; ++w) sum += from[w * input_size];
          Narrow(sum, row + n * z.in_dim + k);
        }
      }
    }
    // Everyone is done with the sums.
    __syncthreads();
    for (int e = threadIdx.x; e < count * z.out_caps; e += blockDim.x) {
      Narrow(logits_sums[e] / kUncut<A>, grad_logits + i0 * z.out_caps + e);
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
