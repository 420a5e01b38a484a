// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The two kernels of Simeng and Zhejin, "PyTorch Extension": one block per row of the
// image, and one thread per pixel of the row, which loops over samples, channels and
// kernel positions. Results start at zero and are accumulated in global memory. A
// thread updates only its own pixel: grad_input gathers, so there are no races.
// docs/notebook/papers.md describes how we read the paper.
#include <cstdint>
#include <string>

#include "cuda/studies/common.cuh"
#include "cuda/studies/high_order_conv.h"

namespace capsops::studies::high_order_conv {
namespace {

struct Sizes {
  int64_t batch, channels, height, width, kernel_height, kernel_width;

  __device__ bool Inside(int64_t y, int64_t x) const {
    return y >= 0 && y < height && x >= 0 && x < width;
  }
};

__global__ void ForwardKernel(Sizes s, const float* __restrict__ input,
                              const float* __restrict__ weights,
                              float* __restrict__ output) {
  const int64_t h = blockIdx.x, w = threadIdx.x, image = s.height * s.width;
  for (int64_t b = 0; b < s.batch; b++) {
    for (int64_t c = 0; c < s.channels; c++) {
      const float* const from = input + (b * s.channels + c) * image;
      float* const out = output + (b * s.channels + c) * image + h * s.width + w;
      const float* weight = weights + b * image + h * s.width + w;
      for (int64_t i = 0; i < s.kernel_height; i++) {
        for (int64_t j = 0; j < s.kernel_width; j++) {
          const int64_t y = h + i - s.kernel_height / 2, x = w + j - s.kernel_width / 2;
          if (s.Inside(y, x)) *out += from[y * s.width + x] * *weight;
          weight += s.batch * image;
        }
      }
    }
  }
}

__global__ void BackwardKernel(Sizes s, const float* __restrict__ grad,
                               const float* __restrict__ input,
                               const float* __restrict__ weights,
                               float* __restrict__ grad_input,
                               float* __restrict__ grad_weights) {
  const int64_t h = blockIdx.x, w = threadIdx.x, image = s.height * s.width;
  const int64_t pixel = h * s.width + w;
  for (int64_t b = 0; b < s.batch; b++) {
    for (int64_t c = 0; c < s.channels; c++) {
      const int64_t plane = (b * s.channels + c) * image;
      int64_t filter = b * image;  // offset into weights
      for (int64_t i = 0; i < s.kernel_height; i++) {
        for (int64_t j = 0; j < s.kernel_width; j++) {
          const int64_t down = i - s.kernel_height / 2, across = j - s.kernel_width / 2;
          if (s.Inside(h + down, w + across)) {
            const int64_t read = pixel + down * s.width + across;
            grad_weights[filter + pixel] += grad[plane + pixel] * input[plane + read];
          }
          if (s.Inside(h - down, w - across)) {
            const int64_t reader = pixel - down * s.width - across;
            grad_input[plane + pixel] +=
                grad[plane + reader] * weights[filter + reader];
          }
          filter += s.batch * image;
        }
      }
    }
  }
}

Sizes SizesOf(const Problem& p) {
  return {p.batch, p.channels, p.height, p.width, p.kernel_height, p.kernel_width};
}

}  // namespace

std::string Unsupported(const Problem& p) {
  if (p.groups != 1) return Must("groups", 1, p.groups);
  for (const int64_t step : {p.dilation_height, p.dilation_width}) {
    if (step != 1) return Must("dilations", 1, step);
  }
  return MustBeAtMost("width", kMaxThreads, "a thread each", p.width);
}

LaunchError Forward(const GpuExec& exec, const Problem& p, const float* input,
                    const float* weights, float* output) {
  const char* name = "HighOrderConvStudy";
  const int64_t elements = p.batch * p.channels * p.height * p.width;
  CAPSOPS_RETURN_IF_ERROR(Zero(exec, name, output, elements));
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(name, p.height));
  if (elements == 0) return {};
  ForwardKernel<<<static_cast<unsigned>(p.height), static_cast<unsigned>(p.width), 0,
                  exec.stream>>>(SizesOf(p), input, weights, output);
  return CheckLaunch(name);
}

LaunchError Backward(const GpuExec& exec, const Problem& p, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights) {
  const char* name = "HighOrderConvStudyGrad";
  const int64_t pixels = p.batch * p.height * p.width;
  const int64_t taps = p.kernel_height * p.kernel_width;
  CAPSOPS_RETURN_IF_ERROR(Zero(exec, name, grad_input, pixels * p.channels));
  CAPSOPS_RETURN_IF_ERROR(Zero(exec, name, grad_weights, pixels * taps));
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(name, p.height));
  if (pixels * p.channels == 0) return {};
  BackwardKernel<<<static_cast<unsigned>(p.height), static_cast<unsigned>(p.width), 0,
                   exec.stream>>>(SizesOf(p), grad, input, weights, grad_input,
                                  grad_weights);
  return CheckLaunch(name);
}

}  // namespace capsops::studies::high_order_conv
