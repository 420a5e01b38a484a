// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over the input capsules on tensor cores: the weighted sums of predictions
// that an iteration of capsule routing, or its gradient, consists of.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_PASS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_PASS_CUH_

#include <cuda_pipeline.h>

#include "cuda/capsule_routing/mma/tile.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::mma {

constexpr int kPassWarps = 12;  // of a block at most

// How a block divides its work. A team has a warp for each group of output capsules and
// one tile of samples; a part of the block's input capsules, `caps` of them but for the
// last, goes to `tiles` teams, which share its weights.
struct Teams {
  int tiles, parts;
  int64_t caps;

  __host__ __device__ int count() const { return tiles * parts; }
};

// What one warp does of a pass.
struct Worker {
  int warp, group, team, part, thread, threads;  // the thread of those of the part
  int64_t tile, begin, end;                      // begin and end of its input capsules
  bool idle;                                     // stands in for a tile past the last

  __device__ Worker(const Sizes& z, const Teams& teams)
      : warp(threadIdx.x / kLanes),
        group(warp % z.groups),
        team(warp / z.groups),
        part(team / teams.tiles),
        threads(teams.tiles * z.groups * kLanes) {
    thread = threadIdx.x - part * threads;
    const int64_t own = int64_t{blockIdx.x} * teams.tiles + team % teams.tiles;
    idle = own >= z.tiles;
    tile = min(own, z.tiles - 1);
    begin = min((int64_t{blockIdx.y} * teams.parts + part) * teams.caps, z.in_caps);
    end = min(begin + teams.caps, z.in_caps);
  }
};

// Waits for `threads` threads that use the same barrier, from 1 to 15.
__device__ inline void WaitFor(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Brings weights and input of a part's input capsules to shared memory, some capsules
// at a time (a stage), while the part works on those before.
template <typename S, int D, int K>
class Conveyor {
 public:
  static constexpr int kCaps = 16 / K;  // of a stage
  static constexpr int kStages = 3;
  static constexpr int kMatrix = D * K + 16;  // padded: capsules are on other banks
  static constexpr int kRow = kCaps * K + 8;  // of samples; keeps two rows off a bank

  // Elements of one stage: with room for the matrices that the last group lacks.
  __host__ __device__ static int StageLength(int out_caps, int groups, int tiles) {
    const int matrices = (kCaps - 1) * out_caps + groups * kGroupCaps;
    return matrices * kMatrix + tiles * kTileSamples * kRow;
  }

  __device__ Conveyor(const Sizes& z, const Teams& teams, const Worker& worker,
                      const S* input, const S* weights, S* memory)
      : caps_(static_cast<int>(worker.end - worker.begin)),
        out_caps_(z.out_caps),
        length_(StageLength(z.out_caps, z.groups, teams.tiles)),
        barrier_(worker.part + 1),
        thread_(worker.thread),
        threads_(worker.threads),
        memory_(memory + worker.part * (kStages * length_)) {
    const Place place;
    to_weights_ = thread_ / kMatrixWords * kMatrix + thread_ % kMatrixWords * kWord;
    from_weights_ = weights + worker.begin * out_caps_ * (D * K) + thread_ * kWord;
    const int begin = length_ - teams.tiles * kTileSamples * kRow;  // of input
    sample_word_ = thread_ % kSampleWords * kWord;
    rows_ = 0;
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      const int row = (thread_ + e * threads_) / kSampleWords;
      if (row < teams.tiles * kTileSamples) rows_ = e + 1;
      const int64_t b = int64_t{blockIdx.x} * teams.tiles * kTileSamples + row;
      to_input_[e] = begin + row * kRow + sample_word_;
      from_input_[e] = SampleRow<K>(z, input, b) + worker.begin * K + sample_word_;
    }
    row_ = begin + (worker.team % teams.tiles * kTileSamples + place.g) * kRow +
           2 * place.t;
    column_ = (worker.group * kGroupCaps + place.g / 2) * kMatrix + place.g % 2 * K +
              2 * place.t;
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) Bring(stage);
  }

  // Waits until the next stage is there, and sends for a later one in the place of the
  // one before: nobody may read that any more.
  __device__ void Next() {
    __pipeline_wait_prior(kStages - 2);
    WaitFor(barrier_, threads_);
    now_ = memory_ + slot_ * length_;
    const int before = slot_ == 0 ? kStages - 1 : slot_ - 1;
    Bring(before);
    slot_ = slot_ == kStages - 1 ? 0 : slot_ + 1;
  }

  // Of capsule n of this stage: the pairs that this lane has of its rows, and of its
  // columns of product m.
  __device__ void Rows(int n, int s, Pack<S, 2> (&rows)[2]) const {
    const S* const at = now_ + row_ + n * K + s * kStepK;
    rows[0] = LoadPair(at);
    rows[1] = LoadPair(at + 8 * kRow);
  }
  __device__ Pack<S, 2> Column(int n, int s, int m) const {
    return LoadPair(now_ + column_ + n * out_caps_ * kMatrix + 2 * m * K + s * kStepK);
  }

 private:
  static constexpr int kWord = 16 / sizeof(S);
  static constexpr int kMatrixWords = D * K / kWord, kSampleWords = kCaps * K / kWord;
  // Of samples that a thread brings words of, at most: with a team of one warp.
  static constexpr int kRows = kTileSamples * kSampleWords / kLanes;
  static_assert(kLanes % kMatrixWords == 0 || kMatrixWords % kLanes == 0);

  __device__ void Bring(int slot) {
    S* const to = memory_ + slot * length_;
    const int caps = min(caps_, kCaps);
    const int words = caps * out_caps_ * kMatrixWords;
    if constexpr (kMatrixWords <= kLanes) {
      // A thread's words all have the same place in a matrix.
      const int step = threads_ / kMatrixWords * kMatrix;
      S* matrix = to + to_weights_;
      const S* from = from_weights_;
      for (int e = thread_; e < words; e += threads_) {
        __pipeline_memcpy_async(matrix, from, 16);
        matrix += step;
        from += threads_ * kWord;
      }
    } else {
      for (int e = thread_; e < words; e += threads_) {
        __pipeline_memcpy_async(
            to + e / kMatrixWords * kMatrix + e % kMatrixWords * kWord,
            from_weights_ + (e - thread_) * kWord, 16);
      }
    }
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      if (e < rows_ && sample_word_ < caps * K) {
        __pipeline_memcpy_async(to + to_input_[e], from_input_[e], 16);
      }
      from_input_[e] += kCaps * K;
    }
    __pipeline_commit();
    from_weights_ += kCaps * out_caps_ * (D * K);
    caps_ = max(caps_ - kCaps, 0);
  }

  int caps_, out_caps_, length_, barrier_, thread_, threads_, slot_ = 0;
  int to_weights_, sample_word_, rows_, to_input_[kRows], row_, column_;
  S* memory_;
  const S *now_, *from_weights_, *from_input_[kRows];
};

// Writes what a block's warps have summed up to partial[blockIdx.y], the parts added in
// order. `shared` has room for all warps' sums but those of the first part.
template <int D>
__device__ void StorePartial(const Sizes& z, const Teams& teams, const Worker& worker,
                             const float (&sum)[D / 2][4], float4* shared,
                             float4* partial) {
  constexpr int M = D / 2;
  LetKernelAfterBegin();
  const int others = teams.tiles * z.groups;  // warps of one part
  float4* const mine = shared + (worker.warp - others) * (M * kLanes) + Place().lane;
  __syncthreads();
  if (worker.part > 0) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      mine[m * kLanes] = *reinterpret_cast<const float4*>(sum[m]);
    }
  }
  __syncthreads();
  if (worker.part > 0 || worker.idle) return;
  float4* const to = partial + blockIdx.y * (VectorFloats<D>(z) / 4) +
                     VectorIndex<D>(z, worker.tile, worker.group);
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

// The first iteration, where V is zero and c the same for all samples: it scales the
// weights, and the products add up over input capsules by themselves.
template <typename S, int D, int K, Tf32 kTf32>
__global__ void __launch_bounds__(kPassWarps* kLanes, 1)
    FirstPassKernel(Sizes z, Teams teams, const S* __restrict__ input,
                    const S* __restrict__ weights, const S* __restrict__ logits,
                    float4* __restrict__ partial) {
  constexpr int M = D / 2, KS = K / kStepK;
  extern __shared__ float4 shared[];
  const Place place;
  const Worker worker(z, teams);
  using Belt = Conveyor<S, D, K>;
  Belt belt(z, teams, worker, input, weights, reinterpret_cast<S*>(shared));
  // Of the column of weights that the lane reads.
  const int j = min(worker.group * kGroupCaps + place.g / 2, z.out_caps - 1);
  const S* const biases = logits + worker.begin * z.out_caps + j;
  float sum[M][4] = {};
  float maximum, inverse;
  const int count = static_cast<int>(worker.end - worker.begin);
#pragma unroll 1
  for (int l0 = 0; l0 < count; l0 += Belt::kCaps) {
    if (l0 % kLanes == 0) {
      // Lane l has the softmax of input capsule l of the next 32.
      const S* const row =
          logits + min(worker.begin + l0 + place.lane, worker.end - 1) * z.out_caps;
      maximum = -INFINITY;
#pragma unroll 4
      for (int e = 0; e < z.out_caps; ++e) maximum = fmaxf(maximum, Widen(row[e]));
      float exponentials = 0;
#pragma unroll 4
      for (int e = 0; e < z.out_caps; ++e) {
        exponentials += ExpBelow(Widen(row[e]), maximum);
      }
      inverse = Reciprocal(exponentials);
    }
    float bias[Belt::kCaps];
#pragma unroll
    for (int n = 0; n < Belt::kCaps; ++n) {
      bias[n] = Widen(biases[min(l0 + n, count - 1) * z.out_caps]);
    }
    belt.Next();
#pragma unroll
    for (int n = 0; n < Belt::kCaps; ++n) {
      if (l0 + n >= count) break;
      const int lane = (l0 + n) % kLanes;
      const float c = ExpBelow(bias[n], __shfl_sync(~0u, maximum, lane)) *
                      __shfl_sync(~0u, inverse, lane);
#pragma unroll
      for (int s = 0; s < KS; ++s) {
        Pack<S, 2> rows[2];
        belt.Rows(n, s, rows);
        const auto a = SamplesOperand<kTf32>(rows);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          AddUp(a, WeightsOperand<kScaled<kTf32>>(belt.Column(n, s, m), c), sum[m]);
        }
      }
    }
  }
  StorePartial<D>(z, teams, worker, sum, shared, partial);
}

enum class Pass { kSums, kGradient, kCoefficients };

// Writes sum_i w u_hat to partial[blockIdx.y], a vector of output capsules, with
//   w = c                                            (kSums)
//   w = c (dc - sum_j c dc), dc = <u_hat, ds>        (kGradient)
// where c is the softmax of logits + <u_hat, V>. Or writes c to `coefficients` and no
// sums (kCoefficients).
template <typename S, int D, int K, Tf32 kTf32, Pass kPass>
__global__ void __launch_bounds__(kPassWarps* kLanes, 1)
    PassKernel(Sizes z, Teams teams, const S* __restrict__ input,
               const S* __restrict__ weights, const S* __restrict__ logits,
               const float4* __restrict__ v, const float4* __restrict__ ds,
               float4* __restrict__ partial, S* __restrict__ coefficients) {
  constexpr int M = D / 2, KS = K / kStepK;
  constexpr bool kBackward = kPass == Pass::kGradient;
  // V and where kBackward ds [tile][group][m][lane], shares [step parity][team]
  // [group][row], then the conveyor's; at the end, what the parts but the first add.
  extern __shared__ float4 shared[];
  const Place place;
  const Worker worker(z, teams);
  const int tile_length = z.groups * (M * kLanes), length = teams.tiles * tile_length;
  const int shares_length = teams.count() * kTileSamples * z.groups;
  float4* const all_shares = shared + (kBackward ? 2 : 1) * length;
  using Belt = Conveyor<S, D, K>;
  Belt belt(z, teams, worker, input, weights,
            reinterpret_cast<S*>(all_shares + 2 * shares_length));
  WaitForKernelBefore();
  for (int e = threadIdx.x; e < length; e += blockDim.x) {
    const int64_t from =
        min(int64_t{blockIdx.x} * length + e, z.tiles * int64_t{tile_length} - 1);
    __pipeline_memcpy_async(shared + e, v + from, sizeof(float4));
    if constexpr (kBackward) {
      __pipeline_memcpy_async(shared + length + e, ds + from, sizeof(float4));
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  const float4* const my_v =
      shared + (worker.team % teams.tiles * z.groups + worker.group) * (M * kLanes) +
      place.lane;
  const float4* const my_ds = my_v + length;
  const int j = worker.group * kGroupCaps + place.t;
  const bool real = j < z.out_caps;
  const S* const biases = logits + worker.begin * z.out_caps + min(j, z.out_caps - 1);
  float4* const my_shares =
      all_shares + worker.team * (kTileSamples * z.groups) + place.g;
  float sum[M][4] = {};
  const int count = static_cast<int>(worker.end - worker.begin);
  const auto step = [&](int n, int l, float bias) {
    float u[M][4] = {};
#pragma unroll
    for (int s = 0; s < KS; ++s) {
      Pack<S, 2> rows[2];
      belt.Rows(n, s, rows);
      const auto a = SamplesOperand<kTf32>(rows);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        Multiply(a, WeightsOperand<kTf32>(belt.Column(n, s, m)), u[m]);
      }
    }
    // Inner products of the two rows, the elements of a pair apart.
    float along_v[4] = {bias, 0, bias, 0}, along_ds[4] = {};
#pragma unroll
    for (int m = 0; m < M; ++m) {
      AddProducts(u[m], my_v[m * kLanes], along_v);
      if constexpr (kBackward) AddProducts(u[m], my_ds[m * kLanes], along_ds);
    }
    // Past the last output capsule the predictions are of no meaning.
    Share share[2];
    float logit[2], dc[2], exponential[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      logit[h] = real ? along_v[2 * h] + along_v[2 * h + 1] : -INFINITY;
      dc[h] = real ? along_ds[2 * h] + along_ds[2 * h + 1] : 0.0f;
    }
    float4* const shares = my_shares + l % 2 * shares_length;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      share[h] = ShareOfLanes<kBackward>(logit[h], dc[h], &exponential[h]);
      if (place.t == 0) {
        shares[worker.group * kTileSamples + h * 8] = {share[h].maximum, share[h].sum,
                                                       share[h].weighted, 0};
      }
    }
    if (z.groups > 1) {
      WaitFor(teams.parts + 1 + worker.team, z.groups * kLanes);
    } else {
      __syncwarp();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto softmax = Softmax::Of<kTileSamples>(shares + h * 8, z.groups);
      float factor = softmax.Coefficient(share[h].maximum, exponential[h]);
      if constexpr (kPass == Pass::kCoefficients) {
        const int64_t b = worker.tile * kTileSamples + h * 8 + place.g;
        if (real && b < z.batch && !worker.idle) {
          Narrow(factor,
                 coefficients + (b * z.in_caps + worker.begin + l) * z.out_caps + j);
        }
      }
      if constexpr (kBackward) factor *= dc[h] - softmax.mean;
#pragma unroll
      for (int m = 0; m < M; ++m) {
        sum[m][2 * h] += factor * u[m][2 * h];
        sum[m][2 * h + 1] += factor * u[m][2 * h + 1];
      }
    }
  };
  float bias[Belt::kCaps];
  const auto fetch_biases = [&](int l0) {
#pragma unroll
    for (int n = 0; n < Belt::kCaps; ++n) {
      const int l = min(l0 + n, count - 1);
      bias[n] = Widen(biases[l * z.out_caps]);
    }
  };
  if (count > 0) fetch_biases(0);
#pragma unroll 1
  for (int l0 = 0; l0 < count; l0 += Belt::kCaps) {
    belt.Next();
    float now[Belt::kCaps];
#pragma unroll
    for (int n = 0; n < Belt::kCaps; ++n) now[n] = bias[n];
    fetch_biases(l0 + Belt::kCaps);
#pragma unroll
    for (int n = 0; n < Belt::kCaps; ++n) {
      if (l0 + n < count) step(n, l0 + n, now[n]);
    }
  }
  if constexpr (kPass != Pass::kCoefficients) {
    StorePartial<D>(z, teams, worker, sum, shared, partial);
  }
}

}  // namespace capsops::capsule_routing::mma

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_PASS_CUH_
