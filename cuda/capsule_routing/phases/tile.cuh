// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What the kernels of capsule routing in phases share: operands of products, sizes, and
// where numbers lie.
//
// Products are m16n8k8 on tensor cores, whose rows are samples. Dimensions that are no
// multiples of a product's are padded with zeros on both sides.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_TILE_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_TILE_CUH_

#include <cstdint>
#include <type_traits>

#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_routing::phases {

constexpr int kTileSamples = 16;  // rows of a product
constexpr int kBlockD = 16;       // elements of an output capsule taken together
constexpr int kStepK = 8;         // and of an input capsule
constexpr int kRun = 8;           // input capsules whose inner products lie together
constexpr int kPassWarps = 16;    // of a block of a pass
constexpr int kFinishWarps = 16;  // of a block between passes

// Marks an element S of tensors whose products have float's precision: operands are
// split, but for 16-bit weights and input, which are exact in TF32.
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
// Whether tensors of S can hold sums of A.
template <typename S, typename A>
constexpr bool kHoldsSums = std::is_same_v<S, A> || std::is_same_v<S, Split<A>>;

// What is cut off to TF32 loses this much on average: products with what was made
// larger by as much are right on average.
template <typename A>
__host__ __device__ constexpr A Uncut(bool split) {
  return split || std::is_same_v<A, double> ? A{1} : A{1 + 0.71f * 0x1p-11f};
}

// Vectors are stored times kScale, for their products with weights would else overflow
// where no prediction does.
template <typename A>
constexpr A kScale = 0x1p-8f;

// N numbers of an operand. Tensor cores cut floats off to TF32.
template <int N, typename A>
struct Numbers {
  A at[N];

  __device__ void Set(int n, A x) { at[n] = x; }
};

// What was an S, as tensor cores are to cut it off: to the nearest on average.
template <typename S, typename A>
__device__ A Rounded(A x) {
  return std::is_same_v<S, float> ? x * Uncut<A>(false) : x;
}

// c += a b, or c = a b where kSet. A lane (g, t) has of a (g, t), (g + 8, t), (g, t +
// 4), (g + 8, t + 4); of b (t, g), (t + 4, g); of c (g, 2t), (g, 2t + 1), (g + 8, 2t),
// (g + 8, 2t + 1).
template <bool kSet = false>
__device__ void MultiplyAdd(const Numbers<4, float>& a, const Numbers<2, float>& b,
                            float (&c)[4]) {
  const uint32_t a_bits[4] = {__float_as_uint(a.at[0]), __float_as_uint(a.at[1]),
                              __float_as_uint(a.at[2]), __float_as_uint(a.at[3])};
  const uint32_t b_bits[2] = {__float_as_uint(b.at[0]), __float_as_uint(b.at[1])};
  if constexpr (kSet) {
    SetToProduct(a_bits, b_bits, c);
  } else {
    Multiply(a_bits, b_bits, c);
  }
}
template <bool kSet = false>
__device__ void MultiplyAdd(const Numbers<4, double>& a, const Numbers<2, double>& b,
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

// How the operands of a product are taken whose right one has elements of tensors of S.
template <typename S>
constexpr Tf32 kLeft = kIsSplit<S> ? Tf32::kSplit : Tf32::kExact;
template <typename S>
constexpr Tf32 kRight = std::is_same_v<S, Split<float>> ? Tf32::kSplit : Tf32::kExact;

template <Tf32 kTf32, int N>
__device__ Operand<N, kTf32> OperandOf(const Numbers<N, float>& numbers) {
  Operand<N, kTf32> operand;
#pragma unroll
  for (int n = 0; n < N; ++n) SetFinite<kTf32>(n, numbers.at[n], &operand);
  return operand;
}

// As MultiplyAdd. Tensor cores cut sums off instead of rounding them, which adds up;
// products of split operands are therefore added to c in float.
template <Tf32 kA, Tf32 kB, bool kSet = false, typename A>
__device__ void MultiplyAddOf(const Numbers<4, A>& a, const Numbers<2, A>& b,
                              A (&c)[4]) {
  if constexpr (kA == Tf32::kExact && kB == Tf32::kExact) {
    MultiplyAdd<kSet>(a, b, c);
  } else {
    float product[4] = {};
    Multiply(OperandOf<kA>(a), OperandOf<kB>(b), product);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] = kSet ? product[e] : c[e] + product[e];
  }
}

// Adds the sums of a's rows to those columns of c whose lanes have 1 and not 0 in
// `one`.
template <typename S, typename A>
__device__ void AddRows(const Numbers<4, A>& a, A one, A (&c)[4]) {
  Numbers<2, A> b;
  b.Set(0, one);
  b.Set(1, one);
  MultiplyAddOf<kLeft<S>, Tf32::kExact>(a, b, c);
}

// Input capsules whose weights a lane loads together.
template <typename A>
constexpr int kBatch = sizeof(A) == 8 ? 2 : 4;

struct Sizes {
  int64_t batch, in_caps, tiles;
  int out_caps, out_dim, in_dim;
  int blocks, steps;  // of kBlockD and kStepK elements
  int pitch;          // from one sample's input capsule to the next in shared memory
  bool pairs, words;  // in_dim is even, and a multiple of 4
  bool split;         // elements are Split
  int finish_wide;    // of those, warps that have other elements of an output capsule
  float epsilon;
  int64_t matrix, matrices;  // elements of one, and of those of an input capsule
  int64_t length;            // of a vector of output capsules

  __host__ __device__ int items() const { return out_caps * blocks; }
  // Lets the compiler know in_dim, unless kK is 0. Then out_dim is a multiple of
  // kBlockD, and nothing of weights is padding.
  template <int kK>
  __device__ void SetInDim() {
    if constexpr (kK == 0) return;
    in_dim = kK;
    steps = kK / kStepK;
    pitch = (steps | 1) * kStepK;
    pairs = words = true;
  }
};

// Input capsules from `begin` on.
struct Caps {
  int64_t begin, count;

  __host__ __device__ int64_t end() const { return begin + count; }
};

struct Place {
  // Of the first lane, so that the compiler knows that it is the same for all.
  int warp = __shfl_sync(~0u, threadIdx.x / kLanes, 0), warps = blockDim.x / kLanes;
  int lane = threadIdx.x % kLanes;
  int g = lane / 4, t = lane % 4;
};

// What a warp of a block works on, one after the other: an output capsule and, counting
// less often, three numbers more. Without a division.
struct Item {
  int j, first, second, third;

  // Number `number` of `out_caps` output capsules and as many of the others.
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

// Vectors of output capsules lie in memory as [tile][out_caps][block][half of a block]
// [lane][4], V and ds in the order of a left operand's numbers, sums in that of a
// result's; padded with zeros. The index of the first of a lane's four:
__device__ inline int64_t VectorIndex(const Sizes& z, int64_t tile, int j, int block,
                                      int half, int lane) {
  return ((((tile * z.out_caps + j) * z.blocks + block) * 2 + half) * kLanes + lane) *
         4;
}
// Index of element d of sample row `b` of a tile, in the order of a left operand.
__device__ inline int64_t OperandIndex(const Sizes& z, int64_t tile, int j, int b,
                                       int d) {
  const int lane = b % 8 * 4 + d % 4, number = b / 8 + d % 8 / 4 * 2;
  return VectorIndex(z, tile, j, d / kBlockD, d / 8 % 2, lane) + number;
}

// Sets a left operand, for each half of a block, from the vector there.
template <typename A>
__device__ void LoadVector(const A* from, Numbers<4, A> (&v)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto pack = *reinterpret_cast<const Pack<A, 4>*>(from + h * (4 * kLanes));
#pragma unroll
    for (int n = 0; n < 4; ++n) v[h].Set(n, pack.at[n]);
  }
}

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_TILE_CUH_
