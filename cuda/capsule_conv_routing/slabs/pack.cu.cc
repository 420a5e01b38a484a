// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs the operands of the products that compute votes.
#include "cuda/capsule_conv_routing/slabs/pack.h"

#include <cstdint>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/common/divisor.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kPackThreads = 256;

// Copies the rows that a slab reads, 16 bytes at a time, to [frame][row][type][padded
// pixel][dim]. blockIdx.x is the row over all frames.
__global__ void __launch_bounds__(kPackThreads)
    PadImageKernel(int rows, int types, int padded, int units, int pad, int width,
                   int height, int first_row, int first_frame, const uint4* input,
                   uint4* copy) {
  GridDependencySynchronize();
  const int frame = blockIdx.x / rows, row = blockIdx.x - frame * rows;
  const uint4* const from =
      input +
      (int64_t{first_frame + frame} * height + first_row + row) * width * types * units;
  const int all = types * padded * units;
  uint4* const to = copy + int64_t{blockIdx.x} * all;
  for (int n = blockIdx.y * blockDim.x + threadIdx.x; n < all;
       n += gridDim.y * blockDim.x) {
    Digits<int> digits(n);
    const int unit = digits.Next(units), x = digits.Next(padded) - pad;
    const int type = digits.rest;
    to[n] = x >= 0 && x < width ? from[(int64_t{x} * types + type) * units + unit]
                                : uint4{};
  }
}

// Packs weights, [y][x][z][dim][columns], as [z][y][columns][x][dim]. A block
// transposes 32 columns of 32 elements.
template <typename S>
__global__ void __launch_bounds__(kPackThreads)
    PackWeightsKernel(int y_taps, int x_taps, int z_taps, int dim, int columns,
                      const S* weights, S* packed) {
  __shared__ S tile[32][33];
  GridDependencySynchronize();
  const int z = blockIdx.z / y_taps, y = blockIdx.z - z * y_taps;
  const int window = x_taps * dim;
  const int column = blockIdx.x * 32, k = blockIdx.y * 32, lane = threadIdx.x % 32;
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (k + n >= window || column + lane >= columns) continue;
    const int x = (k + n) / dim, e = k + n - x * dim;
    tile[n][lane] =
        weights[(((int64_t{y} * x_taps + x) * z_taps + z) * dim + e) * columns +
                column + lane];
  }
  __syncthreads();
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (column + n >= columns || k + lane >= window) continue;
    packed[(int64_t{blockIdx.z} * columns + column + n) * window + k + lane] =
        tile[lane][n];
  }
}

LaunchError PadImage(const GpuExec& exec, const char* op, const Problem& p,
                     const Slab& slab, int64_t padded, int64_t first_frame,
                     int64_t frames, int64_t units, const void* input, void* copy) {
  if (frames == 0) return {};
  constexpr int kUnits = 4;  // units that a thread copies
  const int64_t rows = slab.band.read_rows;
  return LaunchDependent(
      op, PadImageKernel,
      dim3(frames * rows, CeilDivide(p.types * padded * units, kPackThreads * kUnits)),
      kPackThreads, 0, exec, rows, p.types, padded, units, slab.phase.x.pad, p.in_width,
      p.in_height, slab.band.read, first_frame, static_cast<const uint4*>(input),
      static_cast<uint4*>(copy));
}

template <typename S>
LaunchError PackWeights(const GpuExec& exec, const char* op, int64_t y_taps,
                        int64_t x_taps, int64_t z_taps, int64_t dim, int64_t columns,
                        const S* weights, S* packed) {
  return LaunchDependent(
      op, PackWeightsKernel<S>,
      dim3(CeilDivide(columns, 32), CeilDivide(x_taps * dim, 32), z_taps * y_taps),
      kPackThreads, 0, exec, y_taps, x_taps, z_taps, dim, columns, weights, packed);
}

#define CAPSOPS_INSTANTIATE(S)                                                       \
  template LaunchError PackWeights<S>(const GpuExec&, const char*, int64_t, int64_t, \
                                      int64_t, int64_t, int64_t, const S*, S*);
CAPSOPS_FOR_EACH_PRODUCT_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
