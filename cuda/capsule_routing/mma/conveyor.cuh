// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How the blocks of a pass divide their work, and how weights and input come to them.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_CONVEYOR_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_CONVEYOR_CUH_

#include <cuda_pipeline.h>

#include "cuda/capsule_routing/mma/tile.cuh"

namespace capsops::capsule_routing::mma {

constexpr int kPassWarps = 12;  // of a block at most
constexpr int kMostStage = 8;   // input capsules of a stage at most

// How a block divides its work. A team has a warp for each group of output capsules and
// one tile of samples; a part of the block's input capsules, `caps` of them but for the
// last, goes to `tiles` teams, which share its weights. They take `stage` of them at a
// time.
struct Teams {
  int tiles, parts, stage;
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

// Brings weights and input of a part's input capsules to shared memory, a stage at a
// time, while the part works on the stage before. There weights are prepared.
template <typename S, int D, int K, Tf32 kTf32>
class Conveyor {
 public:
  static constexpr int kStages = 2;
  // Padded: what a lane reads of its capsules is on other banks.
  static constexpr int kMatrix = D * K + (K == 16 ? 8 : 16);

  // From one row of samples to the next, which is on other banks.
  __host__ __device__ static int Row(int stage) {
    return (stage * (K / kStepK) | 1) * kStepK;
  }
  // Elements of one stage: with room for the matrices that the last group lacks.
  __host__ __device__ static int StageLength(int out_caps, int groups, int tiles,
                                             int stage) {
    const int matrices = (stage - 1) * out_caps + groups * kGroupCaps;
    return matrices * kMatrix + tiles * kTileSamples * Row(stage);
  }

  __device__ Conveyor(const Sizes& z, const Teams& teams, const Worker& worker,
                      const S* input, const S* weights, S* memory)
      : caps_(static_cast<int>(worker.end - worker.begin)),
        stage_(teams.stage),
        out_caps_(z.out_caps),
        row_length_(Row(teams.stage)),
        length_(StageLength(z.out_caps, z.groups, teams.tiles, teams.stage)),
        samples_(teams.tiles * kTileSamples),
        barrier_(worker.part + 1),
        thread_(worker.thread),
        threads_(worker.threads),
        input_row_(z.in_caps * K),
        memory_(memory + worker.part * (kStages * length_)) {
    const Place place;
    to_weights_ = thread_ / kMatrixWords * kMatrix + thread_ % kMatrixWords * kWord;
    from_weights_ = weights + worker.begin * out_caps_ * (D * K) + thread_ * kWord;
    const int64_t b = int64_t{blockIdx.x} * samples_;
    last_sample_ = static_cast<int>(min(z.batch - 1 - b, int64_t{samples_} - 1));
    begin_ = length_ - samples_ * row_length_;
    from_input_ = input + (b * z.in_caps + worker.begin) * K;
    row_ = begin_ + (worker.team % teams.tiles * kTileSamples + place.g) * row_length_ +
           2 * place.t;
    column_ = (worker.group * kGroupCaps + place.g / 2) * kMatrix + place.g % 2 * K +
              2 * place.t;
    Bring(0);
  }

  // Waits until the next stage is there, and sends for the one after it in the place of
  // the one before: nobody may read that any more.
  __device__ void Next() {
    __pipeline_wait_prior(0);
    S* const there = memory_ + slot_ * length_;
    now_ = there;
    if constexpr (kTf32 == Tf32::kRounded) {
      // A thread prepares what it has brought.
      ForEachWord(there, caps_there_, [](S* word, const S*) {
        float4& four = *reinterpret_cast<float4*>(word);
        four = {Prepare<kTf32>(four.x), Prepare<kTf32>(four.y), Prepare<kTf32>(four.z),
                Prepare<kTf32>(four.w)};
      });
    }
    WaitFor(barrier_, threads_);
    slot_ ^= 1;
    Bring(slot_);
  }

  // Of capsule n of this stage: the pairs that this lane has of its rows, and of its
  // columns of product m.
  __device__ void Rows(int n, int s, Pack<S, 2> (&rows)[2]) const {
    const S* const at = now_ + row_ + n * K + s * kStepK;
    rows[0] = LoadPair(at);
    rows[1] = LoadPair(at + 8 * row_length_);
  }
  __device__ Pack<S, 2> Column(int n, int s, int m) const {
    return LoadPair(now_ + column_ + n * out_caps_ * kMatrix + 2 * m * K + s * kStepK);
  }

 private:
  static constexpr int kWord = 16 / sizeof(S);
  static constexpr int kMatrixWords = D * K / kWord;
  static constexpr int kRowThreads = 16;  // that bring one row of samples
  static_assert(kLanes % kMatrixWords == 0 || kMatrixWords % kLanes == 0);

  // Visits the 16 bytes each that this thread brings of the weights of `caps` input
  // capsules: where they come to lie in the stage at `to`, and where they are.
  template <typename Visit>
  __device__ void ForEachWord(S* to, int caps, const Visit& visit) const {
    const int words = caps * out_caps_ * kMatrixWords;
    if constexpr (kMatrixWords <= kLanes) {
      // A thread's words all have the same place in a matrix.
      const int step = threads_ / kMatrixWords * kMatrix;
      S* matrix = to + to_weights_;
      const S* from = from_weights_;
#pragma unroll 4
      for (int e = thread_; e < words; e += threads_) {
        visit(matrix, from);
        matrix += step;
        from += threads_ * kWord;
      }
    } else {
#pragma unroll 4
      for (int e = thread_; e < words; e += threads_) {
        visit(to + e / kMatrixWords * kMatrix + e % kMatrixWords * kWord,
              from_weights_ + (e - thread_) * kWord);
      }
    }
  }

  __device__ void Bring(int slot) {
    S* const to = memory_ + slot * length_;
    caps_there_ = min(caps_, stage_);
    ForEachWord(to, caps_there_, [](S* word, const S* from) {
      __pipeline_memcpy_async(word, from, 16);
    });
    const int own = thread_ % kRowThreads * kWord;
#pragma unroll 1
    for (int b = thread_ / kRowThreads; b < samples_; b += threads_ / kRowThreads) {
      // Past the last sample comes the last again.
      const S* const from = from_input_ + min(b, last_sample_) * input_row_;
      S* const row = to + begin_ + b * row_length_;
#pragma unroll 1
      for (int k = own; k < caps_there_ * K; k += kRowThreads * kWord) {
        __pipeline_memcpy_async(row + k, from + k, 16);
      }
    }
    __pipeline_commit();
    from_weights_ += stage_ * out_caps_ * (D * K);
    from_input_ += stage_ * K;
    caps_ -= caps_there_;
  }

  int caps_, caps_there_, stage_, out_caps_, row_length_, length_, samples_, barrier_,
      thread_, threads_, slot_ = 0;
  int to_weights_, last_sample_, begin_, row_, column_;
  int64_t input_row_;
  S* memory_;
  const S *now_, *from_weights_, *from_input_;
};

}  // namespace capsops::capsule_routing::mma

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_CONVEYOR_CUH_
