// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The four kernels of Vaidya, "Speeding up Capsules": a block for each row of the
// output, a thread for each of its pixels, the filter in shared memory and the input in
// global memory. They differ in the innermost product of two 4 x 4 matrices. The output
// starts at zero and every product is added to it there: the stores stay inside the
// loop, as the counts in the paper's Table 2 say. docs/papers.md has what was read how.
//
// Pointers are plain on purpose: the compiler must fear that a store to `out` changes
// `img`, as it had to in the paper. Nor are the loops of listings 1 and 2 told to
// unroll: nvcc 13 keeps the one over i, and so makes the loads that the paper counted.
#include <cstdint>
#include <string>

#include "cuda/common/launch.cuh"
#include "cuda/studies/capsule_conv.h"

namespace capsops::studies::capsule_conv {
namespace {

constexpr int kPose = 16;  // elements of a 4 x 4 matrix
constexpr int kMostThreads = 1024;

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

// Listing 4, scalar replacement: all of both matrices in variables before the first
// store.
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

int64_t SharedBytes(const Problem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels * kPose * sizeof(float);
}

template <typename Product>
LaunchError Forward(const GpuExec& exec, const Problem& p, const float* input,
                    const float* weights, float* output, void*) {
  const int64_t elements = p.out_height * p.out_width * kPose;
  if (elements == 0) return {};
  const char* name = "CapsuleConvStudy";
  const LaunchError error = CheckLaunch(
      name, cudaMemsetAsync(output, 0, elements * sizeof(float), exec.stream));
  if (!error.empty() || p.in_channels == 0) return error;
  const int64_t shared = SharedBytes(p);
  const int64_t most = exec.device.shared;
  if (shared > most) {
    return std::string(name) + ": the filter takes " + std::to_string(shared) +
           " bytes of shared memory, and this GPU has " + std::to_string(most);
  }
  const LaunchError allowed = AllowShared<RowKernel<Product>>(exec, name);
  if (!allowed.empty()) return allowed;
  const Filter filter{static_cast<int>(p.kernel_height),
                      static_cast<int>(p.kernel_width),
                      static_cast<int>(p.in_channels)};
  RowKernel<Product><<<p.out_height, p.out_width, shared, exec.stream>>>(
      filter, p.in_width, const_cast<float*>(input), const_cast<float*>(weights),
      output);
  return CheckLaunch(name);
}

std::string Unsupported(const Problem& p) {
  const auto must = [](const char* what, int64_t be, int64_t got) {
    return std::string(what) + " must be " + std::to_string(be) + ", got " +
           std::to_string(got);
  };
  if (p.batch != 1) return must("batch", 1, p.batch);
  if (p.out_channels != 1) return must("out_channels", 1, p.out_channels);
  if (p.pose_depth != 1) return must("pose_depth", 1, p.pose_depth);
  if (p.pose_rows != 4) return must("pose_rows", 4, p.pose_rows);
  if (p.pose_inner != 4) return must("pose_inner", 4, p.pose_inner);
  if (p.pose_columns != 4) return must("pose_columns", 4, p.pose_columns);
  for (const int64_t step :
       {p.stride_height, p.stride_width, p.dilation_height, p.dilation_width}) {
    if (step != 1) return must("strides and dilations", 1, step);
  }
  // An empty image has an empty output, whatever the kernel.
  if ((p.in_height > 0 && p.out_height != p.in_height - p.kernel_height + 1) ||
      (p.in_width > 0 && p.out_width != p.in_width - p.kernel_width + 1)) {
    return "padding must be VALID";
  }
  if (p.out_width > kMostThreads) {
    return "out_width must be at most " + std::to_string(kMostThreads) +
           " (a thread each), got " + std::to_string(p.out_width);
  }
  return {};
}

int64_t NoWorkspace(const Problem&) { return 0; }

}  // namespace

#define CAPSOPS_SCHEME(NAME) \
  const Scheme kVaidya##NAME = {#NAME, Unsupported, NoWorkspace, Forward<NAME>}
CAPSOPS_SCHEME(B);
CAPSOPS_SCHEME(I1);
CAPSOPS_SCHEME(I2);
CAPSOPS_SCHEME(I3);
#undef CAPSOPS_SCHEME

}  // namespace capsops::studies::capsule_conv
