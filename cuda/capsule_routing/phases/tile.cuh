// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How the kernels of a pass in three phases multiply, and lay out what they work on.
//
// A product m16n8k8 has 16 samples as its rows. A sample block has M such tiles: its
// sample s is row (g, h) of tile m, s = 2 M g + 2 m + h, where g is that of the lane
// and h says which of its two rows. In the accumulators a lane (g, t) = (lane / 4, lane
// % 4) has columns 2t and 2t + 1 of both rows, a float4 {h0 e0, h0 e1, h1 e0, h1 e1}.
// Contraction indices t and t + 4 are elements 2t and 2t + 1 too, so that such a float4
// is also a left operand, and everything that has samples lies in memory as float4:
//   vectors of output capsules (V, sums)  [sample block][capsule][DT][M][lane]
//   input, in shared memory               [in_cap][sample block][steps][M][lane]
// with zeros for what is past the last sample and element. out_dim is cut into parts of
// 8 DT elements, in_dim into steps of 8. A part of an output capsule is called a
// capsule here: most have one part.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_TILE_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_TILE_CUH_

#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_routing::phases {

constexpr int kRows = 16;       // of a tile
constexpr int kStep = 8;        // elements in one product, of in_dim or out_dim
constexpr int kMostWarps = 12;  // of a block of a pass: their registers are many

struct Sizes {
  int64_t batch, in_caps;
  int out_caps, out_dim, in_dim;
  int parts, caps;        // of an output capsule, and of all of them
  int steps;              // of in_dim
  int tiles, part_steps;  // M, DT
  float epsilon;
};

// The shape of a kernel: elements, how they are multiplied, tiles of a sample block,
// capsules of DT steps, of which a warp takes N together. Where kSteps is not 0, in_dim
// is 8 kSteps and every part is full.
template <typename ElementOf, Tf32 kTf32, int kM, int kDT, int kStepsOf>
struct Shape {
  using S = ElementOf;
  static constexpr int M = kM, DT = kDT, N = kDT > 2 ? 1 : 2, kSteps = kStepsOf;
  static constexpr int kSamples = kRows * M;  // of a sample block

  // 16 bits are exact; what is computed from them is not, and is split.
  static constexpr Tf32 kMade = kScaled<kTf32>;
  static constexpr Tf32 kOwn = kTf32;
  using Left = Operand<4, kMade>;  // of what is computed
  using Right = Operand<2, kOwn>;  // of a tensor's own numbers
  // What a computed number is multiplied by so that cutting it off is rounding it.
  static constexpr float kRound = kMade == Tf32::kRounded ? 1 + 0.71f * 0x1p-11f : 1;

  __host__ __device__ static int64_t Blocks(const Sizes& z) {
    return (z.batch + kSamples - 1) / kSamples;
  }
  // Numbers of a sample block's vector, in float4.
  __host__ __device__ static int64_t BlockLength(const Sizes& z) {
    return int64_t{z.caps} * (DT * M * kLanes);
  }
  __host__ __device__ static int64_t VectorLength(const Sizes& z) {
    return Blocks(z) * BlockLength(z);
  }
};

// Sets element n of an operand to x, which Prepare<>() or kRound made. A float may be
// so large that Operand would round its high part to infinity. Here it is rounded as
// Prepare() does it, but toward zero, which keeps it finite and takes no instruction
// more: it is up to 0.71 instead of 0.5 units off, which the sums over all input
// capsules bear.
template <int N, Tf32 kTf32>
__device__ void SetFinite(int n, float x, Operand<N, kTf32>* operand) {
  if constexpr (kTf32 == Tf32::kSplit) {
    const float rounded = __fmul_rz(x, 1 + 0.71f * 0x1p-11f);
    operand->high[n] = __float_as_uint(rounded) & 0xffffe000;
    operand->low[n] = __float_as_uint(x - __uint_as_float(operand->high[n]));
  } else {
    operand->SetPrepared(n, x);
  }
}

// A tensor's number as the products see it.
template <Tf32 kTf32>
__device__ float Seen(float x) {
  if constexpr (kTf32 != Tf32::kRounded) return x;
  return __uint_as_float(__float_as_uint(Prepare<kTf32>(x)) & 0xffffe000);
}

// Element n of x: which row, and which of the lane's columns of it.
__device__ inline float& At(float4& x, int n) { return (&x.x)[n]; }
__device__ inline float At(const float4& x, int n) { return (&x.x)[n]; }
// The element of a left operand that it is.
__host__ __device__ constexpr int LeftElement(int n) { return n % 2 * 2 + n / 2; }

__device__ inline void Add(const float4& x, float4* to) {
  to->x += x.x;
  to->y += x.y;
  to->z += x.z;
  to->w += x.w;
}

__device__ inline void StorePair(float x, float y, float* to) {
  *reinterpret_cast<float2*>(to) = {x, y};
}

// Place of a lane in a product's fragments.
struct Place {
  int lane = threadIdx.x % kLanes;
  int warp = threadIdx.x / kLanes;
  int g = lane / 4, t = lane % 4;
};

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_TILE_CUH_
