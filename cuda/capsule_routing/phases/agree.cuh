// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Phases A and B of capsule routing: inner products of predictions with vectors, and
// their softmax over output capsules.
#pragma once

#include "cuda/capsule_routing/phases/tile.cuh"

namespace capsops::capsule_routing::phases {

constexpr int kPassTiles = 2;  // tiles of samples per block of a pass

// Layout of inner products, later shares: [vector][input capsule][output capsule]
// [sample]. kPad puts the four input capsules that a warp stores at once in different
// banks.
struct Shares {
  static constexpr int kPad = 8;
  int samples, step, vector;  // step: stride of an input capsule

  __host__ __device__ Shares(const Sizes& z, int tile_caps, int tiles)
      : samples(tiles * kTileSamples),
        step(z.out_caps * samples + kPad),
        vector(tile_caps * step) {}
};

// A block's input times Debias(), staged in shared memory as [input capsule][sample]
// [pitch], or if kSpills read from global memory.
template <typename S, typename A, bool kSpills, int kTiles>
struct Samples {
  static constexpr int kRows = kTiles * kTileSamples;
  const Sizes& z;
  const S* input;  // starts at the block's first sample
  A* staged;
  int rows;  // samples in the batch; the others are padding

  __device__ Samples(const Sizes& sizes, const S* from, int64_t tile, A* memory)
      : z(sizes),
        input(from + tile * kTileSamples * sizes.in_caps * sizes.in_dim),
        staged(memory),
        rows(static_cast<int>(min(sizes.batch - tile * kTileSamples, int64_t{kRows}))) {
  }

  // Stages `count` input capsules from i0 on, for `more` sets of kRows samples, which
  // are stored `step` elements apart.
  __device__ void Stage(int64_t i0, int count, int more = 1, int step = 0) const {
    if constexpr (!kSpills) {
      constexpr int kWord = 4;
      const int words = z.steps * (kStepK / kWord), all = count * words;
      for (int b = threadIdx.x / kLanes; b < more * kRows; b += blockDim.x / kLanes) {
        A* const to = staged + b / kRows * step + b % kRows * z.pitch;
        const S* const row = input + (b * z.in_caps + i0) * z.in_dim;
        for (int e = threadIdx.x % kLanes; e < all; e += kLanes) {
          const int n = e / words, k = e % words * kWord;
          const S* const from = row + n * z.in_dim + k;
          Pack<A, kWord> word{};
          if (b < rows && z.words) {
            if (k < z.in_dim) LoadPack<kWord>(from, word.at);
          } else if (b < rows) {
#pragma unroll
            for (int i = 0; i < kWord; ++i) {
              if (k + i < z.in_dim) word.at[i] = Widen(from[i]);
            }
          }
#pragma unroll
          for (int i = 0; i < kWord; ++i) word.at[i] *= Debias<A>(kIsSplit<S>);
          *reinterpret_cast<Pack<A, kWord>*>(to + n * kRows * z.pitch + k) = word;
        }
      }
    }
  }
  // Element k of sample b of input capsule i0 + n.
  __device__ A At(int64_t i0, int n, int b, int k) const {
    if constexpr (kSpills) {
      if (b >= rows || k >= z.in_dim) return 0;
      return A{Widen(input[(b * z.in_caps + i0 + n) * z.in_dim + k])} *
             Debias<A>(kIsSplit<S>);
    } else {
      return staged[(n * kRows + b) * z.pitch + k];
    }
  }
  // Elements k and k + 1.
  __device__ Pack<A, 2> Pair(int64_t i0, int n, int b, int k) const {
    if constexpr (kSpills) {
      return {At(i0, n, b, k), At(i0, n, b, k + 1)};
    } else {
      return *reinterpret_cast<const Pack<A, 2>*>(staged + (n * kRows + b) * z.pitch +
                                                  k);
    }
  }
  // Multiplies one staged sample of an input capsule.
  __device__ void Scale(int n, int b, A factor) const {
    A* const row = staged + (n * kRows + b) * z.pitch;
    for (int k = 0; k < z.steps * kStepK; k += 4) {
      Pack<A, 4> word = *reinterpret_cast<Pack<A, 4>*>(row + k);
#pragma unroll
      for (int i = 0; i < 4; ++i) word.at[i] *= factor;
      *reinterpret_cast<Pack<A, 4>*>(row + k) = word;
    }
  }
};

// Left operand from a lane's elements 2t (x) and 2t + 1 (y) of rows g and g + 8. They
// become columns t and t + 4, a permutation of the contraction, so that lanes can load
// pairs.
template <typename A>
__device__ Fragment<4, A> RowFragment(A x0, A y0, A x1, A y1) {
  Fragment<4, A> a;
  a.Set(0, x0);
  a.Set(1, x1);
  a.Set(2, y0);
  a.Set(3, y1);
  return a;
}

// A lane's four weights of each of kBatch input capsules: elements t, t + 4, ... of a
// block of the output capsule, and element g of a step of the input capsule.
template <typename S, typename A, int kK>
struct WeightsBatch {
  S at[kBatch<A>][4];

  // `matrix` points to the weights of the output capsule and the first input capsule.
  __device__ static const S* Begin(const Sizes& z, const Place& place,
                                   const S* matrix) {
    return matrix + place.t * z.in_dim + place.g;
  }
  // Loads at most `count` input capsules, with `begin` from Begin().
  __device__ void Load(const Sizes& z, const Place& place, const S* begin, int count,
                       int block, int k0) {
    const int row = block * kBlockD + place.t;
    const S* from = begin + block * kBlockD * z.in_dim + k0;
#pragma unroll
    for (int s = 0; s < kBatch<A>; ++s) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool has = kK > 0 || (row + 4 * e < z.out_dim && k0 + place.g < z.in_dim);
        at[s][e] = has && s < count ? from[4 * e * z.in_dim] : S{0};
      }
      from += z.matrices;
    }
  }
};

// Adds to `sum` the inner products of vectors with the predictions of `left` <= kRun
// input capsules (from i0 + n0 on), for kEach tiles of samples from m0 on. First
// multiplies vectors by weights, p = v W, and then p by x element by element, and adds
// the row sums, by AddRows(). A lane gets the sums of input capsules t and t + 4.
// load(block) sets `v` to a block of elements of the vectors. `begin` is from
// WeightsBatch::Begin(). If `held`, `batch` already has the weights.
template <typename S, typename A, bool kSpills, int kK, int kTiles, int kVectors,
          int kEach, typename Load>
__device__ void InnerProducts(const Sizes& z, const Place& place,
                              const Samples<S, A, kSpills, kTiles>& x, int64_t i0,
                              int n0, int left, int m0, const Load& load,
                              const Fragment<4, A> (&v)[kVectors][kEach][2],
                              const S* begin, bool held, WeightsBatch<S, A, kK>& batch,
                              A (&sum)[kVectors][kEach][4]) {
  for (int block = 0; block < z.blocks; ++block) {
    load(block);
    for (int k0 = 0; k0 < z.steps * kStepK; k0 += kStepK) {
#pragma unroll 1
      for (int s0 = 0; s0 < left; s0 += kBatch<A>) {
        if (!held) batch.Load(z, place, begin + s0 * z.matrices, left - s0, block, k0);
#pragma unroll
        for (int s = 0; s < kBatch<A>; ++s) {
          if (s0 + s >= left) break;
          Fragment<2, A> b[2];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            b[e / 2].Set(e % 2, Rounded<S>(A{Widen(batch.at[s][e])}));
          }
          // Lane t of a result has columns 2t and 2t + 1, for capsules t and t + 4.
          const int column = s0 + s < 4 ? 2 * (s0 + s) : 2 * (s0 + s) - 7;
          const A one = place.g == column ? 1 : 0;
          // Interleaves the vectors to hide the latency of dependent products.
          A p[kVectors][kEach][4];
          const auto each = [&](const auto& visit) {
#pragma unroll
            for (int q = 0; q < kVectors; ++q) {
#pragma unroll
              for (int m = 0; m < kEach; ++m) visit(q, m);
            }
          };
          each([&](int q, int m) {
            MultiplyAdd<kLeft<S>, kRight<S>, true>(v[q][m][0], b[0], p[q][m]);
          });
          each([&](int q, int m) {
            MultiplyAdd<kLeft<S>, kRight<S>>(v[q][m][1], b[1], p[q][m]);
          });
          Pack<A, 2> inputs[kEach][2];
#pragma unroll
          for (int m = 0; m < kEach; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              inputs[m][h] =
                  x.Pair(i0, n0 + s0 + s, (m0 + m) * kTileSamples + place.g + 8 * h,
                         k0 + 2 * place.t);
            }
          }
          each([&](int q, int m) {
            const auto& [x0, x1] = inputs[m];
            const auto& of = p[q][m];
            AddRows<S>(RowFragment<A>(of[0] * x0.at[0], of[1] * x0.at[1],
                                      of[2] * x1.at[0], of[3] * x1.at[1]),
                       one, sum[q][m]);
          });
        }
      }
    }
  }
}

// Phase A. Writes to `shares` the inner products of kVectors vectors (V plus logits,
// then ds, stored from `vectors` on) with the predictions of `count` input capsules
// from i0 on, for kTiles tiles of samples from `tile` on. Warps split output capsules
// and at most `max_groups` groups of input capsules.
template <typename S, typename A, bool kSpills, int kK, int kTiles, int kVectors>
__device__ void Agree(const Sizes& z, const Place& place,
                      const Samples<S, A, kSpills, kTiles>& x, const S* weights,
                      const S* logits, int64_t i0, int count, const A* vectors,
                      int64_t tile, int max_groups, const Shares& layout, A* shares) {
  // Tiles that share a load of weights; fewer if registers would not suffice.
  constexpr bool kLarge = sizeof(A) == 8 || kRight<S> == Tf32::kSplit;
  constexpr int kEach = kLarge && kVectors > 1 ? 1 : kTiles;
  const int runs = (count + kRun - 1) / kRun, groups = min(runs, max_groups);
  constexpr int kParts = kTiles / kEach;
  for (Item item(place.warp, z.out_caps, groups, kParts); item.third == 0;
       item.Next(place.warps, z.out_caps, groups, kParts)) {
    const int j = item.j, m0 = item.second * kEach;
    const int first = item.first * runs / groups;
    const int end = (item.first + 1) * runs / groups;
    Fragment<4, A> v[kVectors][kEach][2];
#pragma unroll 1
    for (int run = first; run < end; ++run) {
      const int n0 = run * kRun, left = min(count - n0, kRun);
      A sum[kVectors][kEach][4] = {};
      const auto load = [&](int block) {
        if (z.blocks == 1 && run > first) return;
#pragma unroll
        for (int q = 0; q < kVectors; ++q) {
#pragma unroll
          for (int m = 0; m < kEach; ++m) {
            // Tiles past the last repeat it.
            const int64_t at = min(tile + m0 + m, z.tiles - 1);
            LoadVector(
                vectors + q * z.length + VectorIndex(z, at, j, block, 0, place.lane),
                v[q][m]);
          }
        }
      };
      WeightsBatch<S, A, kK> batch;
      const S* const at =
          batch.Begin(z, place, weights + (i0 + n0) * z.matrices + j * z.matrix);
      InnerProducts(z, place, x, i0, n0, left, m0, load, v, at, false, batch, sum);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int n = n0 + place.t + 4 * e;
        if (n >= n0 + left) continue;
        const A logit = Widen(logits[(i0 + n) * z.out_caps + j]);
#pragma unroll
        for (int q = 0; q < kVectors; ++q) {
#pragma unroll
          for (int m = 0; m < kEach; ++m) {
            A* const to = shares + q * layout.vector + n * layout.step +
                          j * layout.samples + (m0 + m) * kTileSamples + place.g;
            const A bias = q > 0 ? A{0} : logit;
            to[0] = sum[q][m][e] / kScale<A> + bias;
            to[8] = sum[q][m][e + 2] / kScale<A> + bias;
          }
        }
      }
    }
  }
}

// Statistics from which GradientsKernel recomputes the softmax of one sample and input
// capsule: c / kScale = exp(logit - maximum) factor, and mean = sum_j c dc.
template <typename A>
struct Moments {
  A maximum, factor, mean;
};
constexpr int kMomentNumbers = 3;

// Phase B of one sample and input capsule. In c and dc, output capsules are kStep
// apart. Replaces the logits c with e = exp(c - maximum). With kGradient, also replaces
// dc with e (dc - mean), where mean is the softmax's mean of dc, and sets `moments`.
// Returns the factor 1 / sum_j e that turns e into the softmax, and applies it to both
// if kWhole.
template <bool kGradient, bool kWhole, int kStep, typename A>
__device__ A Softmax(int out_caps, A* c, A* dc, Moments<A>* moments) {
  constexpr int kPerStep = sizeof(A) == 8 ? 2 : 4;  // elements loaded at once
  constexpr int kSums = 32;  // terms per partial sum, to bound rounding errors
  const auto each = [&](int begin, int end, const auto& visit) {
    int j = begin;
#pragma unroll 1
    for (; j + kPerStep <= end; j += kPerStep) {
      visit(std::integral_constant<int, kPerStep>(), c + j * kStep, dc + j * kStep);
    }
#pragma unroll 1
    for (; j < end; ++j) {
      visit(std::integral_constant<int, 1>(), c + j * kStep, dc + j * kStep);
    }
  };
  A maximum = -INFINITY;
  each(0, out_caps, [&](auto count, A* of_c, A*) {
#pragma unroll
    for (int e = 0; e < count; ++e) maximum = fmax(maximum, of_c[e * kStep]);
  });
  A sum = 0, mean = 0;
  for (int j0 = 0; j0 < out_caps; j0 += kSums) {
    A run = 0, run_mean = 0;
    each(j0, min(j0 + kSums, out_caps), [&](auto count, A* of_c, A* of_dc) {
      A x[count];
      [[maybe_unused]] A y[count];
#pragma unroll
      for (int e = 0; e < count; ++e) {
        x[e] = of_c[e * kStep];
        if constexpr (kGradient) y[e] = of_dc[e * kStep];
      }
#pragma unroll
      for (int e = 0; e < count; ++e) {
        x[e] = ExpBelow(x[e], maximum);
        of_c[e * kStep] = x[e];
        run += x[e];
        if constexpr (kGradient) run_mean += x[e] * y[e];
      }
    });
    sum += run;
    mean += run_mean;
  }
  const A inverse = 1 / sum;
  mean *= inverse;
  if constexpr (kGradient) *moments = {maximum, inverse / kScale<A>, mean};
  if constexpr (kGradient || kWhole) {
    each(0, out_caps, [&](auto count, A* of_c, A* of_dc) {
      A x[count];
      [[maybe_unused]] A y[count];
#pragma unroll
      for (int e = 0; e < count; ++e) {
        x[e] = of_c[e * kStep];
        if constexpr (kWhole) x[e] *= inverse;
        if constexpr (kGradient) y[e] = x[e] * (of_dc[e * kStep] - mean);
      }
#pragma unroll
      for (int e = 0; e < count; ++e) {
        if constexpr (kWhole) of_c[e * kStep] = x[e];
        if constexpr (kGradient) of_dc[e * kStep] = y[e];
      }
    });
  }
  return inverse;
}

// Computes c = factor softmax(logits) of an input capsule, with one warp.
template <typename S, typename A>
__device__ void FirstShares(int out_caps, int lane, const S* logits, A factor, A* c) {
  A maximum = -INFINITY, sum = 0;
  for (int j = lane; j < out_caps; j += kLanes) {
    maximum = fmax(maximum, A{Widen(logits[j])});
  }
  maximum = MaxOfWarp(maximum);
  for (int j = lane; j < out_caps; j += kLanes) {
    c[j] = ExpBelow(A{Widen(logits[j])}, maximum);
    sum += c[j];
  }
  sum = SumOfWarp(sum);
  for (int j = lane; j < out_caps; j += kLanes) c[j] *= factor / sum;
}

}  // namespace capsops::capsule_routing::phases
