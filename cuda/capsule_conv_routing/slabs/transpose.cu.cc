// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Transposes the image of a slab for the gradient of weights (weights.h).
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/weights.h"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv_routing::slabs {

// A block transposes kPositions positions of a row through shared memory, kDims
// channels at a time.
constexpr int kPositions = 128, kTransposeThreads = 256, kDims = 32;

// Transposes the rows that a slab reads, [frame][row][pixel][type][dim], to
// [dim][frame][row][remainder][copy][position]. Each row is padded with `lead` turns of
// zeros on both sides; a turn is x_stride pixels, one of each remainder.
template <int kCopies>
__global__ void __launch_bounds__(kTransposeThreads)
    TransposeImageKernel(const WeightSums w, int height, int quad_bits,
                         const float4* image, float* transposed) {
  __shared__ float tile[kDims][kPositions + 1];  // padded against bank conflicts
  GridDependencySynchronize();
  const int frame = blockIdx.x / w.y.read, y = blockIdx.x - frame * w.y.read;
  const int quads = w.dim / 4;
  const int turn_size = w.x_stride * w.types,
            real = static_cast<int>(w.width) * w.types;
  const float4* const from = image + (int64_t{frame} * height + y) * real * quads;
  const int before = w.lead * turn_size;
  const int all = static_cast<int>(w.pixels()) * turn_size + 2 * before;
  // The quads that this thread loads, and the position that it stores.
  const int together = 1 << quad_bits, quad = threadIdx.x & (together - 1);
  const int at = threadIdx.x % kPositions;
  const int begin = blockIdx.y * kPositions, position = begin + at;
  const int x = position / w.types, type = position - x * w.types;
  const int turn = x / w.x_stride, remainder = x - turn * w.x_stride;
  const int pitch = static_cast<int>(w.pitch), copy_size = static_cast<int>(w.line());
  const int64_t dim_size = int64_t{gridDim.x} * w.x_stride * kCopies * pitch;
  float* const row =
      transposed + (int64_t{blockIdx.x} * w.x_stride + remainder) * kCopies * pitch;
  for (int first = 0; first < quads; first += together) {
    __syncthreads();
#pragma unroll 4
    for (int to = threadIdx.x >> quad_bits; to < kPositions;
         to += kTransposeThreads >> quad_bits) {
      const int read = begin + to - before;
      float4 numbers{};
      if (read >= 0 && read < real && first + quad < quads) {
        numbers = from[read * quads + first + quad];
      }
      tile[4 * quad][to] = numbers.x;
      tile[4 * quad + 1][to] = numbers.y;
      tile[4 * quad + 2][to] = numbers.z;
      tile[4 * quad + 3][to] = numbers.w;
    }
    __syncthreads();
    if (position >= all) continue;
    const int dims = min(together, quads - first) * 4;
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) {
      const int index = (turn - copy) * w.types + type;
      if (index < 0 || index >= copy_size) continue;
      float* const to = row + copy * pitch + index + first * 4 * dim_size;
#pragma unroll 4
      for (int n = threadIdx.x / kPositions; n < dims;
           n += kTransposeThreads / kPositions) {
        to[n * dim_size] = tile[n][at];
      }
    }
  }
}

LaunchError TransposeImage(const GpuExec& exec, const char* op, const Problem& p,
                           const WeightSums& w, const float* image, float* transposed) {
  const int64_t lines = int64_t{w.z.read} * w.y.read;
  if (lines == 0) return {};
  const int quads = w.dim / 4;
  int quad_bits = 0;
  while (1 << quad_bits < std::min(quads, kDims / 4)) ++quad_bits;
  const dim3 blocks(
      lines, CeilDivide((w.pixels() + 2 * w.lead) * w.x_stride * w.types, kPositions));
  const auto launch = [&](auto copies) {
    return LaunchDependent(op, TransposeImageKernel<copies.value>, blocks,
                           kTransposeThreads, 0, exec, w, static_cast<int>(p.in_height),
                           quad_bits, reinterpret_cast<const float4*>(image),
                           transposed);
  };
  return WithConstant<1, 2, 4>(w.copies, launch);
}

}  // namespace capsops::capsule_conv_routing::slabs
