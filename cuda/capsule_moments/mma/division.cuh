// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How PassKernel divides its work, what it writes, and what it stages.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_DIVISION_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_DIVISION_CUH_

#include <cstdint>

#include "cuda/capsule_moments/mma/tile.cuh"
#include "cuda/capsule_moments/mma/walk.cuh"

namespace capsops::capsule_moments::mma {

constexpr int kChunk = 8;  // children of a stage

// How the windows and the children are divided.
struct Division {
  int lanes_log2;  // parents that a block has room for are 8, 16 or 32
  int positions;
  int children;
  int outs;
  int groups, chunks, blocks;

  __host__ __device__ int lanes() const { return 1 << lanes_log2; }
  // Windows of a group, which is a block's.
  __host__ __device__ int windows_log2() const { return 8 - lanes_log2; }
  __host__ __device__ int windows() const { return kThreads >> lanes_log2; }
  __host__ __device__ int Units() const { return groups * chunks; }
  // The first unit of a block, and the block that has a unit.
  __host__ __device__ int First(int block) const {
    return block * (Units() / blocks) + min(block, Units() % blocks);
  }
  __device__ int BlockOf(int unit) const {
    const int each = Units() / blocks, more = Units() % blocks;
    if (unit < more * (each + 1)) return unit / (each + 1);
    return more + (unit - more * (each + 1)) / each;
  }

 private:
  __host__ __device__ static int min(int a, int b) { return a < b ? a : b; }
};
static_assert(kThreads == 1 << 8, "windows_log2");

// The window of its group, and the parent, that a thread has.
struct Seat {
  int window, parent;
  __device__ explicit Seat(const Division& d) {
    const int warps = d.lanes() / kFour, warp = threadIdx.x / kLanes;
    window = warp / warps * kEight + threadIdx.x % kLanes / kFour;
    parent = warp % warps * kFour + threadIdx.x % kFour;
  }
};

// What a pass writes; null is what it does not. Where it writes scales, or dots, it
// writes nothing else. `partial` is [2 blocks][kSums][kThreads].
struct Results {
  bool gradients;
  float *mass, *first, *second;
  float *bias, *linear, *precision, *center;  // where `gradients`
  const float *given_mass, *given_first;      // the moments, for center
  float2* scales;      // of each row [position, k], most and scale of its logits
  float* dots;         // of each row, the sum of share dr
  Facts* facts;        // of each row
  float* activations;  // of each row, the sum of share dq
  float* poses;        // of each row, the gradient of its pose
  float* partial;
};

// Writes four numbers of a parent's results from `h` on, of its sums; with number 0
// also what it has one of.
__device__ inline void Finish(const Inputs& in, const Gradient& grad,
                              const Results& out, int64_t parent, int h, float sum,
                              const float (&first)[4], const float (&second)[4]) {
  const int64_t from = parent * kSize + h;
  const auto write = [&](float* to, const auto& number) {
    if (to == nullptr) return;
    *reinterpret_cast<float4*>(to + from) = {number(0), number(1), number(2),
                                             number(3)};
  };
  float* const mass = out.gradients ? out.bias : out.mass;
  if (h == 0 && mass != nullptr) mass[parent] = sum;
  if (out.gradients) {
    write(out.linear, [&](int e) { return first[e] + At(in.center, from + e) * sum; });
    write(out.precision, [&](int e) { return -0.5f * second[e]; });
    write(out.center, [&](int e) {
      return At(in.precision, from + e) * first[e] -
             out.given_mass[parent] * At(grad.first, from + e) -
             2 * At(out.given_first, from + e) * At(grad.second, from + e);
    });
  } else {
    write(out.first, [&](int e) { return first[e]; });
    write(out.second, [&](int e) { return second[e]; });
  }
}

template <int Q>
struct StageOf {
  float* weights;  // [kChunk][outs][Q][4]
  float* poses;    // [kChunk][windows][Q][4]
  Facts* facts;    // [kChunk][windows]

  __device__ StageOf(const Division& d, float* from)
      : weights(from),
        poses(weights + kChunk * d.outs * Q * kSide),
        facts(reinterpret_cast<Facts*>(poses + kChunk * d.windows() * Q * kSide)) {}
};
// Floats of a stage, of one number for each of a chunk's votes, and of the rows'
// gradients of poses that each warp makes. A row of votes is padded by four words, so
// that neither those who have a parent each nor those who have eight meet a bank twice.
template <int Q>
__host__ __device__ int StageSize(const Division& d) {
  return kChunk * (d.outs * Q * kSide + d.windows() * (Q * kSide + 4));
}
__host__ __device__ inline int VotesSize(const Division& d) {
  return kChunk * d.windows() * (d.lanes() + 4);
}
template <int Q>
constexpr int kRowsSize = kWarps * kChunk * kEight * kSide * Q;

// Floats of shared memory.
template <bool kGradient, int Q>
int SharedSize(const Division& d) {
  return 2 * StageSize<Q>(d) +
         (kGradient ? 2 * VotesSize(d) + kRowsSize<Q> : VotesSize(d));
}

// Begins to write the facts of a child, which may not exist.
template <typename N>
__device__ void StageFacts(const Inputs& in, int capsule, Facts* to) {
  if (capsule < 0) {
    *to = {0, 0, 0, 0};
    return;
  }
  float2 scale{0, 1};
  if (in.rule == Rule::kGiven && in.scales != nullptr) {
    scale = in.scales[capsule];
  } else if (in.rule == Rule::kGiven) {
    const int windows = in.p.normalize == kAll ? WindowsOf(in.p, capsule) : 1;
    scale.y = 1.0f / static_cast<float>(windows * static_cast<int>(in.p.out_channels));
  }
  to->most = scale.x;
  to->scale = scale.y;
  to->dot = in.dots != nullptr ? in.dots[capsule] : 0;
  if (in.activations != nullptr) {
    Stage<1, 1>(static_cast<const N*>(in.activations) + capsule, &to->activation);
  } else {
    to->activation = 1;
  }
}

// The window of which a thread brings children, and the next of them. Rows of poses are
// [child][window][row] to threads, so that all of a thread are of one window.
struct Source {
  Corner corner;
  Child child;
  bool any;

  __device__ Source(const Inputs& in, const Division& d, int group, int chunk)
      : corner(in.p, Pixel(in.p, Position(d, group))),
        child(in.p, chunk * kChunk + (threadIdx.x / kSide >> d.windows_log2())),
        any(Position(d, group) < d.positions) {}
  __device__ static int Position(const Division& d, int group) {
    return (group << d.windows_log2()) + (threadIdx.x / kSide & (d.windows() - 1));
  }
};
static_assert(kThreads / kSide % (kThreads / kEight) == 0, "any number of windows");

// Rows of weights of a chunk.
template <int Q>
__device__ int RowsOf(const Division& d, int chunk) {
  return min(kChunk, d.children - chunk * kChunk) * d.outs * Q;
}

// Begins to fill a stage, with the chunk after that of the call before.
template <int Q>
__device__ void FillStage(const Inputs& in, const Division& d, int chunk,
                          Source* source, const StageOf<Q>& stage) {
  WithElements(in.element, [&](auto zero) {
    using N = decltype(zero);
    StageWeights(static_cast<const N*>(in.weights) +
                     int64_t{chunk} * kChunk * d.outs * Q * kSide,
                 RowsOf<Q>(d, chunk), stage.weights);
    const int row = threadIdx.x % kSide, end = kChunk << d.windows_log2();
    for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
      const bool any = source->any && source->child.kh < in.p.kernel_height;
      const int capsule = any ? source->corner.Capsule(in.p, source->child) : -1;
      if (row == 0) StageFacts<N>(in, capsule, stage.facts + e);
      StagePoseRow<Q>(static_cast<const N*>(in.poses), capsule, row,
                      stage.poses + e * Q * kSide);
      source->child.Advance(in.p, kThreads / kSide >> d.windows_log2());
    }
  });
}

// Waits for what this thread has brought of a stage, and prepares it.
template <int Q>
__device__ void AwaitStage(const Inputs& in, const Division& d, int chunk,
                           const StageOf<Q>& stage) {
  __pipeline_wait_prior(0);
  if (in.element != Element::kFloat) return;  // exact in TF32
  PrepareWeights(RowsOf<Q>(d, chunk), stage.weights);
  const int end = kChunk << d.windows_log2();
  for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
    PreparePoseRow<Q>(threadIdx.x % kSide, stage.poses + e * Q * kSide);
  }
}

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_DIVISION_CUH_
