// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Input stationary: one thread per number of a tile of the image, which it loads into
// shared memory. A block also stages as many kernels as the image has channels, and a
// thread computes the output element whose window begins at its pixel, for the kernel
// with its channel's index. Threads at two edges of the tile have no output.
#pragma once

#include "cuda/studies/khandwawala.cuh"

namespace capsops::studies::inq_conv {

constexpr int kConstantWeights = 16384;  // 64 KB, all of constant memory
__constant__ float constant_weights[kConstantWeights];

// kSize and kChannels are 0 if they are not constants; otherwise strides are 1.
template <Form kForm, int kPowers, int kTile, int kSize, int kChannels>
__global__ void __launch_bounds__(kSize ? kChannels * (kTile + kSize - 1) *
                                              (kTile + kSize - 1)
                                        : 1024)
    InputStationary(Sizes s, const float* __restrict__ image,
                    const int* __restrict__ kernels, float* __restrict__ output) {
  extern __shared__ __align__(16) float tile[];  // [edge, edge, channels]
  const int size = kSize ? kSize : s.size,
            channels = kChannels ? kChannels : s.channels;
  constexpr int kNumbers = NumbersOf(kForm);
  const int edge = kTile + size - 1, numbers = size * size * channels * kNumbers;
  int* const shared = reinterpret_cast<int*>(tile) + edge * edge * channels;
  const int tx = threadIdx.x, ty = threadIdx.y, tz = threadIdx.z;
  const int n = blockIdx.x * channels + tx;
  const int64_t y = int64_t{blockIdx.y} * kTile + ty;  // column
  const int64_t z = int64_t{blockIdx.z} * kTile + tz;  // row

  if (kForm != Form::kConstant && ty < size && tz < size) {
    const int from = ((tz * size + ty) * channels + tx) * kNumbers;
    for (int k = 0; k < channels; ++k) {
      if (n - tx + k >= s.out_channels) break;
      const int* const own = kernels + int64_t{n - tx + k} * numbers;
      for (int i = from; i < from + kNumbers; ++i) shared[k * numbers + i] = own[i];
    }
  }
  const bool inside = z < s.in_height && y < s.in_width;
  tile[(tz * edge + ty) * channels + tx] =
      inside ? image[(z * s.in_width + y) * channels + tx] : 0.0f;
  __syncthreads();
  const Place to = Place::At<kSize != 0>(s, z, y);
  if (ty >= kTile || tz >= kTile || n >= s.out_channels || !to.exists) return;

  float total = 0;
  Sums<kPowers> sums;
  for (int k = 0; k < channels; ++k) {
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        const int place = (i * size + j) * channels + k;
        const float x = tile[((tz + i) * edge + ty + j) * channels + k];
        const int* const weight = shared + tx * numbers + place * kNumbers;
        if constexpr (kForm == Form::kValues) {
          total += x * __int_as_float(*weight);
        } else if constexpr (kForm == Form::kConstant) {
          sums.AddAtWeight(constant_weights[n * numbers + place], s.lowest_weight, x);
        } else if (weight[1] > 0) {
          sums.of[weight[0] - s.lowest] += x;
        } else if (weight[1] < 0) {
          sums.of[weight[0] - s.lowest] -= x;
        }
      }
    }
  }
  if constexpr (SumsByWeight(kForm)) total = sums.Total(s.lowest_weight);
  output[(n * s.out_height + to.row) * s.out_width + to.column] = total;
}

}  // namespace capsops::studies::inq_conv
