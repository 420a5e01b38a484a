// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared parts of the schemes of Chen et al., "How to Accelerate Capsule Convolutions
// in Capsule Networks". A capsule convolution is a list of products of small matrices,
// and each scheme computes all of them.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/studies/capsule_conv.h"
#include "cuda/studies/common.cuh"

namespace capsops::studies::capsule_conv {

constexpr const char* kForward = "CapsuleConvStudy";
constexpr const char* kBackward = "CapsuleConvStudyGrad";

// One product: sample, output pixel, kernel position, in and out channel, and matrix
// `g` of a capsule of rank 3.
struct Place {
  int64_t n, y, x, kh, kw, c, o, g;
};

// The indices of a product's matrices in each tensor; input is -1 outside the image.
__host__ __device__ inline int64_t InputIndex(const Problem& p, const Place& at) {
  const int64_t row = at.y * p.stride_height + at.kh * p.dilation_height - p.pad_top;
  const int64_t column = at.x * p.stride_width + at.kw * p.dilation_width - p.pad_left;
  if (row < 0 || row >= p.in_height || column < 0 || column >= p.in_width) return -1;
  const int64_t pixel = (at.n * p.in_height + row) * p.in_width + column;
  return (pixel * p.in_channels + at.c) * p.pose_depth + at.g;
}
__host__ __device__ inline int64_t WeightsIndex(const Problem& p, const Place& at) {
  const int64_t position = at.kh * p.kernel_width + at.kw;
  const int64_t pair = (position * p.in_channels + at.c) * p.out_channels + at.o;
  return pair * p.pose_depth + at.g;
}
__host__ __device__ inline int64_t OutputIndex(const Problem& p, const Place& at) {
  const int64_t pixel = (at.n * p.out_height + at.y) * p.out_width + at.x;
  return (pixel * p.out_channels + at.o) * p.pose_depth + at.g;
}

// Elements of one matrix of each tensor, then the tensors' numbers of matrices.
struct Elements {
  int64_t input, weights, output;

  __host__ __device__ explicit Elements(const Problem& p)
      : input(p.pose_rows * p.pose_inner),
        weights(p.pose_inner * p.pose_columns),
        output(p.pose_rows * p.pose_columns) {}
};
inline int64_t InputMatrices(const Problem& p) {
  return p.batch * p.in_height * p.in_width * p.in_channels * p.pose_depth;
}
inline int64_t WeightsMatrices(const Problem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels * p.out_channels *
         p.pose_depth;
}
inline int64_t OutputMatrices(const Problem& p) {
  return p.batch * p.out_height * p.out_width * p.out_channels * p.pose_depth;
}

// Decodes a mixed-radix index, innermost axis first.
struct Axes {
  int64_t rest;
  __host__ __device__ int64_t Take(int64_t size) {
    const int64_t digit = rest % size;
    rest /= size;
    return digit;
  }
};

// Calls body(i) for all i < `count`, one thread each.
template <typename Body>
__global__ void ForEachKernel(int64_t count, Body body) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) body(i);
}
template <typename Body>
LaunchError ForEach(const GpuExec& exec, const char* name, int64_t count,
                    const Body& body) {
  constexpr int kThreads = 256;
  if (count == 0) return {};
  const int64_t blocks = CeilDivide(count, kThreads);
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(name, blocks));
  ForEachKernel<<<blocks, kThreads, 0, exec.stream>>>(count, body);
  return CheckLaunch(name);
}

inline LaunchError ZeroOutput(const GpuExec& exec, const Problem& p, float* output) {
  return Zero(exec, kForward, output, OutputMatrices(p) * Elements(p).output);
}
inline LaunchError ZeroGradients(const GpuExec& exec, const Problem& p,
                                 float* grad_input, float* grad_weights) {
  const Elements size(p);
  CAPSOPS_RETURN_IF_ERROR(
      Zero(exec, kBackward, grad_input, InputMatrices(p) * size.input));
  return Zero(exec, kBackward, grad_weights, WeightsMatrices(p) * size.weights);
}

// The paper's convolutions have any size, stride and rank, so all are supported.
inline std::string Any(const Problem&) { return {}; }
inline int64_t NoWorkspace(const Problem&) { return 0; }

}  // namespace capsops::studies::capsule_conv
