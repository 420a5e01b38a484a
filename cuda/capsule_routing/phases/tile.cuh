// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Operands, sizes and memory layouts of the `phases` kernels.
//
// Products are m16n8k8 on tensor cores, with samples as rows. Dimensions are
// zero-padded to multiples of a product's.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_routing::phases {

constexpr int kTileSamples = 16;  // rows of a product
constexpr int kBlockD = 16;       // elements of an output capsule per block
constexpr int kStepK = 8;         // elements of an input capsule per step
constexpr int kRun = 8;  // input capsules whose inner products are computed together
constexpr int kPassWarps = 16;    // warps per block of a pass
constexpr int kFinishWarps = 16;  // warps per block between passes

// Element type of tensors whose products need float's precision. Operands are split
// into TF32 parts, except 16-bit weights and input, which are exact in TF32.
template <typename S>
struct Split {
  S number;
};
using capsops::Narrow;
using capsops::Widen;
template <typename S>
__device__ float Widen(Split<S> x) {
  return capsops::Widen(x.number);
}
template <typename S>
__device__ void Narrow(float x, Split<S>* to) {
  capsops::Narrow(x, &to->number);
}
template <typename S>
constexpr bool kIsSplit = false;
template <typename S>
constexpr bool kIsSplit<Split<S>> = true;
// Whether tensors of S can hold sums of type A.
template <typename S, typename A>
constexpr bool kHoldsSums = std::is_same_v<S, A> || std::is_same_v<S, Split<A>>;

// Returns a factor that compensates on average for truncating an operand to TF32.
template <typename A>
__host__ __device__ constexpr A Debias(bool split) {
  return split || std::is_same_v<A, double> ? A{1} : A{1 + 0.71f * 0x1p-11f};
}

// Vectors are stored times kScale, so that their products with weights do not overflow
// unless predictions do.
template <typename A>
constexpr A kScale = 0x1p-8f;

// A lane's N elements of an operand.
template <int N, typename A>
struct Fragment {
  A at[N];

  __device__ void Set(int n, A x) { at[n] = x; }
};

// Compensates a float for its truncation to TF32; 16-bit elements are exact.
template <typename S, typename A>
__device__ A Rounded(A x) {
  return std::is_same_v<S, float> ? x * Debias<A>(false) : x;
}

// Precision of the left and the right operand if the right one has elements S.
template <typename S>
constexpr Tf32 kLeft = kIsSplit<S> ? Tf32::kSplit : Tf32::kExact;
template <typename S>
constexpr Tf32 kRight = std::is_same_v<S, Split<float>> ? Tf32::kSplit : Tf32::kExact;

template <Tf32 kTf32, int N>
__device__ Operand<N, kTf32> OperandOf(const Fragment<N, float>& numbers) {
  Operand<N, kTf32> operand;
#pragma unroll
  for (int n = 0; n < N; ++n) SetFinite<kTf32>(n, numbers.at[n], &operand);
  return operand;
}

// c += a b, or c = a b if kSet. Lane (g, t) has these elements:
//   a  (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   b  (t, g), (t + 4, g)
//   c  (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// Tensor cores truncate sums, and that error accumulates; products of split operands
// are therefore added to c in float.
template <Tf32 kA, Tf32 kB, bool kSet = false>
__device__ void MultiplyAdd(const Fragment<4, float>& a, const Fragment<2, float>& b,
                            float (&c)[4]) {
  const auto left = OperandOf<kA>(a);
  const auto right = OperandOf<kB>(b);
  if constexpr (kA != Tf32::kExact || kB != Tf32::kExact) {
    float product[4] = {};
    Multiply(left, right, product);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] = kSet ? product[e] : c[e] + product[e];
  } else if constexpr (kSet) {
    SetToProduct(left.high, right.high, c);
  } else {
    Multiply(left.high, right.high, c);
  }
}
template <Tf32, Tf32, bool kSet = false>
__device__ void MultiplyAdd(const Fragment<4, double>& a, const Fragment<2, double>& b,
                            double (&c)[4]) {
  if constexpr (kSet) c[0] = c[1] = c[2] = c[3] = 0;
#if __CUDA_ARCH__ >= 800
#pragma unroll
  for (int e = 0; e < 2; ++e) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 "
          "{%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(c[2 * h]), "+d"(c[2 * h + 1])
          : "d"(a.at[2 * e + h]), "d"(b.at[e]));
    }
  }
#endif
}

// Adds the row sums of a to each column g of c for which lanes (g, t) have 1 in `one`;
// the others have 0.
template <typename S, typename A>
__device__ void AddRows(const Fragment<4, A>& a, A one, A (&c)[4]) {
  Fragment<2, A> b;
  b.Set(0, one);
  b.Set(1, one);
  MultiplyAdd<kLeft<S>, Tf32::kExact>(a, b, c);
}

// Input capsules whose weights a lane loads at once.
template <typename A>
constexpr int kBatch = sizeof(A) == 8 ? 2 : 4;

// Sizes of the problem and of its padding.
struct Sizes {
  int64_t batch, in_caps, tiles;
  int out_caps, out_dim, in_dim;
  int blocks, steps;  // blocks of kBlockD and steps of kStepK elements
  int pitch;          // stride of a sample of an input capsule in shared memory
  bool pairs, words;  // whether in_dim is a multiple of 2, and of 4
  bool split;         // whether elements are Split
  int finish_wide;    // warps that split a capsule's elements; divides kFinishWarps
  float epsilon;
  int64_t matrix, matrices;  // weights of a capsule pair, and of an input capsule
  int64_t length;            // elements of a vector of output capsules

  __host__ __device__ int items() const { return out_caps * blocks; }
  // Makes in_dim a compile-time constant, unless kK is 0. Then out_dim must be a
  // multiple of kBlockD, and weights have no padding.
  template <int kK>
  __device__ void SetInDim() {
    if constexpr (kK == 0) return;
    in_dim = kK;
    steps = kK / kStepK;
    pitch = (steps | 1) * kStepK;
    pairs = words = true;
  }
};

// A range of input capsules.
struct Caps {
  int64_t begin, count;

  __host__ __device__ int64_t end() const { return begin + count; }
};

// A thread's warp and lane, with lane = 4 g + t.
struct Place {
  // A shuffle, so that the compiler knows that it is uniform in the warp.
  int warp = __shfl_sync(~0u, threadIdx.x / kLanes, 0), warps = blockDim.x / kLanes;
  int lane = threadIdx.x % kLanes;
  int g = lane / 4, t = lane % 4;
};

// A warp's work item: an output capsule `j`, which varies fastest, and then the digits
// `first`, `second` and `third`. Advances without divisions.
struct Item {
  int j, first, second, third;

  // Work item `number` of out_caps x of_first x of_second x ... items.
  __device__ Item(int number, int out_caps, int of_first, int of_second = 1 << 30)
      : j(number), first(0), second(0), third(0) {
    Wrap(out_caps, of_first, of_second);
  }
  __device__ void Next(int step, int out_caps, int of_first, int of_second = 1 << 30) {
    j += step;
    Wrap(out_caps, of_first, of_second);
  }

 private:
  __device__ void Wrap(int out_caps, int of_first, int of_second) {
    while (j >= out_caps) {
      j -= out_caps;
      if (++first < of_first) continue;
      first = 0;
      if (++second < of_second) continue;
      second = 0;
      ++third;
    }
  }
};

// Vectors of output capsules are stored as [tile][out_caps][block][half of a block]
// [lane][4], zero-padded; V and ds in the order of a left operand, sums in that of a
// result. Returns the index of a lane's first element.
__device__ inline int64_t VectorIndex(const Sizes& z, int64_t tile, int j, int block,
                                      int half, int lane) {
  return ((((tile * z.out_caps + j) * z.blocks + block) * 2 + half) * kLanes + lane) *
         4;
}
// Index of element d of sample `b` of a tile, in the order of a left operand.
__device__ inline int64_t OperandIndex(const Sizes& z, int64_t tile, int j, int b,
                                       int d) {
  const int lane = b % 8 * 4 + d % 4, number = b / 8 + d % 8 / 4 * 2;
  return VectorIndex(z, tile, j, d / kBlockD, d / 8 % 2, lane) + number;
}

// Loads the left operands of both halves of a block of a vector.
template <typename A>
__device__ void LoadVector(const A* from, Fragment<4, A> (&v)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) LoadPack<4>(from + h * (4 * kLanes), v[h].at);
}

}  // namespace capsops::capsule_routing::phases
