// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The last backward pass of capsule routing on tensor cores: computes the gradients of
// input, weights and logits from V and ds of every iteration. A team of warps has one
// or two input capsules and all samples, so that gradients of weights and logits
// accumulate in registers; each warp has four output capsules.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/capsule_routing/mma/gradients_team.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::mma {

// For each tile of samples a team computes the predictions and all their inner
// products, then the softmaxes, and then, element by element,
//   du_hat = sum_r (c_r ds_r + db_r V_r),
// which is the left operand of two products: du_hat times weights is grad_input, and
// du_hat transposed times input is grad_weights. `vectors` are V and ds, alternating,
// of kIterations iterations. With kAdd, the results are added to the gradients.
// Without, the first V is zero and omitted: c_1 is the same for all samples, and the
// sum of db_1 over samples follows from the summed inner products. Weights stay in
// shared memory. The vectors and input of a tile are staged there, double-buffered if
// `stages` is 2.
template <typename S, int D, int K, Tf32 kTf32, bool kAdd>
__global__ void __launch_bounds__(kGradientWarps* kLanes, 1)
    GradientsKernel(Sizes z, int teams, int stages, int iterations,
                    const S* __restrict__ input, const S* __restrict__ weights,
                    const S* __restrict__ logits, const float4* __restrict__ vectors,
                    S* __restrict__ grad_input, S* __restrict__ grad_weights,
                    S* __restrict__ grad_logits) {
  using Layout = GradientsShared<S, D, K>;
  constexpr int M = D / 2, KS = K / kStepK, R = kIterations, kCaps = Layout::kCaps;
  constexpr int kFirst = kAdd ? 0 : 1, kVectors = 2 * R - kFirst;
  constexpr int kStep = M * kLanes;  // staged vectors are [group][vector][m][lane]
  extern __shared__ float4 shared[];
  char* const memory = reinterpret_cast<char*>(shared);
  const Layout layout{z.groups, teams, kVectors};
  const Place place;
  const int warp = threadIdx.x / kLanes;
  const int group = warp % z.groups, team = warp / z.groups;
  const int team_threads = z.groups * kLanes, thread = threadIdx.x % team_threads;
  char* const team_shared = memory + stages * layout.stage() + team * layout.team();
  constexpr int kStepW = Layout::kWeights;  // stride of [capsule][KS]
  float* const w =
      reinterpret_cast<float*>(team_shared) + group * (kCaps * KS * kStepW);
  // Exchanged by the team's warps: rows of inner products, then partial grad_input.
  float4* const exchange = reinterpret_cast<float4*>(team_shared + layout.weights());
  const Rows rows = layout.rows();
  float* const my_c = rows.Get(exchange, place.g, group * kGroupCaps + place.t);
  float* const my_db =
      rows.Get(exchange + rows.length(), place.g, group * kGroupCaps + place.t);
  const int64_t block_i0 = int64_t{blockIdx.x} * teams * kCaps;
  const int64_t i0 = block_i0 + team * kCaps;
  const int caps = max(min(z.in_caps - i0, int64_t{kCaps}), int64_t{0});
  const int j = group * kGroupCaps + place.t;
  const bool real = j < z.out_caps;
  const int64_t matrices = int64_t{z.out_caps} * (D * K);  // weights per input capsule

  // Offsets of a lane's weights for product 0, as operand with input and with du_hat.
  const int by_column = WeightPlace(2 * place.t, place.g / 2, place.g % 2);
  const int by_row[2] = {WeightPlace(place.g, place.t, 0),
                         WeightPlace(place.g, place.t, 1)};
  const int64_t input_row = z.in_caps * K;
  S* const grad_row = grad_input + place.g * input_row + i0 * K + 2 * place.t;
  constexpr int kWord = 16 / sizeof(S), kRowThreads = 16;  // copy a row
  const int row_words = min(int64_t{teams} * kCaps, z.in_caps - block_i0) * K / kWord;
  const auto start_copy = [&](int64_t tile) {
    if (tile < z.tiles) {
      const int length = layout.vector_length();
      float4* const to =
          reinterpret_cast<float4*>(memory + tile % stages * layout.stage());
      const float4* const from = vectors + (kFirst * z.tiles + tile) * length;
      for (int e = threadIdx.x; e < length; e += blockDim.x) {
        float4* const place = to + e / kStep * (kStep * (kVectors - 1)) + e;
#pragma unroll
        for (int q = 0; q < kVectors; ++q) {
          __pipeline_memcpy_async(place + q * kStep, from + q * (z.tiles * length) + e,
                                  sizeof(float4));
        }
      }
      S* const samples = reinterpret_cast<S*>(to + kVectors * length);
      for (int b = threadIdx.x / kRowThreads; b < kTileSamples;
           b += blockDim.x / kRowThreads) {
        const S* const row = input +
                             min(tile * kTileSamples + b, z.batch - 1) * input_row +
                             block_i0 * K;
        for (int e = threadIdx.x % kRowThreads; e < row_words; e += kRowThreads) {
          __pipeline_memcpy_async(samples + b * layout.row() + e * kWord,
                                  row + e * kWord, 16);
        }
      }
    }
    __pipeline_commit();
  };

  float bias[kCaps], sum_logits[kCaps] = {}, sum_weights[M / 2][kCaps][KS][4] = {};
#pragma unroll
  for (int n = 0; n < kCaps; ++n) {
    // Repeats the last input capsule for padding.
    const int64_t i = min(i0 + n, z.in_caps - 1);
    bias[n] = real ? Widen(logits[i * z.out_caps + j]) : -INFINITY;
#pragma unroll
    for (int e = 4 * place.lane; e < 4 * D * K; e += 4 * kLanes) {
      const int own_j = e / (D * K), d = e / K % D, k = e % K;
      const S* const matrix =
          weights + i * matrices + min(group * 4 + own_j, z.out_caps - 1) * (D * K);
      const auto four = *reinterpret_cast<const Pack<S, 4>*>(matrix + e % (D * K));
      *reinterpret_cast<float4*>(w + (n * KS + k / kStepK) * kStepW +
                                 WeightPlace(k % kStepK, own_j, d)) = {
          Prepare<kTf32>(Widen(four.at[0])), Prepare<kTf32>(Widen(four.at[1])),
          Prepare<kTf32>(Widen(four.at[2])), Prepare<kTf32>(Widen(four.at[3]))};
    }
  }
  // For the first iteration: c, and sums over samples of <u_hat, ds>, later of db.
  float first_c[kCaps], first_db[kCaps] = {};
  const auto first_softmaxes = [&] {
#pragma unroll
    for (int n = 0; n < kCaps; ++n) {
      my_c[rows.At(n, 0)] = my_c[rows.At(n, 1)] = bias[n];
      my_db[rows.At(n, 0)] = my_db[rows.At(n, 1)] = first_db[n];
    }
    NamedBarrierSync(team + 1, team_threads);
    rows.Softmaxes<true, true>(kCaps, thread, exchange);
    NamedBarrierSync(team + 1, team_threads);
#pragma unroll
    for (int n = 0; n < kCaps; ++n) {
      first_c[n] = my_c[rows.At(n, 0)];
      first_db[n] = my_db[rows.At(n, 0)];
    }
  };
  if constexpr (!kAdd) first_softmaxes();
  GridDependencySynchronize();
  if (stages > 1) start_copy(0);
#pragma unroll 1
  for (int64_t tile = 0; tile < z.tiles; ++tile) {
    if (stages > 1) {
      __pipeline_wait_prior(0);
      __syncthreads();  // also guards the buffer that is overwritten next
      start_copy(tile + 1);
    } else {
      __syncthreads();
      start_copy(tile);
      __pipeline_wait_prior(0);
      __syncthreads();
    }
    const char* const stage = memory + tile % stages * layout.stage();
    const float4* const staged = reinterpret_cast<const float4*>(stage) +
                                 group * (kVectors * kStep) + place.lane;
    const S* const x =
        reinterpret_cast<const S*>(stage + kVectors * layout.vector_length() *
                                               static_cast<int>(sizeof(float4))) +
        team * kCaps * K;
    const auto v = [&](int r, int m) {
      return staged[(2 * r - kFirst) * kStep + m * kLanes];
    };
    const auto ds = [&](int r, int m) {
      return staged[(2 * r + 1 - kFirst) * kStep + m * kLanes];
    };
    // Inner products <u_hat, V_r> + logits, later c_r, and <u_hat, ds_r>, later db_r.
    float c[R][kCaps][2], db[R][kCaps][2];
    const auto item = [&](int r, int n, int h) {
      return rows.At((r - kFirst) * kCaps + n, h);
    };
    {
      Operand<4, kTf32> a[kCaps][KS];
#pragma unroll
      for (int n = 0; n < kCaps; ++n) {
#pragma unroll
        for (int s = 0; s < KS; ++s) {
          const S* const at =
              x + place.g * layout.row() + n * K + s * kStepK + 2 * place.t;
          const Pack<S, 2> pairs[2] = {LoadPair(at), LoadPair(at + 8 * layout.row())};
          a[n][s] = SamplesOperand<kTf32>(pairs);
        }
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int n = 0; n < kCaps; ++n) {
          c[r][n][0] = c[r][n][1] = bias[n];
          db[r][n][0] = db[r][n][1] = 0;
        }
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
        float u[kCaps][4] = {};
#pragma unroll
        for (int n = 0; n < kCaps; ++n) {
#pragma unroll
          for (int s = 0; s < KS; ++s) {
            const float2 pair = *reinterpret_cast<const float2*>(
                w + (n * KS + s) * kStepW + m * 64 + by_column);
            Operand<2, kTf32> b;
            SetFinite<kTf32>(0, pair.x, &b);
            SetFinite<kTf32>(1, pair.y, &b);
            Multiply(a[n][s], b, u[n]);
          }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float4 ds_r = ds(r, m);
#pragma unroll
          for (int n = 0; n < kCaps; ++n) AddProducts(u[n], ds_r, db[r][n]);
          if (r < kFirst) continue;
          const float4 v_r = v(r, m);
#pragma unroll
          for (int n = 0; n < kCaps; ++n) AddProducts(u[n], v_r, c[r][n]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kCaps; ++n) {
#pragma unroll
      for (int r = kFirst; r < R; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          my_c[item(r, n, h)] = c[r][n][h];
          my_db[item(r, n, h)] = db[r][n][h];
        }
      }
      if constexpr (!kAdd) first_db[n] += db[0][n][0] + db[0][n][1];
    }
    NamedBarrierSync(team + 1, team_threads);
    rows.Softmaxes<true, true>((R - kFirst) * kCaps, thread, exchange);
    NamedBarrierSync(team + 1, team_threads);
#pragma unroll
    for (int n = 0; n < kCaps; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (!kAdd) c[0][n][h] = first_c[n];
#pragma unroll
        for (int r = kFirst; r < R; ++r) {
          c[r][n][h] = my_c[item(r, n, h)];
          db[r][n][h] = my_db[item(r, n, h)];
        }
      }
    }
    // Clears c and db of padded samples and iterations. Their vectors are zero, but
    // u_hat may be infinite.
    if (iterations < R || (tile + 1) * kTileSamples > z.batch) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool none = tile * kTileSamples + h * 8 + place.g >= z.batch;
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int n = 0; n < kCaps; ++n) {
            if (none || r >= iterations) c[r][n][h] = db[r][n][h] = 0;
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kCaps; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (r >= kFirst) sum_logits[n] += db[r][n][h];
          // Compensates the truncation by the products below.
          c[r][n][h] = Prepare<kTf32>(c[r][n][h]);
          db[r][n][h] = Prepare<kTf32>(db[r][n][h]);
        }
      }
    }
    NamedBarrierSync(team + 1, team_threads);  // `exchange` is overwritten next
    // Loads input as the right operand of the gradient of weights.
    Operand<2, kTf32> samples[kCaps][KS][2];
#pragma unroll
    for (int n = 0; n < kCaps; ++n) {
#pragma unroll
      for (int s = 0; s < KS; ++s) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const S* const at =
              x + (h * 8 + 2 * place.t) * layout.row() + n * K + s * kStepK + place.g;
          SetFinite<kTf32>(0, Prepare<kTf32>(Widen(at[0])), &samples[n][s][h]);
          SetFinite<kTf32>(1, Prepare<kTf32>(Widen(at[layout.row()])),
                           &samples[n][s][h]);
        }
      }
    }
    float sum_input[kCaps][KS][4] = {};
#pragma unroll
    for (int pair = 0; pair < M / 2; ++pair) {
      // du_hat of the pair's two m, transposed: left operands of two products.
      Operand<4, kScaled<kTf32>> transposed[kCaps][2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = 2 * pair + e;
        float du[kCaps][4] = {};
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float4 ds_r = ds(r, m);
#pragma unroll
          for (int n = 0; n < kCaps; ++n) AddScaled(c[r][n], ds_r, du[n]);
          if (r < kFirst) continue;
          const float4 v_r = v(r, m);
#pragma unroll
          for (int n = 0; n < kCaps; ++n) AddScaled(db[r][n], v_r, du[n]);
        }
#pragma unroll
        for (int n = 0; n < kCaps; ++n) {
          Operand<4, kScaled<kTf32>> a;
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            SetFinite<kTf32>(q % 2 * 2 + q / 2, du[n][q], &a);
          }
#pragma unroll
          for (int s = 0; s < KS; ++s) {
            Operand<2, kTf32> b;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
              SetFinite<kTf32>(q, w[(n * KS + s) * kStepW + m * 64 + by_row[q]], &b);
            }
            Multiply(a, b, sum_input[n][s]);
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float2 both = Transpose(du[n][2 * h], du[n][2 * h + 1]);
            SetFinite<kTf32>(e, both.x, &transposed[n][h]);
            SetFinite<kTf32>(2 + e, both.y, &transposed[n][h]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kCaps; ++n) {
#pragma unroll
        for (int s = 0; s < KS; ++s) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            Accumulate(transposed[n][h], samples[n][s][h], sum_weights[pair][n][s]);
          }
        }
      }
    }
    // Adds grad_input over the team's warps, which have different output capsules.
#pragma unroll
    for (int n = 0; n < kCaps; ++n) {
#pragma unroll
      for (int s = 0; s < KS; ++s) {
        exchange[((group * kCaps + n) * KS + s) * kLanes + place.lane] =
            *reinterpret_cast<float4*>(sum_input[n][s]);
      }
    }
    NamedBarrierSync(team + 1, team_threads);
    for (int e = group; e < caps * KS; e += z.groups) {
      float4 total{};
#pragma unroll 4
      for (int g = 0; g < z.groups; ++g) {
        Add(exchange[(g * (kCaps * KS) + e) * kLanes + place.lane], &total);
      }
      // Product e has elements 8 e to 8 e + 7 of the team's input capsules.
      S* const to = grad_row + tile * kTileSamples * input_row + e * kStepK;
      if (tile * kTileSamples + place.g < z.batch) AddPair(total.x, total.y, kAdd, to);
      if (tile * kTileSamples + place.g + 8 < z.batch) {
        AddPair(total.z, total.w, kAdd, to + 8 * input_row);
      }
    }
  }
  if constexpr (!kAdd) {
#pragma unroll
    for (int n = 0; n < kCaps; ++n) first_db[n] = SumOverRows(first_db[n]);
    NamedBarrierSync(team + 1, team_threads);  // grad_input has been reduced
    first_softmaxes();
  }
#pragma unroll
  for (int n = 0; n < kCaps; ++n) {
    if (n >= caps) continue;
    float total = SumOverRows(sum_logits[n]);
    if constexpr (!kAdd) total += first_db[n];
    if (place.g == 0 && real) {
      S* const to = grad_logits + (i0 + n) * z.out_caps + j;
      Narrow(kAdd ? total + Widen(*to) : total, to);
    }
    const int column_j = group * kGroupCaps + place.g / 2;
    if (column_j >= z.out_caps) continue;
    S* const to = grad_weights + (i0 + n) * matrices + column_j * (D * K) +
                  place.g % 2 * K + 2 * place.t;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int s = 0; s < KS; ++s) {
        const float (&sum)[4] = sum_weights[m / 2][n][s];
        AddPair(sum[m % 2 * 2], sum[m % 2 * 2 + 1], kAdd, to + 2 * m * K + s * kStepK);
      }
    }
  }
}

}  // namespace capsops::capsule_routing::mma
