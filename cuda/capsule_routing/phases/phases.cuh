// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The three phases of a pass over input capsules, each of a block on a few of them.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_PHASES_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_PHASES_CUH_

#include <type_traits>

#include "cuda/capsule_routing/phases/weights.cuh"

namespace capsops::capsule_routing::phases {

// The warps of a block: teams that share out the input capsules, each of `warps` that
// share out the units, which are one of `blocks` sample blocks and one of `groups` of N
// output capsules.
struct Teams {
  int count, warps, groups, blocks;

  __host__ __device__ int units() const { return blocks * groups; }
  __host__ __device__ int threads() const { return count * warps * kLanes; }
};

// What a team has of `count` input capsules, from `begin` up to `end`.
struct Share {
  int begin, end;

  __device__ Share(const Teams& teams, int team, int count) {
    const int each = (count + teams.count - 1) / teams.count;
    begin = min(team * each, count);
    end = min(begin + each, count);
  }
};

// Phase A: the inner products of predictions with V, but for a factor 1 / kRound, to
// plane [in_cap][sample block][capsule][sample]. V times the weights is multiplied by
// the input, element by element; one product with zeros and ones adds up the columns,
// of two capsules at a time, which come to columns of their own. x, v and plane are
// those of the warp's sample block, i0 is the first input capsule of the block's.
template <typename P>
__device__ void Agree(const Sizes& z, const Place& place, const Share& share,
                      const typename P::S* weights, int64_t i0, int group, int blocks,
                      const float4* x, const float4* v, float* plane) {
  constexpr int M = P::M, N = P::N, DT = P::DT;
  if (share.begin == share.end) return;
  Weights<P, true> belt(z, place, weights, i0 + share.begin, share.end - share.begin,
                        group);
  typename P::Left left[M][N][DT];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int cap = min(group * N + n, z.caps - 1);
#pragma unroll
    for (int d = 0; d < DT; ++d) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float4 both = v[((cap * DT + d) * M + m) * kLanes + place.lane];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          SetFinite(LeftElement(e), At(both, e) * P::kRound, &left[m][n][d]);
        }
      }
    }
  }
  const int steps = P::kSteps > 0 ? P::kSteps : z.steps;
  x += share.begin * blocks * steps * (M * kLanes) + place.lane;
  float sum[M][4] = {};
#pragma unroll 2
  for (int i = share.begin; i < share.end; ++i) {
    const int q = (i - share.begin) % 4;  // capsule n comes to column 2q + n
    Operand<2, Tf32::kExact> ones;
#pragma unroll
    for (int n = 0; n < 2; ++n) ones.SetPrepared(n, place.g == 2 * q + n ? 1.0f : 0.0f);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      typename P::Right w[N][DT];
      belt.Next(step, w);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float4 both = x[m * kLanes];
        typename P::Left products;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float u[4] = {};
          if (n < N) {
#pragma unroll
            for (int d = 0; d < DT; ++d) Multiply(left[m][n][d], w[n][d], u);
          }
          SetFinite(2 * n, u[0] * both.x + u[1] * both.y, &products);
          SetFinite(2 * n + 1, u[2] * both.z + u[3] * both.w, &products);
        }
        Multiply(products, ones, sum[m]);
      }
      x += M * kLanes;
    }
    x += (blocks - 1) * steps * (M * kLanes);
    if (q < 3 && i + 1 < share.end) continue;
    if (place.t <= q) {
      float* to = plane +
                  ((i - q + place.t) * blocks * z.caps + group * N) * P::kSamples +
                  2 * M * place.g;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (group * N + n >= z.caps) break;
#pragma unroll
        for (int m = 0; m < M; ++m) StorePair(sum[m][n], sum[m][2 + n], to + 2 * m);
        to += P::kSamples;
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = sum[m][2] = sum[m][3] = 0;
  }
}

// Inner products of parts, added up to those of output capsules, which come to be one
// after the other; and the way back, the same for each part.
template <typename P>
__device__ void AddParts(const Sizes& z, float* row) {
  for (int j = 0; j < z.out_caps; ++j) {
    float sum = 0;
    for (int p = 0; p < z.parts; ++p) sum += row[(j * z.parts + p) * P::kSamples];
    row[j * P::kSamples] = sum;
  }
}
template <typename P>
__device__ void CopyToParts(const Sizes& z, float* row) {
  for (int cap = z.caps - 1; cap > 0; --cap) {
    row[cap * P::kSamples] = row[cap / z.parts * P::kSamples];
  }
}

// Calls work(j, count) for the output capsules j, j + 1, ... , a few at a time.
template <typename Work>
__device__ void EachFew(int out_caps, const Work& work) {
  constexpr int kFew = 5;
  int j = 0;
#pragma unroll 1
  for (; j + kFew <= out_caps; j += kFew) work(j, std::integral_constant<int, kFew>());
#pragma unroll 1
  for (; j < out_caps; ++j) work(j, std::integral_constant<int, 1>());
}

__device__ inline float PowerOf2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

constexpr float kLog2E = 1.44269504f;

// Phase B: a thread for each sample and input capsule. `plane`, of phase A where
// `agreed` and else of no meaning, becomes c kRound; c is the softmax of logits + plane
// over output capsules. The logits, in shared memory, are times log2(e).
template <typename P>
__device__ void Softmax(const Sizes& z, const float* logits, int count, int blocks,
                        bool agreed, float* plane) {
  constexpr int kPitch = P::kSamples;
  for (int e = threadIdx.x; e < count * blocks * kPitch; e += blockDim.x) {
    const int i = e / kPitch;
    float* const row = plane + i * z.caps * kPitch + e % kPitch;
    const float* const bias = logits + i / blocks * z.out_caps;
    if (z.parts > 1 && agreed) AddParts<P>(z, row);
    // Everywhere a few are read, then written: the compiler cannot know them apart.
    float maximum = -INFINITY;
    EachFew(z.out_caps, [&](int j0, auto few) {
      float logit[few];
#pragma unroll
      for (int j = 0; j < few; ++j) {
        logit[j] = bias[j0 + j];
        if (agreed) logit[j] += row[(j0 + j) * kPitch] * (P::kRound * kLog2E);
        maximum = fmaxf(maximum, logit[j]);
      }
#pragma unroll
      for (int j = 0; j < few; ++j) row[(j0 + j) * kPitch] = logit[j];
    });
    if (maximum == -INFINITY) maximum = 0;
    float sum = 0;
    EachFew(z.out_caps, [&](int j0, auto few) {
      float power[few];
#pragma unroll
      for (int j = 0; j < few; ++j) {
        power[j] = PowerOf2(row[(j0 + j) * kPitch] - maximum);
        sum += power[j];
      }
#pragma unroll
      for (int j = 0; j < few; ++j) row[(j0 + j) * kPitch] = power[j];
    });
    const float factor = P::kRound / sum;
    EachFew(z.out_caps, [&](int j0, auto few) {
      float c[few];
#pragma unroll
      for (int j = 0; j < few; ++j) c[j] = row[(j0 + j) * kPitch] * factor;
#pragma unroll
      for (int j = 0; j < few; ++j) row[(j0 + j) * kPitch] = c[j];
    });
    if (z.parts > 1) CopyToParts<P>(z, row);
  }
}

// Phase C: sum = the sums over input capsules of c u_hat; `plane` has c kRound.
template <typename P>
__device__ void AddUp(const Sizes& z, const Place& place, const Share& share,
                      const typename P::S* weights, int64_t i0, int group, int blocks,
                      const float4* x, const float* plane,
                      float (&sum)[P::M][P::N][P::DT][4]) {
  constexpr int M = P::M, N = P::N, DT = P::DT;
#pragma unroll
  for (int e = 0; e < 4 * M * N * DT; ++e) {
    sum[e / (4 * N * DT)][e / (4 * DT) % N][e / 4 % DT][e % 4] = 0;
  }
  if (share.begin == share.end) return;
  Weights<P, false> belt(z, place, weights, i0 + share.begin, share.end - share.begin,
                         group);
  const int steps = P::kSteps > 0 ? P::kSteps : z.steps;
  x += share.begin * blocks * steps * (M * kLanes) + place.lane;
#pragma unroll 2
  for (int i = share.begin; i < share.end; ++i) {
    Pack<float, 2 * M> c[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int cap = min(group * N + n, z.caps - 1);
      c[n] = *reinterpret_cast<const Pack<float, 2 * M>*>(
          plane + (i * blocks * z.caps + cap) * P::kSamples + 2 * M * place.g);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      typename P::Right w[N][DT];
      belt.Next(step, w);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float4 both = x[m * kLanes];
#pragma unroll
        for (int n = 0; n < N; ++n) {
          typename P::Left scaled;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            SetFinite(LeftElement(e), c[n].at[2 * m + e / 2] * At(both, e), &scaled);
          }
#pragma unroll
          for (int d = 0; d < DT; ++d) Multiply(scaled, w[n][d], sum[m][n][d]);
        }
      }
      x += M * kLanes;
    }
    x += (blocks - 1) * steps * (M * kLanes);
  }
}

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_PHASES_CUH_
