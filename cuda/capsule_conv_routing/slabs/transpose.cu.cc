// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Transposes the image of a slab for the gradient of weights.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/weights.h"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Transposes the rows that a slab reads to
// [depth taps][dim][frames][rows][remainder][copy][position]. A block has kPositions
// positions of a row, which begins and ends with `lead` turns of zeros.
constexpr int kPositions = 128, kTransposeThreads = 256, kDims = 32;

__global__ void __launch_bounds__(kTransposeThreads)
    TransposeImageKernel(const Patch patch, const WeightSums w, int dim_bits, int dim,
                         const float* input, float* transposed) {
  __shared__ float tile[kDims][kPositions + 1];
  GridDependencySynchronize();
  const int dims = 1 << dim_bits;  // that are transposed together
  const int64_t turn_size = w.x_stride * w.types, copy_size = w.line();
  const int64_t lines = w.frames * w.read_rows;
  const int64_t line = blockIdx.x, begin = int64_t{blockIdx.y} * kPositions;
  const int64_t slice = line / w.read_rows, y = line - slice * w.read_rows;
  const int64_t frame = patch.first + slice, image = frame / patch.per_image;
  const int64_t place = frame - image * patch.per_image;
  const int64_t real = w.width * w.types;  // positions of the image
  const int64_t before = w.lead * turn_size, all = w.pixels() * turn_size + 2 * before;
  for (int tap = 0; tap < patch.channels; ++tap) {
    const int64_t depth = place * patch.read_step + tap * patch.read_tap + patch.read;
    const bool inside = depth >= 0 && depth < patch.depth;
    const float* const from =
        input +
        ((image * patch.depth + depth) * patch.height + patch.row + y) * real * dim;
    for (int first = 0; first < dim; first += dims) {
      __syncthreads();
      const int k = threadIdx.x & (dims - 1);
#pragma unroll 4
      for (int at = threadIdx.x >> dim_bits; at < kPositions;
           at += kTransposeThreads >> dim_bits) {
        const int64_t position = begin + at - before;
        const bool there =
            inside && position >= 0 && position < real && first + k < dim;
        tile[k][at] = there ? from[position * dim + first + k] : 0;
      }
      __syncthreads();
      const int at = threadIdx.x % kPositions;
      const int64_t position = begin + at, x = position / w.types;
      if (position >= all) continue;
      const int64_t turn = x / w.x_stride, remainder = x - turn * w.x_stride;
      const int64_t type = position - x * w.types;
      const int64_t row = (line * w.x_stride + remainder) * w.copies;
      for (int copy = 0; copy < w.copies; ++copy) {
        const int64_t index = (turn - copy) * w.types + type;
        if (index < 0 || index >= copy_size) continue;
        float* const to = transposed + (row + copy) * w.pitch + index;
        for (int n = threadIdx.x / kPositions; n < dims && first + n < dim;
             n += kTransposeThreads / kPositions) {
          to[(tap * dim + first + n) * lines * w.x_stride * w.copies * w.pitch] =
              tile[n][at];
        }
      }
    }
  }
}

LaunchError TransposeImage(const GpuExec& exec, const char* op, const Problem& p,
                           const Slab& slab, const WeightSums& w, const float* input,
                           float* transposed) {
  const int dim = static_cast<int>(p.in_dim);
  int dim_bits = 0;
  while (1 << dim_bits < std::min(dim, kDims)) ++dim_bits;
  return LaunchDependent(
      op, TransposeImageKernel,
      dim3(w.frames * w.read_rows,
           CeilDivide((w.pixels() + 2 * w.lead) * w.x_stride * w.types, kPositions)),
      kTransposeThreads, 0, exec, Patch(p, slab), w, dim_bits, dim, input, transposed);
}

}  // namespace capsops::capsule_conv_routing::slabs
