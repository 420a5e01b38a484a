// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Output stationary: a block has a tile of the image and one kernel in shared memory,
// and one thread per position of the kernel in the tile, which computes one output
// element. All threads of a block use the same weight at the same time, and load up to
// four pixels each. With a stride, most threads only load.
#pragma once

#include "cuda/studies/khandwawala.cuh"

namespace capsops::studies::inq_conv {

// Loads and discards a weight per channel, four at once where compilers would.
template <int kChannels>
__device__ void LoadAndDrop(const int* weights, int channels) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(weights));
  for (int d = 0; d < channels;) {
    int a, b, c, e;
    if constexpr (kChannels % 4 == 0 && kChannels > 0) {
      asm volatile("ld.volatile.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a), "=r"(b), "=r"(c), "=r"(e)
                   : "r"(at + 4 * d));
      d += 4;
    } else {
      asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(a) : "r"(at + 4 * d));
      d += 1;
    }
  }
}

// kSize and kChannels are 0 if they are not constants; otherwise strides are 1. `ends`
// is [out_channels, 2 * kPowers], for the sorted form.
template <Form kForm, int kPowers, int kTile, int kSize, int kChannels>
__global__ void OutputStationary(Sizes s, const float* __restrict__ image,
                                 const int* __restrict__ kernels,
                                 const int* __restrict__ ends,
                                 float* __restrict__ output) {
  extern __shared__ __align__(16) float tile[];  // [kTile, kTile, channels]
  const int size = kSize ? kSize : s.size,
            channels = kChannels ? kChannels : s.channels;
  constexpr int kNumbers = NumbersOf(kForm);
  int* const kernel = reinterpret_cast<int*>(tile) + kTile * kTile * channels;
  const int block = kTile - size + 1;  // threads in each direction, at least `size`
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t x = int64_t{blockIdx.x} * block + tx;
  const int64_t y = int64_t{blockIdx.y} * block + ty;

  if (tx < size && ty < size) {
    const int from = (ty * size + tx) * channels * kNumbers;
    const int* const own =
        kernels + int64_t{blockIdx.z} * size * size * channels * kNumbers;
    for (int i = from; i < from + channels * kNumbers; ++i) kernel[i] = own[i];
  }
  for (int down = 0; down < 2 * block; down += block) {
    for (int across = 0; across < 2 * block; across += block) {
      if (ty + down >= kTile || tx + across >= kTile) continue;
      if (y + down >= s.in_height || x + across >= s.in_width) continue;
      const float* const pixel =
          image + ((y + down) * s.in_width + x + across) * channels;
      float* const to = tile + ((ty + down) * kTile + tx + across) * channels;
      for (int d = 0; d < channels; ++d) to[d] = pixel[d];
    }
  }
  __syncthreads();
  const Place to = Place::At<kSize != 0>(s, y, x);
  if (!to.exists) return;

  float total = 0;
  Sums<kPowers> sums;
  int own_ends[2 * kPowers + 1];
  if constexpr (kForm == Form::kSorted) {
    for (int m = 0; m < 2 * kPowers; ++m) {
      own_ends[m] = ends[int64_t{blockIdx.z} * 2 * kPowers + m];
    }
  }
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) {
      const int place = (i * size + j) * channels;
      const float* const pixel = tile + ((ty + i) * kTile + tx + j) * channels;
      if constexpr (kForm == Form::kUnused)
        LoadAndDrop<kChannels>(kernel + place, channels);
      for (int d = 0; d < channels; ++d) {
        const int* const weight = kernel + (place + d) * kNumbers;
        if constexpr (kForm == Form::kValues) {
          total += pixel[d] * __int_as_float(*weight);
        } else if constexpr (kForm == Form::kUnread || kForm == Form::kUnused) {
          total += pixel[d];
        } else if constexpr (kForm == Form::kPowerSign) {
          if (weight[1] > 0) {
            sums.of[weight[0] - s.lowest] += pixel[d];
          } else if (weight[1] < 0) {
            sums.of[weight[0] - s.lowest] -= pixel[d];
          }
        } else if constexpr (kForm == Form::kPowerChain) {
          if (weight[1] > 0) {
            sums.AddAtEqual(weight[0] - s.lowest, pixel[d]);
          } else if (weight[1] < 0) {
            sums.AddAtEqual(weight[0] - s.lowest, -pixel[d]);
          }
        } else {
          const int read = ((ty + weight[1]) * kTile + tx + weight[2]) * channels;
          sums.AddAtPlace(place + d, own_ends, tile[read + weight[3]]);
        }
      }
    }
  }
  if constexpr (SumsByWeight(kForm)) total = sums.Total(s.lowest_weight);
  output[(blockIdx.z * s.out_height + to.row) * s.out_width + to.column] = total;
}

}  // namespace capsops::studies::inq_conv
