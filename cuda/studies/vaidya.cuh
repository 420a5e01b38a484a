// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The four kernels of Vaidya, "Speeding up Capsules": one block per row of the output,
// one thread per pixel, the filter in shared memory and the input in global memory.
// They differ in the innermost product of two 4 x 4 matrices. The output starts at
// zero, and every product is added to it in global memory: the stores are inside the
// loop, as the counts in the paper's Table 2 say. docs/notebook/papers.md describes how
// we read the paper.
//
// Pointers are deliberately not __restrict__: the compiler must assume, as in the
// paper, that a store to `out` changes `img`. Nor do the loops of listings 1 and 2 have
// unroll pragmas: nvcc 13 keeps the loop over i, and so issues the loads that the paper
// counted.
//
// The benchmark compiles each kernel alone, so this header includes none of ours.
#pragma once

#include <cstdint>

namespace capsops::studies::capsule_conv {

constexpr int kPose = 16;  // elements of a 4 x 4 matrix

struct Filter {
  int height, width, channels;
};

// Listing 1, the baseline.
struct B {
  static __device__ void Add(float* out, const float* img, const float* kernel) {
    for (int i = 0; i < 4; i++) {
      for (int k = 0; k < 4; k++) {
        for (int j = 0; j < 4; j++) {
          out[i * 4 + j] += img[4 * i + k] * kernel[j + 4 * k];
        }
      }
    }
  }
};

// Listing 2, scalar accumulation.
struct I1 {
  static __device__ void Add(float* out, const float* img, const float* kernel) {
    for (int i = 0; i < 4; i++) {
      for (int j = 0; j < 4; j++) {
        float cur_val = 0;
        for (int k = 0; k < 4; k++) {
          cur_val += img[4 * i + k] * kernel[j + 4 * k];
        }
        out[i * 4 + j] += cur_val;
      }
    }
  }
};

// Listing 3, loop unrolling; column by column, in the order of the paper's appendix A.
struct I2 {
  template <int kI, int kJ>
  static __device__ void Entry(float* out, const float* img, const float* kernel) {
    out[4 * kI + kJ] += img[4 * kI] * kernel[kJ] + img[4 * kI + 1] * kernel[kJ + 4] +
                        img[4 * kI + 2] * kernel[kJ + 8] +
                        img[4 * kI + 3] * kernel[kJ + 12];
  }
  template <int kJ>
  static __device__ void Column(float* out, const float* img, const float* kernel) {
    Entry<0, kJ>(out, img, kernel);
    Entry<1, kJ>(out, img, kernel);
    Entry<2, kJ>(out, img, kernel);
    Entry<3, kJ>(out, img, kernel);
  }
  static __device__ void Add(float* out, const float* img, const float* kernel) {
    Column<0>(out, img, kernel);
    Column<1>(out, img, kernel);
    Column<2>(out, img, kernel);
    Column<3>(out, img, kernel);
  }
};

// Listing 4, scalar replacement: loads both matrices before the first store.
struct I3 {
  static __device__ void Add(float* out, const float* img, const float* kernel) {
    float t[kPose], k[kPose];
#pragma unroll
    for (int i = 0; i < kPose; i++) t[i] = img[i];
#pragma unroll
    for (int i = 0; i < kPose; i++) k[i] = kernel[i];
    I2::Add(out, t, k);
  }
};

template <typename Product>
__global__ void RowKernel(Filter filter, int image_width, float* img,
                          float* filter_in_memory, float* out) {
  extern __shared__ float kernel[];
  const int size = filter.height * filter.width * filter.channels * kPose;
  for (int i = threadIdx.x; i < size; i += blockDim.x) kernel[i] = filter_in_memory[i];
  __syncthreads();
  const int64_t idx = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  int kernel_base = 0;
  for (int kx = 0; kx < filter.height; kx++) {
    for (int ky = 0; ky < filter.width; ky++) {
      const int64_t pixel = int64_t{blockIdx.x + kx} * image_width + threadIdx.x + ky;
      int64_t img_base = pixel * filter.channels * kPose;
      for (int channel = 0; channel < filter.channels; channel++) {
        Product::Add(out + idx * kPose, img + img_base, kernel + kernel_base);
        img_base += kPose;
        kernel_base += kPose;
      }
    }
  }
}

// Strides of the axes of an image [height, width, channels, 4, 4].
struct Layout {
  int64_t row, column, channel, pose_row, pose_column;

  __device__ float* Pixel(float* image, int64_t y, int64_t x) const {
    return image + y * row + x * column;
  }
};

struct Layouts {
  Layout input, output;
};

// I3 for images in any layout. The sum stays in registers until the end, so that
// layouts differ only in their loads and stores.
__global__ void __launch_bounds__(1024)
    LayoutKernel(Filter filter, Layouts layouts, float* img, float* filter_in_memory,
                 float* out) {
  extern __shared__ float kernel[];
  const int size = filter.height * filter.width * filter.channels * kPose;
  for (int i = threadIdx.x; i < size; i += blockDim.x) kernel[i] = filter_in_memory[i];
  __syncthreads();
  const Layout& in = layouts.input;
  float sum[kPose] = {};
  int kernel_base = 0;
  for (int kx = 0; kx < filter.height; kx++) {
    for (int ky = 0; ky < filter.width; ky++) {
      const float* pose = in.Pixel(img, blockIdx.x + kx, threadIdx.x + ky);
      for (int channel = 0; channel < filter.channels; channel++) {
        float t[kPose];
#pragma unroll
        for (int i = 0; i < kPose; i++) {
          t[i] = pose[i / 4 * in.pose_row + i % 4 * in.pose_column];
        }
        I3::Add(sum, t, kernel + kernel_base);
        pose += in.channel;
        kernel_base += kPose;
      }
    }
  }
  float* const to = layouts.output.Pixel(out, blockIdx.x, threadIdx.x);
#pragma unroll
  for (int i = 0; i < kPose; i++) {
    to[i / 4 * layouts.output.pose_row + i % 4 * layouts.output.pose_column] = sum[i];
  }
}

}  // namespace capsops::studies::capsule_conv
