// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of routing for a pixel whose votes are in the registers of a group of
// lanes, at most a warp. Each parent has `lanes` lanes, and each of these holds kQuads
// quads of its numbers. Lanes exchange sums and maxima by shuffles. Lanes past the last
// parent have votes and shares of zero. If a pixel has many types, the four warps of a
// block share the types, and exchange sums over types through shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv_routing/slabs/pixels.h"
#include "cuda/capsule_routing/squash.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv_routing::slabs {

// A lane's votes of a pixel: kQuads quads for each of kTypes types. The last types may
// not exist. S is the type of votes.
template <typename S, int kTypes, int kQuads>
class PixelLanes {
 public:
  static constexpr int kNumbers = 4 * kQuads;
  using Squash = capsule_routing::Squash<float>;

  // Warps that share a pixel exchange sums in `exchanged`, shared memory.
  __device__ PixelLanes(const Tiling& tiling, const S* logits, float4* exchanged)
      : z(tiling),
        lane(threadIdx.x % z.group),
        parent(lane / z.lanes),
        first(z.divided ? threadIdx.x / kLanes * kTypes : 0),
        exists(parent < z.parents),
        column_(parent * z.dim + 4 * (lane - parent * z.lanes)),
        exchanged_(exchanged) {
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
      logits_[i] = !exists      ? -INFINITY
                   : HasType(i) ? Widen(logits[(first + i) * z.parents + parent])
                                : 0.f;
    }
  }

  // Whether type first + i exists.
  __device__ bool HasType(int i) const { return first + i < z.types; }

  // The offset of this lane's quad q in a row [parents][dim].
  __device__ int Column(int q) const { return column_ + 4 * q * z.lanes; }
  // Loads this lane's quads of a row [parents][dim], or zeros unless `loads`.
  __device__ void Load(const S* row, bool loads, float (&to)[kNumbers]) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      Pack<S, 4> pack{};
      if (loads) pack = *reinterpret_cast<const Pack<S, 4>*>(row + Column(q));
#pragma unroll
      for (int e = 0; e < 4; ++e) to[4 * q + e] = Widen(pack.at[e]);
    }
  }
  __device__ void Store(const float (&from)[kNumbers], S* row) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      Pack<S, 4> pack;
#pragma unroll
      for (int e = 0; e < 4; ++e) Narrow(from[4 * q + e], &pack.at[e]);
      // As one store; nvcc splits the store of a Pack.
      using Quad = std::conditional_t<sizeof(S) == 4, uint4, uint2>;
      *reinterpret_cast<Quad*>(row + Column(q)) = reinterpret_cast<const Quad&>(pack);
    }
  }
  __device__ void LoadVotes(const S* pixel, bool loads) {
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
      Load(pixel + (first + i) * z.columns(), loads && HasType(i), votes[i]);
    }
  }

  // Replaces dots by the softmax over parents of logits + dots.
  __device__ void Softmax(float (&shares)[kTypes]) const {
    float most[kTypes];
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
      shares[i] += logits_[i];
      most[i] = z.leaky ? fmaxf(shares[i], 0) : shares[i];
    }
    ForParents([&](int offset) {
#pragma unroll
      for (int i = 0; i < kTypes; ++i) {
        most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], offset));
      }
    });
    float sums[kTypes];
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
      sums[i] = shares[i] = ExpBelow(shares[i], most[i]);
    }
    AddParents(sums);
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
      if (z.leaky) sums[i] += ExpBelow(0, most[i]);
      shares[i] = __fdividef(shares[i], sums[i]);  // all sums >= 1
    }
  }

  // Adds the sum over types of coefficient * vote to `sums`.
  __device__ void AddVotes(const float (&coefficients)[kTypes],
                           float (&sums)[kNumbers]) {
    float own[kNumbers] = {};
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
#pragma unroll
      for (int n = 0; n < kNumbers; ++n) own[n] += coefficients[i] * votes[i][n];
    }
    if (z.divided) AddWarps(own);
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) sums[n] += own[n];
  }
  // Computes the dot product of each vote with a vector of the parent.
  __device__ void Dots(const float (&vector)[kNumbers], float (&dots)[kTypes]) const {
#pragma unroll
    for (int i = 0; i < kTypes; ++i) dots[i] = Product(votes[i], vector);
    AddLanes(dots);
  }
  __device__ static float Product(const float (&a)[kNumbers],
                                  const float (&b)[kNumbers], float scale = 1) {
    float product = 0;
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) product += scale * a[n] * b[n];
    return product;
  }

  // Returns the factors of a parent's squash.
  __device__ Squash SquashOf(const float (&sums)[kNumbers]) const {
    constexpr float kShrink = capsule_routing::kShrink<float>;
    float q[1] = {Product(sums, sums)}, small[1] = {};
    AddLanes(q);
    if (__any_sync(~0u, q[0] > capsule_routing::kHuge<float>)) {
#pragma unroll
      for (int n = 0; n < kNumbers; ++n) {
        const float s = kShrink * sums[n];
        small[0] += s * s;
      }
      AddLanes(small);
    }
    return Squash(q[0], small[0], z.epsilon);
  }

  // Add up numbers over the lanes of a parent, or over the parents of a pixel.
  template <int kCount>
  __device__ void AddLanes(float (&numbers)[kCount]) const {
    for (int offset = z.lanes / 2; offset > 0; offset /= 2) AddAcross(offset, numbers);
  }
  template <int kCount>
  __device__ void AddParents(float (&numbers)[kCount]) const {
    ForParents([&](int offset) { AddAcross(offset, numbers); });
  }

  const Tiling& z;
  const int lane, parent, first;
  const bool exists;
  float votes[kTypes][kNumbers];

 private:
  template <typename Visit>
  __device__ void ForParents(const Visit& visit) const {
    for (int offset = z.lanes; offset < z.group; offset *= 2) visit(offset);
  }
  template <int kCount>
  __device__ static void AddAcross(int offset, float (&numbers)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      numbers[i] += __shfl_xor_sync(~0u, numbers[i], offset);
    }
  }

  // Adds up numbers over the warps of the block, in a fixed order. One barrier per call
  // is enough, because calls alternate between two buffers: a warp fills the other one
  // while others may still read this one.
  __device__ void AddWarps(float (&numbers)[kNumbers]) {
    turn_ ^= 1;
    float4* const parts = exchanged_ + turn_ * kQuads * kLaneThreads;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float* const quad = numbers + 4 * q;
      parts[q * kLaneThreads + threadIdx.x] =
          make_float4(quad[0], quad[1], quad[2], quad[3]);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) numbers[n] = 0;
#pragma unroll
    for (int from = 0; from < kLaneThreads; from += kLanes) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float4 quad = parts[q * kLaneThreads + from + threadIdx.x % kLanes];
        numbers[4 * q] += quad.x;
        numbers[4 * q + 1] += quad.y;
        numbers[4 * q + 2] += quad.z;
        numbers[4 * q + 3] += quad.w;
      }
    }
  }

  const int column_;
  float4* const exchanged_;
  float logits_[kTypes];
  int turn_ = 0;
};

// Calls visit(pixel) in the lanes of each of the block's pixels. Lanes without a pixel
// get a number past the last one, so that all warps of the block make each call.
template <typename Visit>
__device__ void ForPixels(const Tiling& z, int64_t pixels, const Visit& visit) {
  const int thread = z.divided ? threadIdx.x % kLanes : threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * z.pixels;
  for (int64_t first = int64_t{blockIdx.x} * z.pixels; first < pixels; first += step) {
    visit(first + thread / z.group);
  }
}

// Calls launch(types, quads) with the compile-time constants of PixelLanes.
template <typename Launch>
LaunchError WithLanes(const Tiling& z, const Launch& launch) {
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, 4> kFour;
  if (z.quads == 1) {
    return WithConstant<4, 8, 16>(z.lane_types,
                                  [&](auto types) { return launch(types, kOne); });
  }
  if (z.quads == 2) {
    return WithConstant<4, 8>(z.lane_types,
                              [&](auto types) { return launch(types, kTwo); });
  }
  return WithConstant<2, 4>(z.lane_types,
                            [&](auto types) { return launch(types, kFour); });
}

}  // namespace capsops::capsule_conv_routing::slabs
