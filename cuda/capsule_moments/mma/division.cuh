// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// PassKernel's work split, and its stages in shared memory.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/mma/tile.cuh"
#include "cuda/capsule_moments/mma/walk.cuh"

namespace capsops::capsule_moments::mma {

constexpr int kChunk = 8;  // children per stage

// Work split. The children are divided into `ranges` ranges of `chunks` chunks. A range
// has its own blocks (x, range), which split its units (group, chunk).
struct Division {
  Image image;
  int lanes_log2;  // log2 of lanes(), the parents padded to 8, 16 or 32
  int positions;
  int children;
  int outs;
  int groups, chunks, ranges;
  int blocks;           // per range
  bool direct;          // whether the pass has kDirect
  bool sums_in_shared;  // whether shared memory has room for a range's WeightSums
  bool ordered;         // whether all ranges add to the same slots, one after another

  __host__ __device__ int lanes() const { return 1 << lanes_log2; }
  // Windows per group. A block does one group at a time.
  __host__ __device__ int windows_log2() const { return 8 - lanes_log2; }
  __host__ __device__ int windows() const { return kThreads >> lanes_log2; }
  // Units of a range.
  __host__ __device__ int Units() const { return groups * chunks; }
  // Slots for partial sums, and sets of them. A block with a part of a group uses slot
  // block + group, which is unique within a range: the next part has a later block or a
  // later group.
  __host__ __device__ int Sets() const { return ordered ? 1 : ranges; }
  __host__ __device__ int Slots() const { return Sets() * (blocks + groups); }
  __device__ int Slot(int range, int block, int group) const {
    return (ordered ? 0 : range) * (blocks + groups) + block + group;
  }
  // First unit of a block, and the block that has a given unit.
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

// A thread's window in the group, and its parent. A warp has 8 windows x 4 parents.
struct ThreadCoord {
  int window, parent;
  __device__ explicit ThreadCoord(const Division& d) {
    const int warps = d.lanes() / kFour, warp = threadIdx.x / kLanes;
    window = warp / warps * kEight + threadIdx.x % kLanes / kFour;
    parent = warp % warps * kFour + threadIdx.x % kFour;
  }
};

// The arrays of one stage in shared memory.
template <int Q>
struct StageView {
  float* weights;   // [kChunk][outs][Q][4]
  float* poses;     // [kChunk][windows][Q][4]
  RowState* state;  // [kChunk][windows]

  __device__ StageView(const Division& d, float* from)
      : weights(from),
        poses(weights + kChunk * d.outs * Q * kSide),
        state(reinterpret_cast<RowState*>(poses + kChunk * d.windows() * Q * kSide)) {}
};

// Children whose gradients share the eight columns of a product.
template <int Q>
constexpr int kPair = Q == kFour ? 2 : 1;

// Layout of a block's sums of weight gradients, and of prior gradients if `prior`:
// float4 [kWarps][vectors]. Each warp sums over its own windows and has
//   - kLanes vectors per kPair children. Lane 4 g + t has parent g % 4 and elements
//     [q][r]: q = 2t and 2t + 1 with r = g / 4, then both with r = 2 + g / 4. With a
//     pair, q + 4 means element q of the second child.
//   - if `prior`, one vector per child: the gradients of the warp's four parents.
template <int Q>
struct WeightSums {
  int children, vectors;

  __host__ __device__ WeightSums(const Division& d, bool prior)
      : children(d.chunks * kChunk),
        vectors(children / kPair<Q> * kLanes + (prior ? children : 0)) {}
  __host__ __device__ int Size() const { return kWarps * vectors * 4; }
  // Offset in floats of the first child's vector of the prior, in a warp's vectors.
  __host__ __device__ int Prior() const { return children / kPair<Q> * kLanes * 4; }
};

// Sizes in floats of a stage, of one value per vote of a chunk, and of all warps' pose
// gradients of a chunk. A row of votes is padded by four words, which avoids bank
// conflicts whether a thread has one parent (PassKernel) or eight (ShareChunk).
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

// Size in words of the selection matrices of WeightGradient::Compute.
template <int Q>
constexpr int kSelectionsSize = 2 * kLanes * kSelectionWords<Q>;

// Size in floats of the terms of a chunk's votes, or if `direct` of the warps' sums of
// share dq.
template <bool kGradient>
__host__ __device__ int TermsSize(const Division& d, bool direct) {
  if (direct) return kGradient ? kWarps * kChunk * kEight : 0;
  return (kGradient ? 2 : 1) * VotesSize(d);
}

// Size of PassKernel's shared memory in floats: stages, terms, and with kGradient pose
// gradients, selections and WeightSums.
template <bool kGradient, int Q>
int SharedSize(const Division& d, bool prior) {
  const int size = 2 * StageSize<Q>(d) + TermsSize<kGradient>(d, d.direct);
  if (!kGradient) return size;
  return size + kRowsSize<Q> + kSelectionsSize<Q> +
         (d.sums_in_shared ? WeightSums<Q>(d, prior).Size() : 0);
}

// Terms of a vote in shared memory: the logit, later replaced by activation * share,
// and the gradient of activation * share, later replaced by that of the logit.
template <bool kGradient>
struct alignas(kGradient ? 8 : 4) VoteTerms {
  float z;
  __device__ VoteTerms(float z, float) : z(z) {}
};
template <>
struct alignas(8) VoteTerms<true> {
  float z, dq;
  __device__ VoteTerms(float z, float dq) : z(z), dq(dq) {}
};

// Starts the copies of a row's state; `capsule` is -1 outside of the image. Without
// logits (kEqual) every share is `equal`. With logits, the rule kGiven needs in.scales.
template <bool kEqual, typename N>
__device__ void StageState(const Inputs& in, int capsule, float equal, RowState* to) {
  if (capsule < 0) {
    *to = {0, 0, 0, 0};
    return;
  }
  if (!kEqual && in.rule == Rule::kGiven) {
    Stage<1, 1>(&in.scales[capsule].x, &to->maximum);
    Stage<1, 1>(&in.scales[capsule].y, &to->scale);
  } else {
    to->maximum = 0;
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

// Iterates over the children that a thread stages, which are all of one window. Threads
// take pose rows in the order [child][window][row].
template <bool kEqual>
struct ChildIterator {
  Corner corner;
  Child child;
  bool any;     // whether the window exists
  int capsule;  // index of the child, or -1 outside the image
  float equal;  // share of the child, if kEqual

  __device__ ChildIterator(const Inputs& in, const Division& d, int group, int chunk)
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

// Number of weight rows of a chunk; 0 if it begins after the last child.
template <int Q>
__device__ int RowsOf(const Division& d, int chunk) {
  return max(0, min(kChunk, d.children - chunk * kChunk)) * d.outs * Q;
}

// Starts the copies of a stage. `source` is at the first child of `chunk`, and advances
// to the next chunk. Returns whether all children that this thread stages exist.
template <bool kEqual, int Q>
__device__ bool FillStage(const Inputs& in, const Division& d, int chunk,
                          ChildIterator<kEqual>* source, const StageView<Q>& stage) {
  bool exist = true;
  WithElements(in.element, [&](auto zero) {
    using N = decltype(zero);
    StageWeights(static_cast<const N*>(in.weights) +
                     int64_t{chunk} * kChunk * d.outs * Q * kSide,
                 RowsOf<Q>(d, chunk), stage.weights);
    // Clears the rest, since a NaN there would spread to the other child of a product.
    ClearRows<kThreads>(RowsOf<Q>(d, chunk), kChunk * d.outs * Q,
                        [&](int row) { return stage.weights + row * kSide; });
    const int row = threadIdx.x % kSide, end = kChunk << d.windows_log2();
#pragma unroll 1
    for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
      const int capsule = source->capsule;
      exist = exist && capsule >= 0;
      if (row == 0) StageState<kEqual, N>(in, capsule, source->equal, stage.state + e);
      StagePoseRow<Q>(static_cast<const N*>(in.poses), capsule, row,
                      stage.poses + e * Q * kSide);
      source->Advance(in, d, kThreads / kSide >> d.windows_log2());
    }
  });
  return exist;
}

// Waits for this thread's copies of a stage, and rounds them to TF32 unless kSplit.
template <bool kSplit, int Q>
__device__ void WaitForStage(const Inputs& in, const Division& d, int chunk,
                             const StageView<Q>& stage) {
  __pipeline_wait_prior(0);
  if constexpr (!kSplit) {
    if (in.element != Element::kFloat) return;  // 16-bit elements are exact in TF32
    PrepareWeights(RowsOf<Q>(d, chunk), stage.weights);
    const int end = kChunk << d.windows_log2();
#pragma unroll 1
    for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
      PreparePoseRow<Q>(threadIdx.x % kSide, stage.poses + e * Q * kSide);
    }
  }
}

}  // namespace capsops::capsule_moments::mma
