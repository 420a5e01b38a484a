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
  Image image;
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
  // A block that has a part of a group leaves its sums in slot block + group.
  __host__ __device__ int Slots() const { return blocks + groups; }
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

// What a pass writes; null is what it does not. Where it writes scales, it
// writes nothing but dots. `partial` is [Slots()][kSums][kThreads].
struct Results {
  bool gradients;
  float *mass, *first, *second;
  float *bias, *linear, *precision, *center;  // where `gradients`
  const float *given_mass, *given_first;      // the moments, for center
  float2* scales;      // of each row [position, k], most and scale of its logits
  float* dots;         // of each row, the sum of share dr, with `scales`
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
constexpr int kRow = kSide * Q;
template <int Q>
constexpr int kRowsSize = kWarps * kChunk * kEight * kRow<Q>;

// Floats of shared memory.
template <bool kGradient, int Q>
int SharedSize(const Division& d) {
  return 2 * StageSize<Q>(d) +
         (kGradient ? 2 * VotesSize(d) + kRowsSize<Q> : VotesSize(d));
}

// What a chunk's votes have in shared memory: the logit, which becomes activation *
// share, and the gradient of activation * share, which becomes that of the logit.
template <bool kGradient>
struct alignas(kGradient ? 8 : 4) TermsOf {
  float z;
  __device__ TermsOf(float z, float) : z(z) {}
};
template <>
struct alignas(8) TermsOf<true> {
  float z, dq;
  __device__ TermsOf(float z, float dq) : z(z), dq(dq) {}
};

// Begins to write the facts of a child, which may not exist, and waits for nothing.
// `equal` is its share where there are no logits, kEqual. Where there are, kGiven comes
// with scales.
template <bool kEqual, typename N>
__device__ void StageFacts(const Inputs& in, int capsule, float equal, Facts* to) {
  if (capsule < 0) {
    *to = {0, 0, 0, 0};
    return;
  }
  if (!kEqual && in.rule == Rule::kGiven) {
    Stage<1, 1>(&in.scales[capsule].x, &to->most);
    Stage<1, 1>(&in.scales[capsule].y, &to->scale);
  } else {
    to->most = 0;
    to->scale = kEqual ? equal : 1;
  }
  if (!kEqual && in.dots != nullptr) {
    Stage<1, 1>(in.dots + capsule, &to->dot);
  } else {
    to->dot = 0;
  }
  if (in.activations != nullptr) {
    Stage<1, 1>(static_cast<const N*>(in.activations) + capsule, &to->activation);
  } else {
    to->activation = 1;
  }
}

// The window of which a thread brings children, and the next of them. Rows of poses are
// [child][window][row] to threads, so that all of a thread are of one window.
template <bool kEqual>
struct Source {
  Corner corner;
  Child child;
  bool any;
  int capsule;  // of the child, or -1 where there is none
  float equal;  // share of the child, where kEqual

  __device__ Source(const Inputs& in, const Division& d, int group, int chunk)
      : corner(d.image, Pixel(d.image, Position(d, group))),
        child(d.image, chunk * kChunk + (threadIdx.x / kSide >> d.windows_log2())),
        any(Position(d, group) < d.positions) {
    Find(in, d);
  }
  __device__ void Find(const Inputs& in, const Division& d) {
    const bool exists = any && child.kh < d.image.y.kernel;
    capsule = exists ? corner.Capsule(d.image, child) : -1;
    if constexpr (!kEqual) return;
    const bool over_all = in.p.normalize == kAll && capsule >= 0;
    const int windows = over_all ? d.image.WindowsOf(capsule) : 1;
    equal = __fdividef(1, static_cast<float>(windows * d.outs));
  }
  __device__ void Advance(const Inputs& in, const Division& d, int by) {
    child.c += by;
    if (capsule >= 0) capsule += by;
    if (child.c < d.image.channels) return;
    child.Advance(d.image, 0);
    Find(in, d);
  }
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

// Begins to fill a stage, with the chunk after that of the call before. Returns whether
// all children that this thread brings exist.
template <bool kEqual, int Q>
__device__ bool FillStage(const Inputs& in, const Division& d, int chunk,
                          Source<kEqual>* source, const StageOf<Q>& stage) {
  bool exist = true;
  WithElements(in.element, [&](auto zero) {
    using N = decltype(zero);
    StageWeights(static_cast<const N*>(in.weights) +
                     int64_t{chunk} * kChunk * d.outs * Q * kSide,
                 RowsOf<Q>(d, chunk), stage.weights);
    // Zeros, for what is not a number must not meet the child beside it.
    ClearRows<kThreads>(RowsOf<Q>(d, chunk), kChunk * d.outs * Q,
                        [&](int row) { return stage.weights + row * kSide; });
    const int row = threadIdx.x % kSide, end = kChunk << d.windows_log2();
#pragma unroll 1
    for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
      const int capsule = source->capsule;
      exist = exist && capsule >= 0;
      if (row == 0) StageFacts<kEqual, N>(in, capsule, source->equal, stage.facts + e);
      StagePoseRow<Q>(static_cast<const N*>(in.poses), capsule, row,
                      stage.poses + e * Q * kSide);
      source->Advance(in, d, kThreads / kSide >> d.windows_log2());
    }
  });
  return exist;
}

// Waits for what this thread has brought of a stage, and prepares it.
template <int Q>
__device__ void AwaitStage(const Inputs& in, const Division& d, int chunk,
                           const StageOf<Q>& stage) {
  __pipeline_wait_prior(0);
  if (in.element != Element::kFloat) return;  // exact in TF32
  PrepareWeights(RowsOf<Q>(d, chunk), stage.weights);
  const int end = kChunk << d.windows_log2();
#pragma unroll 1
  for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
    PreparePoseRow<Q>(threadIdx.x % kSide, stage.poses + e * Q * kSide);
  }
}

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_DIVISION_CUH_
