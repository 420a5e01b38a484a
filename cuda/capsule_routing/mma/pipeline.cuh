// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The work split of a pass, and the pipeline that loads weights and input.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/capsule_routing/mma/tile.cuh"

namespace capsops::capsule_routing::mma {

constexpr int kPassWarps = 12;  // most warps per block
constexpr int kMaxStage = 8;    // most input capsules per stage

// A block's work split. A team has one warp per group of output capsules and one tile
// of samples. The block's input capsules are split into `parts` of `caps` each (the
// last may be shorter); the `tiles` teams of a part share its weights, which arrive
// `stage` input capsules at a time.
struct Teams {
  int tiles, parts, stage;
  int64_t caps;

  __host__ __device__ int count() const { return tiles * parts; }
};

// The work of one warp of a pass.
struct WarpTask {
  int warp, group, team, part, thread, threads;  // `thread` of the part's `threads`
  int64_t tile, begin, end;                      // [begin, end) of its input capsules
  bool idle;  // whether the tile is past the last one (grid padding)

  __device__ WarpTask(const Sizes& z, const Teams& teams)
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

// Synchronizes `threads` threads at a named barrier from 1 to 15.
__device__ inline void NamedBarrierSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A double-buffered pipeline: copies the weights and input of a part's input capsules
// to shared memory one stage ahead of the computation, and rounds weights to TF32.
template <typename S, int D, int K, Tf32 kTf32>
class Pipeline {
 public:
  static constexpr int kStages = 2;
  // Stride of a matrix, padded so that output capsules that are loaded together start
  // in different banks.
  static constexpr int kMatrix = D * K + (K == 16 ? 8 : 16);

  // Stride of a sample: an odd multiple of kStepK, so that samples that are loaded
  // together start in different banks.
  __host__ __device__ static int Row(int stage) {
    return (stage * (K / kStepK) | 1) * kStepK;
  }
  // Elements of one stage, including the matrices that pad the last group.
  __host__ __device__ static int StageLength(int out_caps, int groups, int tiles,
                                             int stage) {
    const int matrices = (stage - 1) * out_caps + groups * kGroupCaps;
    return matrices * kMatrix + tiles * kTileSamples * Row(stage);
  }

  __device__ Pipeline(const Sizes& z, const Teams& teams, const WarpTask& task,
                      const S* input, const S* weights, S* memory)
      : caps_(static_cast<int>(task.end - task.begin)),
        stage_(teams.stage),
        out_caps_(z.out_caps),
        row_length_(Row(teams.stage)),
        length_(StageLength(z.out_caps, z.groups, teams.tiles, teams.stage)),
        samples_(teams.tiles * kTileSamples),
        barrier_(task.part + 1),
        thread_(task.thread),
        threads_(task.threads),
        input_row_(z.in_caps * K),
        memory_(memory + task.part * (kStages * length_)) {
    const Place place;
    to_weights_ = thread_ / kMatrixWords * kMatrix + thread_ % kMatrixWords * kWord;
    from_weights_ = weights + task.begin * out_caps_ * (D * K) + thread_ * kWord;
    const int64_t b = int64_t{blockIdx.x} * samples_;
    last_sample_ = static_cast<int>(min(z.batch - 1 - b, int64_t{samples_} - 1));
    begin_ = length_ - samples_ * row_length_;
    from_input_ = input + (b * z.in_caps + task.begin) * K;
    row_ = begin_ + (task.team % teams.tiles * kTileSamples + place.g) * row_length_ +
           2 * place.t;
    column_ = (task.group * kGroupCaps + place.g / 2) * kMatrix + place.g % 2 * K +
              2 * place.t;
    StartCopies(0);
  }

  // Waits for the next stage, and starts the copies of the one after it into the buffer
  // of the previous stage, which nobody reads any more.
  __device__ void Next() {
    __pipeline_wait_prior(0);
    S* const there = memory_ + slot_ * length_;
    current_ = there;
    if constexpr (kTf32 == Tf32::kRounded) {
      // Each thread rounds the words that it has copied.
      ForEachWord(there, staged_caps_, [](S* word, const S*) {
        float4& four = *reinterpret_cast<float4*>(word);
        four = {Prepare<kTf32>(four.x), Prepare<kTf32>(four.y), Prepare<kTf32>(four.z),
                Prepare<kTf32>(four.w)};
      });
    }
    NamedBarrierSync(barrier_, threads_);
    slot_ ^= 1;
    StartCopies(slot_);
  }

  // Load this lane's pairs of input capsule n of the stage for step s of the
  // contraction: from its two rows of samples, and from its column of weights for
  // product m.
  __device__ void Rows(int n, int s, Pack<S, 2> (&rows)[2]) const {
    const S* const at = current_ + row_ + n * K + s * kStepK;
    rows[0] = LoadPair(at);
    rows[1] = LoadPair(at + 8 * row_length_);
  }
  __device__ Pack<S, 2> Column(int n, int s, int m) const {
    return LoadPair(current_ + column_ + n * out_caps_ * kMatrix + 2 * m * K +
                    s * kStepK);
  }

 private:
  static constexpr int kWord = 16 / sizeof(S);
  static constexpr int kMatrixWords = D * K / kWord;
  static constexpr int kRowThreads = 16;  // threads that copy a row of samples
  static_assert(kLanes % kMatrixWords == 0 || kMatrixWords % kLanes == 0);

  // Calls visit(destination in the stage `to`, source) for each 16 bytes of the weights
  // of `caps` input capsules that this thread copies.
  template <typename Visit>
  __device__ void ForEachWord(S* to, int caps, const Visit& visit) const {
    const int words = caps * out_caps_ * kMatrixWords;
    if constexpr (kMatrixWords <= kLanes) {
      // All words of a thread have the same offset in their matrices.
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

  __device__ void StartCopies(int slot) {
    S* const to = memory_ + slot * length_;
    staged_caps_ = min(caps_, stage_);
    ForEachWord(to, staged_caps_, [](S* word, const S* from) {
      __pipeline_memcpy_async(word, from, 16);
    });
    const int own = thread_ % kRowThreads * kWord;
#pragma unroll 1
    for (int b = thread_ / kRowThreads; b < samples_; b += threads_ / kRowThreads) {
      // Rows past the last sample repeat it.
      const S* const from = from_input_ + min(b, last_sample_) * input_row_;
      S* const row = to + begin_ + b * row_length_;
#pragma unroll 1
      for (int k = own; k < staged_caps_ * K; k += kRowThreads * kWord) {
        __pipeline_memcpy_async(row + k, from + k, 16);
      }
    }
    __pipeline_commit();
    from_weights_ += stage_ * out_caps_ * (D * K);
    from_input_ += stage_ * K;
    caps_ -= staged_caps_;
  }

  int caps_, staged_caps_, stage_, out_caps_, row_length_, length_, samples_, barrier_,
      thread_, threads_, slot_ = 0;
  int to_weights_, last_sample_, begin_, row_, column_;
  int64_t input_row_;
  S* memory_;
  const S *current_, *from_weights_, *from_input_;
};

}  // namespace capsops::capsule_routing::mma
