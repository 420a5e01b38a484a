// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A warp's part of the last backward pass, for one output capsule and up to kRun input
// capsules:
//   A: inner products of the predictions with all vectors, as in the other passes;
//   B: c_r and db_r from the inner products and the moments, to the warp's own part of
//      shared memory;
//   C: du_hat = sum_r (c_r ds_r + db_r V_r) by FMA. On tensor cores, du_hat times
//      weights is the gradient of input, and du_hat transposed times input that of
//      weights.
#pragma once

#include "cuda/capsule_routing/phases/pass.cuh"

namespace capsops::capsule_routing::phases {

// Stride between elements of an output capsule in the buffer in which a warp transposes
// du_hat. Neither stores nor loads have bank conflicts.
constexpr int kTransposedPitch = 24;
// Iterations after the first that are processed together.
template <typename A>
constexpr int kPerStep = sizeof(A) == 8 ? 1 : 2;

// A warp's own part of shared memory.
template <typename A>
struct WarpMemory {
  static constexpr int kPairs = kPerStep<A>;
  A transposed[kBlockD * kTransposedPitch];
  // Factors of V and ds of each iteration, per input capsule and rows g and g + 8.
  Pack<A, 4> factors[kRun][8][kPairs];
};

// Load and store a pair of elements of a row of grad_weights, of which `count` exist.
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

// Phase B of `left` input capsules from n0 on and one output capsule. Writes to
// `memory` the factors of `there` iterations' vectors over kScale, from the inner
// products `sum` and the `moments`, and adds up the gradients of the logits over a
// lane's samples of input capsules t and t + 4.
template <typename A, int kVectors>
__device__ void MakeFactors(const Place& place, const A (&logits)[2], int n0, int left,
                            int there, const A (&sum)[kVectors][1][4], const A* moments,
                            int moments_step, WarpMemory<A>* memory,
                            A (&grad_logits)[4]) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (4 * e >= left) break;
    const int n = place.t + 4 * e;
    if (n < left) {
#pragma unroll
      for (int r = 0; r < kPerStep<A>; ++r) {
        Pack<A, 4> factors{};
        if (r < there) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const auto own = *reinterpret_cast<const Moments<A>*>(
                moments + (n0 + n) * moments_step +
                (r * kTileSamples + place.g + 8 * h) * kMomentNumbers);
            const A x = sum[2 * r + 1][0][e + 2 * h] / kScale<A> + logits[e];
            const A dc = sum[2 * r + 2][0][e + 2 * h] / kScale<A>;
            const A c = ExpBelow(x, own.maximum) * own.factor;
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

// Sums over the lanes with the same t.
template <typename A, int N>
__device__ void SumOverRows(A (&x)[N]) {
#pragma unroll
  for (int offset = 4; offset < kLanes; offset *= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] += __shfl_xor_sync(~0u, x[n], offset);
  }
}

// Phase C of `left` input capsules from n0 on, an output capsule and a block of its
// elements. Adds to the warp's `input_sums` [input capsule][step][lane][4], and adds to
// or, if `overwrite`, stores at `weights_sum`. `v` are the vectors; the first is
// multiplied by `first_shares`, if not null. `matrix` points to the weights of the
// first input capsule.
template <typename S, typename A, bool kSpills, int kK, int kVectors>
__device__ void AddGradients(const Sizes& z, const Place& place,
                             const Samples<S, A, kSpills, 1>& x, const S* matrix,
                             int64_t i0, int n0, int left, int block,
                             const Fragment<4, A> (&v)[kVectors][1][2],
                             const A* first_shares, bool overwrite,
                             WarpMemory<A>* memory, A* input_sums, A* weights_sum) {
  A* const transposed = memory->transposed;
  const int row = block * kBlockD;
  const bool has_first = first_shares != nullptr;
  A* to = input_sums + (n0 * z.steps * kLanes + place.lane) * 4;
  S w[4];
  const auto load_weights = [&](int k0) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int d = row + place.t + 4 * e, k = k0 + place.g;
      const bool has = kK > 0 || (d < z.out_dim && k < z.in_dim);
      w[e] = has ? matrix[d * z.in_dim + k] : S{0};
    }
  };
  load_weights(0);
#pragma unroll 1
  for (int s = 0; s < left; ++s, weights_sum += z.matrices) {
    const int n = n0 + s;
    A sum[4];
    int there_k[2];
    const auto load = [&](int k0) {
      const int k2 = k0 + 2 * place.t;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int d = row + h * 8 + place.g;
        there_k[h] = kK > 0 ? 2 : d < z.out_dim ? z.in_dim - k2 : 0;
        sum[2 * h] = sum[2 * h + 1] = 0;
        if (overwrite) continue;
        LoadPair(weights_sum + d * z.in_dim + k2, there_k[h], z.pairs, &sum[2 * h],
                 &sum[2 * h + 1]);
      }
    };
    load(0);
    A du[2][4] = {};
    if (has_first) {
      const A c = *first_shares;
      first_shares += z.out_caps;
#pragma unroll
      for (int e = 0; e < 8; ++e) du[e / 4][e % 4] = c * v[0][0][e / 4].at[e % 4];
    }
#pragma unroll
    for (int r = 0; r < kPerStep<A>; ++r) {
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
    Fragment<4, A> by_sample[2], by_element[2];
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
      // The rows of by_input, the gradient of input, are samples. Those of sum, the
      // gradient of weights, are elements of the output capsule.
      const int k = k0 + place.g, k2 = k0 + 2 * place.t;
      A by_input[4];
      *reinterpret_cast<Pack<A, 4>*>(by_input) = *reinterpret_cast<Pack<A, 4>*>(to);
      Fragment<2, A> weights[2];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weights[e / 2].Set(e % 2, Rounded<S>(A{Widen(w[e])}));
      }
      // Prefetches the next weights.
      if (k0 + kStepK < z.steps * kStepK) {
        load_weights(k0 + kStepK);
      } else if (s + 1 < left) {
        matrix += z.matrices;
        load_weights(0);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        MultiplyAdd<kLeft<S>, kRight<S>>(by_sample[h], weights[h], by_input);
        Fragment<2, A> b;
        b.Set(0, x.At(i0, n, h * 8 + 2 * place.t, k));
        b.Set(1, x.At(i0, n, h * 8 + 2 * place.t + 1, k));
        MultiplyAdd<kLeft<S>, kRight<S>>(by_element[h], b, sum);
      }
      *reinterpret_cast<Pack<A, 4>*>(to) = *reinterpret_cast<Pack<A, 4>*>(by_input);
      to += 4 * kLanes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        StorePair(sum[2 * h], sum[2 * h + 1], there_k[h], z.pairs,
                  weights_sum + (row + h * 8 + place.g) * z.in_dim + k2);
      }
    }
  }
}

}  // namespace capsops::capsule_routing::phases
