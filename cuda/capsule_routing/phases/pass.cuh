// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over the input capsules. It computes the weighted sums of predictions for
// one iteration of capsule routing, or of its gradient. A block has some input capsules
// and kPassTiles tiles of samples, and works in three phases:
//   A: inner products <u_hat, V> = sum_k x (sum_d V W), of V and weights on tensor
//      cores, stored in shared memory;
//   B: the softmax, one thread per sample and input capsule;
//   C: sum_i (c x) W on tensor cores, which also accumulate over input capsules unless
//      operands are split.
// Input x is staged in shared memory; weights W and V go from global memory to
// registers. If shared memory is too small (kSpills), inner products go to scratch in
// global memory, and input is not staged.
#pragma once

#include "cuda/capsule_routing/phases/agree.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::phases {

// Work split of a pass over the input capsules `caps`. A block takes `tile_caps` of
// them at a time, and divides these among its warps. A warp's item is
//   in phase A: an output capsule and one of `groups` groups of input capsules;
//   in phase C: kBlockD elements of an output capsule, `each` tiles of samples, and one
//      of `parts` parts of the input capsules.
struct Cut {
  int tile_caps, groups, each, parts;
  Caps caps;
};

// Phase C. Adds to `partial`, or stores there if `overwrite`, the predictions of
// `count` input capsules times shares. With kFirst, shares are the same for all samples
// and are stored as [input capsule][output capsule]. With several parts, their sums go
// to `part_sums` [part][item][half][lane][4].
template <typename S, typename A, bool kSpills, bool kFirst, int kK, int kEach>
__device__ void Sum(const Sizes& z, const Place& place,
                    const Samples<S, A, kSpills, kPassTiles>& x, const S* weights,
                    int64_t i0, int count, int64_t tile, int parts,
                    const Shares& layout, const A* shares, bool overwrite, A* partial,
                    A* part_sums) {
  const int tiles = static_cast<int>(min(z.tiles - tile, int64_t{kPassTiles}));
  const int sets = kEach == kPassTiles ? 1 : tiles;
  for (Item item(place.warp, z.out_caps, z.blocks, sets); item.third < parts;
       item.Next(place.warps, z.out_caps, z.blocks, sets)) {
    const int j = item.j, block = item.first, m0 = item.second, part = item.third;
    const int n_end = (part + 1) * count / parts;
    const int number = ((part * sets + m0) * z.blocks + block) * z.out_caps + j;
    const int64_t tile_step = VectorIndex(z, 1, 0, 0, 0, 0);
    A* const to = parts > 1
                      ? part_sums + number * (8 * kLanes) + place.lane * 4
                      : partial + VectorIndex(z, tile + m0, j, block, 0, place.lane);
    A sum[kEach][2][4] = {};
#pragma unroll
    for (int m = 0; m < kEach; ++m) {
      if (overwrite || m0 + m >= tiles) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<Pack<A, 4>*>(sum[m][h]) =
            *reinterpret_cast<const Pack<A, 4>*>(to + m * tile_step + h * 4 * kLanes);
      }
    }
    const int row = block * kBlockD + place.g;
    for (int k0 = 0; k0 < z.steps * kStepK; k0 += kStepK) {
      const int k = k0 + 2 * place.t;
      const int n_begin = part * count / parts;
      const S* at =
          weights + (i0 + n_begin) * z.matrices + j * z.matrix + row * z.in_dim + k;
#pragma unroll 1
      for (int n0 = n_begin; n0 < n_end; n0 += kBatch<A>) {
        S w[kBatch<A>][2][2];
#pragma unroll
        for (int s = 0; s < kBatch<A>; ++s) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const bool has =
                n0 + s < n_end && (kK > 0 || (row + 8 * h < z.out_dim && k < z.in_dim));
            const S* const from = at + 8 * h * z.in_dim;
            if (z.pairs) {
              Pack<S, 2> pair{};
              if (has) pair = *reinterpret_cast<const Pack<S, 2>*>(from);
              w[s][h][0] = pair.at[0];
              w[s][h][1] = pair.at[1];
            } else {
              w[s][h][0] = has ? from[0] : S{0};
              w[s][h][1] = has && k + 1 < z.in_dim ? from[1] : S{0};
            }
          }
          at += z.matrices;
        }
#pragma unroll
        for (int s = 0; s < kBatch<A>; ++s) {
          const int n = n0 + s;
          if (n >= n_end) break;
          [[maybe_unused]] const A c = kFirst ? shares[n * z.out_caps + j] : A{1};
          Fragment<2, A> b[2];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            A number = Widen(w[s][e / 2][e % 2]);
            if constexpr (kFirst) number *= c;
            // The product with c is not exact in TF32, whatever S is.
            using Cut = std::conditional_t<kFirst && !kIsSplit<S>, float, S>;
            b[e / 2].Set(e % 2, Rounded<Cut>(number));
          }
          [[maybe_unused]] const A* const share = shares + n * layout.step +
                                                  j * layout.samples +
                                                  m0 * kTileSamples + place.g;
#pragma unroll
          for (int m = 0; m < kEach; ++m) {
            const int sample = (m0 + m) * kTileSamples + place.g;
            const auto x0 = x.Pair(i0, n, sample, k);
            const auto x1 = x.Pair(i0, n, sample + 8, k);
            A c0 = 1, c1 = 1;
            if constexpr (!kFirst) {
              c0 = share[m * kTileSamples];
              c1 = share[m * kTileSamples + 8];
            }
            const auto a = RowFragment<A>(c0 * x0.at[0], c0 * x0.at[1], c1 * x1.at[0],
                                          c1 * x1.at[1]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              // In the first iteration, c is multiplied into the right operand.
              constexpr Tf32 kA = kFirst ? kRight<S> : kLeft<S>;
              constexpr Tf32 kB = kFirst ? kLeft<S> : kRight<S>;
              MultiplyAdd<kA, kB>(a, b[h], sum[m][h]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kEach; ++m) {
      if (m0 + m >= tiles) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<Pack<A, 4>*>(to + m * tile_step + h * 4 * kLanes) =
            *reinterpret_cast<const Pack<A, 4>*>(sum[m][h]);
      }
    }
  }
}

// Adds the sums of all parts, and writes the totals to `partial`.
template <typename A>
__device__ void SumParts(const Sizes& z, int64_t tile, int parts, const A* part_sums,
                         A* partial) {
  const int tiles = static_cast<int>(min(z.tiles - tile, int64_t{kPassTiles}));
  const int items = z.items() * tiles;
  for (int e = threadIdx.x; e < items * 2 * kLanes; e += blockDim.x) {
    const int item = e / (2 * kLanes), half = e / kLanes % 2, lane = e % kLanes;
    Pack<A, 4> sum{};
    for (int p = 0; p < parts; ++p) {
      const auto part = *reinterpret_cast<const Pack<A, 4>*>(
          part_sums + (p * items + item) * (8 * kLanes) + e % (2 * kLanes) * 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) sum.at[n] += part.at[n];
    }
    *reinterpret_cast<Pack<A, 4>*>(
        partial + VectorIndex(z, tile + item / z.items(), item % z.out_caps,
                              item / z.out_caps % z.blocks, half, lane)) = sum;
  }
}

enum class Pass { kFirst, kSums, kGradient };

// Writes sum_i w u_hat over slice blockIdx.y of the input capsules to
// partial[blockIdx.y], for the kPassTiles tiles of samples of blockIdx.x, with
//   w = c                                            (kFirst, kSums)
//   w = c (dc - sum_j c dc), dc = <u_hat, ds>        (kGradient)
// where c is the softmax of logits + <u_hat, V>, or of logits (kFirst). `vectors` are
// V, then ds. Unless `coefficients` is null, writes c there instead. With kGradient,
// also writes `moments` [tile][input capsule][sample], unless null. The block works in
// shared memory, or if kSpills in its `scratch_each` elements of `scratch`.
template <typename S, typename A, Pass kPass, bool kSpills, int kK>
__global__ void __launch_bounds__(kPassWarps* kLanes, 1)
    PassKernel(Sizes z, Cut cut, const S* __restrict__ input,
               const S* __restrict__ weights, const S* __restrict__ logits,
               const A* __restrict__ vectors, A* __restrict__ partial,
               S* __restrict__ coefficients, Moments<A>* __restrict__ moments,
               A* scratch, int64_t scratch_each) {
  constexpr bool kGradient = kPass == Pass::kGradient, kFirst = kPass == Pass::kFirst;
  constexpr int kVectors = kGradient ? 2 : 1;
  constexpr int kRows = kPassTiles * kTileSamples;
  extern __shared__ float4 shared[];
  z.SetInDim<kK>();
  const Place place;
  const int64_t tile = int64_t{blockIdx.x} * kPassTiles;
  const int64_t begin = cut.caps.begin + blockIdx.y * cut.caps.count / gridDim.y;
  const int64_t end =
      cut.caps.begin + (blockIdx.y + int64_t{1}) * cut.caps.count / gridDim.y;
  const Shares layout(z, cut.tile_caps, kPassTiles);
  A* const part_sums = reinterpret_cast<A*>(shared);
  A* staged = part_sums +
              (cut.parts > 1 ? cut.parts * kPassTiles * z.items() : 0) * (8 * kLanes);
  A* shares = staged + cut.tile_caps * kRows * z.pitch;
  if constexpr (kSpills) {
    shares = scratch + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * scratch_each;
  }
  const Samples<S, A, kSpills, kPassTiles> x(z, input, tile, staged);
  if (coefficients == nullptr) partial += blockIdx.y * z.length;
  bool waited = false;
  for (int64_t i0 = begin; i0 < end; i0 += cut.tile_caps) {
    const int count = static_cast<int>(min(int64_t{cut.tile_caps}, end - i0));
    if (i0 > begin) __syncthreads();
    x.Stage(i0, count);
    if constexpr (kFirst) {
      for (int n = place.warp; n < count; n += place.warps) {
        FirstShares(z.out_caps, place.lane, logits + (i0 + n) * z.out_caps, A{1},
                    shares + n * z.out_caps);
      }
    }
    if (!waited) GridDependencySynchronize();
    waited = true;
    __syncthreads();
    if constexpr (!kFirst) {
      Agree<S, A, kSpills, kK, kPassTiles, kVectors>(z, place, x, weights, logits, i0,
                                                     count, vectors, tile, cut.groups,
                                                     layout, shares);
      __syncthreads();
    }
    if (!kFirst || coefficients != nullptr) {
      for (int e = threadIdx.x; e < count * kRows; e += blockDim.x) {
        const int n = e / kRows, b = e % kRows;
        A* const c = shares + (kFirst ? n * z.out_caps : n * layout.step + b);
        A inverse = 1;
        if constexpr (!kFirst) {
          Moments<A> own;
          inverse = Softmax<kGradient, kSpills, kRows>(z.out_caps, c, c + layout.vector,
                                                       &own);
          if (kGradient && moments != nullptr && tile + b / kTileSamples < z.tiles) {
            const int64_t row = (tile + b / kTileSamples) * cut.caps.count;
            moments[(row + i0 + n - cut.caps.begin) * kTileSamples + b % kTileSamples] =
                own;
          }
        }
        if (coefficients == nullptr) {
          if constexpr (!kSpills) x.Scale(n, b, inverse);
        } else if (b < x.rows) {
          for (int j = 0; j < z.out_caps; ++j) {
            Narrow(c[kFirst ? j : j * kRows] * (kSpills ? A{1} : inverse),
                   coefficients +
                       ((tile * kTileSamples + b) * z.in_caps + i0 + n) * z.out_caps +
                       j);
          }
        }
      }
      if (coefficients != nullptr) continue;
      __syncthreads();
    }
    if (i0 + cut.tile_caps >= end) TriggerDependentLaunch();
    const A* const c = shares + (kVectors - 1) * layout.vector;
    if (cut.each == 1) {
      Sum<S, A, kSpills, kFirst, kK, 1>(z, place, x, weights, i0, count, tile,
                                        cut.parts, layout, c, i0 == begin, partial,
                                        part_sums);
    } else {
      Sum<S, A, kSpills, kFirst, kK, kPassTiles>(z, place, x, weights, i0, count, tile,
                                                 1, layout, c, i0 == begin, partial,
                                                 part_sums);
    }
  }
  if (coefficients == nullptr && cut.parts > 1) {
    __syncthreads();
    SumParts(z, tile, cut.parts, part_sums, partial);
  }
}

}  // namespace capsops::capsule_routing::phases
