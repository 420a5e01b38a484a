// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels that make numbers of capsules, and the gradients of weights and prior, from
// those of rows [position, k] and from parts.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_

#include <cstdint>

#include "cuda/capsule_moments/inputs.cuh"

namespace capsops::capsule_moments {

// Makes {most, scale} of each capsule of those of its rows, or the sum of its dots.
__global__ void __launch_bounds__(kThreads)
    MergeKernel(Problem p, const float2* row_scales, const float* row_dots,
                float2* scales, float* dots) {
  const int64_t capsules = Capsules(p), children = Children(p);
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= capsules) return;
  float most = -INFINITY, sum = 0;
  if (dots != nullptr) {
    VisitWindows(p, i, [&](int64_t position, int64_t k) {
      sum += row_dots[position * children + k];
    });
    dots[i] = sum;
    return;
  }
  VisitWindows(p, i, [&](int64_t position, int64_t k) {
    most = fmaxf(most, row_scales[position * children + k].x);
  });
  VisitWindows(p, i, [&](int64_t position, int64_t k) {
    const float2 row = row_scales[position * children + k];
    sum += ExpOf(row.x, most) / row.y;
  });
  scales[i] = {most, 1 / sum};
}

// Adds up the parts of the gradients of weights and prior.
template <typename N>
__global__ void __launch_bounds__(kThreads)
    PartsKernel(int64_t weights, int64_t priors, int parts, const float* weight_parts,
                const float* prior_parts, N* grad_weights, float* grad_prior) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < weights) {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += weight_parts[part * weights + i];
    Narrow(sum, grad_weights + i);
  }
  if (i < priors && grad_prior != nullptr) {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += prior_parts[part * priors + i];
    grad_prior[i] = sum;
  }
}

// Adds up the gradients of capsules from their rows. A block has the capsules of a
// pixel, which the same windows see, and a thread a row of a pose.
template <int Q, typename N>
__global__ void __launch_bounds__(kThreads)
    CapsuleKernel(Problem p, const float* poses, const float* activations,
                  N* grad_poses, N* grad_activations) {
  __shared__ int positions[kThreads];  // of the windows that see the pixel at each tap
  Digits<int> d(blockIdx.x);
  const int x = d.Next(p.in_width), y = d.Next(p.in_height), n = d.rest;
  const int channels = static_cast<int>(p.in_channels);
  const int width = static_cast<int>(p.kernel_width);
  const int taps = static_cast<int>(p.kernel_height) * width;
  const int children = taps * channels, threads = blockDim.x;
  for (int first = 0; first < channels * kSide; first += threads) {
    const int i = first + threadIdx.x, c = i / kSide;
    float sums[Q] = {}, sum = 0;
    for (int tap0 = 0; tap0 < taps; tap0 += threads) {
      const int tap = tap0 + threadIdx.x, kh = tap / width, kw = tap - kh * width;
      __syncthreads();
      if (tap < taps) {
        const int out_y = WindowWith(y, kh, p.pad_top, p.stride_height,
                                     p.dilation_height, p.out_height);
        const int out_x = WindowWith(x, kw, p.pad_left, p.stride_width,
                                     p.dilation_width, p.out_width);
        positions[threadIdx.x] = out_y < 0 || out_x < 0
                                     ? -1
                                     : (n * static_cast<int>(p.out_height) + out_y) *
                                               static_cast<int>(p.out_width) +
                                           out_x;
      }
      __syncthreads();
      for (int t = 0; t < min(threads, taps - tap0) && c < channels; ++t) {
        if (positions[t] < 0) continue;
        const int64_t row =
            int64_t{positions[t]} * children + (tap0 + t) * channels + c;
        float numbers[Q];
        LoadRow(poses + (row * kSide + i % kSide) * Q, numbers);
#pragma unroll
        for (int q = 0; q < Q; ++q) sums[q] += numbers[q];
        if (grad_activations != nullptr && i % kSide == 0) sum += activations[row];
      }
    }
    if (c >= channels) continue;
    const int64_t capsule = int64_t{blockIdx.x} * channels + c;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      Narrow(sums[q], grad_poses + (capsule * kSide + i % kSide) * Q + q);
    }
    if (grad_activations != nullptr && i % kSide == 0) {
      Narrow(sum, grad_activations + capsule);
    }
  }
}

}  // namespace capsops::capsule_moments

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_
