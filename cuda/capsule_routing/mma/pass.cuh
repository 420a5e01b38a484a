// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over the input capsules on tensor cores. It computes the weighted sums of
// predictions of one iteration of capsule routing, or of its gradient. A block has a
// few tiles of 16 samples and a range of input capsules; a warp has one tile and four
// output capsules. A Pipeline copies weights and input to shared memory, from where
// lanes load them as operands. Predictions and sums stay in registers.
#pragma once

#include "cuda/capsule_routing/mma/pipeline.cuh"
#include "cuda/capsule_routing/mma/softmax.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::mma {

// Adds a block's sums over its parts, in order, and writes them to partial[blockIdx.y].
// `shared` must hold the sums of all warps except those of part 0.
template <int D>
__device__ void StorePartial(const Sizes& z, const Teams& teams, const WarpTask& task,
                             const float (&sum)[D / 2][4], float4* shared,
                             float4* partial) {
  constexpr int M = D / 2;
  TriggerDependentLaunch();
  const int others = teams.tiles * z.groups;  // warps of one part
  float4* const mine = shared + (task.warp - others) * (M * kLanes) + Place().lane;
  __syncthreads();
  if (task.part > 0) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      mine[m * kLanes] = *reinterpret_cast<const float4*>(sum[m]);
    }
  }
  __syncthreads();
  if (task.part > 0 || task.idle) return;
  float4* const to = partial + blockIdx.y * (VectorFloats<D>(z) / 4) +
                     VectorIndex<D>(z, task.tile, task.group);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    float4 total = *reinterpret_cast<const float4*>(sum[m]);
#pragma unroll 1
    for (int p = 1; p < teams.parts; ++p) {
      Add(mine[(p * others * M + m) * kLanes], &total);
    }
    to[m * kLanes] = total;
  }
}

// The first iteration, where V is zero and c is the same for all samples: c scales the
// weights, and the products accumulate over input capsules.
template <typename S, int D, int K, Tf32 kTf32>
__global__ void __launch_bounds__(kPassWarps* kLanes, 1)
    FirstPassKernel(Sizes z, Teams teams, const S* __restrict__ input,
                    const S* __restrict__ weights, const S* __restrict__ logits,
                    float4* __restrict__ partial) {
  constexpr int M = D / 2, KS = K / kStepK;
  extern __shared__ float4 shared[];
  const Place place;
  const WarpTask task(z, teams);
  GridDependencySynchronize();  // the previous kernel may write the inputs
  // Weights are not rounded: c, which scales them, is prepared instead.
  Pipeline<S, D, K, Tf32::kExact> pipeline(z, teams, task, input, weights,
                                           reinterpret_cast<S*>(shared));
  const int count = static_cast<int>(task.end - task.begin);
  // Lane (g, t) has logits of the stage's capsule g for output capsule t of each group.
  float x[kPassWarps];
  const auto fetch = [&](int l0) {
    const S* const row =
        logits + (task.begin + min(l0 + place.g, count - 1)) * z.out_caps;
#pragma unroll
    for (int w = 0; w < kPassWarps; ++w) {
      const int j = w * kGroupCaps + place.t;
      x[w] = l0 < count && j < z.out_caps ? Widen(row[j]) : -INFINITY;
    }
  };
  fetch(0);
  float sum[M][4] = {};
#pragma unroll 1
  for (int l0 = 0; l0 < count; l0 += teams.stage) {
    float maximum = -INFINITY, exponentials = 0, c = 0;
#pragma unroll
    for (int w = 0; w < kPassWarps; ++w) maximum = fmaxf(maximum, x[w]);
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, offset));
    }
#pragma unroll
    for (int w = 0; w < kPassWarps; ++w) {
      if (w >= z.groups) break;
      const float exponential = ExpBelowOrZero(x[w], maximum);
      exponentials += exponential;
      if (w == task.group) c = exponential;
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      exponentials += __shfl_xor_sync(~0u, exponentials, offset);
    }
    c = Prepare<kTf32>(c * Reciprocal(exponentials));
    pipeline.Next();
    fetch(l0 + teams.stage);
    const int now = min(teams.stage, count - l0);
#pragma unroll 2
    for (int n = 0; n < now; ++n) {
      // The share of the output capsule whose weights this lane loads.
      const float factor = __shfl_sync(~0u, c, n * 4 + place.g / 2);
#pragma unroll
      for (int s = 0; s < KS; ++s) {
        Pack<S, 2> rows[2];
        pipeline.Rows(n, s, rows);
        const auto a = SamplesOperand<kTf32>(rows);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          Accumulate(a,
                     WeightsOperand<kScaled<kTf32>>(pipeline.Column(n, s, m), factor),
                     sum[m]);
        }
      }
    }
  }
  StorePartial<D>(z, teams, task, sum, shared, partial);
}

enum class Pass { kSums, kGradient, kCoefficients };

// Writes sum_i w u_hat to partial[blockIdx.y], a vector of output capsules, with
//   w = c                                            (kSums)
//   w = c (dc - sum_j c dc), dc = <u_hat, ds>        (kGradient)
// where c is the softmax of logits + <u_hat, V>; kCoefficients writes c to
// `coefficients` instead. For each stage of input capsules a team computes all inner
// products, then the softmaxes, one or a few threads per row (see Rows), and then the
// predictions again, which is cheaper than keeping them.
template <typename S, int D, int K, Tf32 kTf32, Pass kPass>
__global__ void __launch_bounds__(kPassWarps* kLanes, 1)
    PassKernel(Sizes z, Teams teams, const S* __restrict__ input,
               const S* __restrict__ weights, const S* __restrict__ logits,
               const float4* __restrict__ v, const float4* __restrict__ ds,
               float4* __restrict__ partial, S* __restrict__ coefficients) {
  constexpr int M = D / 2, KS = K / kStepK;
  constexpr bool kBackward = kPass == Pass::kGradient;
  // Shared memory: each team's Rows of c (and dc if kBackward), then the pipeline's
  // stages; both are reused for the sums in StorePartial().
  extern __shared__ float4 shared[];
  const Place place;
  const WarpTask task(z, teams);
  const Rows rows(z.groups, teams.stage);
  float4* const team_rows = shared + task.team * (kBackward ? 2 : 1) * rows.length();
  Pipeline<S, D, K, kTf32> pipeline(
      z, teams, task, input, weights,
      reinterpret_cast<S*>(shared +
                           teams.count() * (kBackward ? 2 : 1) * rows.length()));
  const int j = task.group * kGroupCaps + place.t;
  const bool real = j < z.out_caps;
  const int count = static_cast<int>(task.end - task.begin);
  // Lane (g, t) loads the logit of the stage's input capsule g and output capsule t.
  const S* const biases = logits + task.begin * z.out_caps + min(j, z.out_caps - 1);
  float bias = 0;
  const auto fetch_bias = [&](int l0) {
    if (l0 < count) bias = Widen(biases[min(l0 + place.g, count - 1) * z.out_caps]);
  };
  fetch_bias(0);
  GridDependencySynchronize();
  float4 my_v[M], my_ds[kBackward ? M : 1];
  const int64_t index = VectorIndex<D>(z, task.tile, task.group);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    my_v[m] = v[index + m * kLanes];
    if constexpr (kBackward) my_ds[m] = ds[index + m * kLanes];
  }
  float* const my_c = rows.Get(team_rows, place.g, j);
  float* const my_dc = rows.Get(team_rows + rows.length(), place.g, j);
  const auto predict = [&](int n, float (&u)[M][4]) {
#pragma unroll
    for (int s = 0; s < KS; ++s) {
      Pack<S, 2> of_rows[2];
      pipeline.Rows(n, s, of_rows);
      const auto a = SamplesOperand<kTf32>(of_rows);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        if (s == 0) u[m][0] = u[m][1] = u[m][2] = u[m][3] = 0;
        Multiply(a, WeightsOperand<kTf32>(pipeline.Column(n, s, m)), u[m]);
      }
    }
  };
  // Named barriers 1 to `parts` are the pipelines'.
  const auto sync_team = [&] {
    if (z.groups > 1) {
      NamedBarrierSync(teams.parts + 1 + task.team, z.groups * kLanes);
    } else {
      __syncwarp();
    }
  };
  float sum[M][4] = {};
#pragma unroll 1
  for (int l0 = 0; l0 < count; l0 += teams.stage) {
    const int now = min(teams.stage, count - l0);
    pipeline.Next();
#pragma unroll 1
    for (int n = 0; n < now; ++n) {
      float u[M][4];
      predict(n, u);
      // Inner products for both rows, in two sums each: one per element of a pair.
      const float logit = __shfl_sync(~0u, bias, n * 4 + place.t);
      float along_v[4] = {logit, 0, logit, 0}, along_ds[4] = {};
#pragma unroll
      for (int m = 0; m < M; ++m) {
        AddProducts(u[m], my_v[m], along_v);
        if constexpr (kBackward) AddProducts(u[m], my_ds[m], along_ds);
      }
      // Masks the padding after the last output capsule.
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        my_c[rows.At(n, h)] = real ? along_v[2 * h] + along_v[2 * h + 1] : -INFINITY;
        if constexpr (kBackward) {
          my_dc[rows.At(n, h)] = real ? along_ds[2 * h] + along_ds[2 * h + 1] : 0.0f;
        }
      }
    }
    fetch_bias(l0 + teams.stage);
    sync_team();
    rows.Softmaxes<!kBackward, kBackward>(now, task.thread % (z.groups * kLanes),
                                          team_rows);
    sync_team();
#pragma unroll 1
    for (int n = 0; n < now; ++n) {
      if constexpr (kPass == Pass::kCoefficients) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int64_t b = task.tile * kTileSamples + h * 8 + place.g;
          if (real && b < z.batch && !task.idle) {
            Narrow(
                my_c[rows.At(n, h)],
                coefficients + (b * z.in_caps + task.begin + l0 + n) * z.out_caps + j);
          }
        }
      } else {
        const float* const factors = kBackward ? my_dc : my_c;
        const float factor[2] = {factors[rows.At(n, 0)], factors[rows.At(n, 1)]};
        float u[M][4];
        predict(n, u);
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[m][e] += factor[e / 2] * u[m][e];
        }
      }
    }
  }
  if constexpr (kPass != Pass::kCoefficients) {
    StorePartial<D>(z, teams, task, sum, shared, partial);
  }
}

}  // namespace capsops::capsule_routing::mma
