// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of Chen et al.'s Algorithms 3 and 4, with the paper's names. Each is called
// with the index of one element that it writes. A list of products is [out channel,
// sample, out pixel, kernel position, in channel, depth] of matrices; without the first
// axis it is "flattened".
#pragma once

#include "cuda/studies/chen.cuh"

namespace capsops::studies::capsule_conv {

// Lengths of lists, in matrices, for one sample.
struct Lengths {
  int64_t position;   // one out pixel: kernel positions x in channels x depth
  int64_t flattened;  // all out pixels
  int64_t products;   // all out pixels and out channels

  explicit Lengths(const Problem& p)
      : position(p.kernel_height * p.kernel_width * p.in_channels * p.pose_depth),
        flattened(p.out_height * p.out_width * position),
        products(flattened * p.out_channels) {}
};

struct CapsuleIm2col {  // Figure 4
  Problem p;
  const float* input;
  float* flattened;

  __device__ void operator()(int64_t i) const {
    const int64_t size = Elements(p).input;
    Axes axes{i};
    const int64_t element = axes.Take(size);
    Place at;
    at.o = 0;
    at.g = axes.Take(p.pose_depth);
    at.c = axes.Take(p.in_channels);
    at.kw = axes.Take(p.kernel_width);
    at.kh = axes.Take(p.kernel_height);
    at.x = axes.Take(p.out_width);
    at.y = axes.Take(p.out_height);
    at.n = axes.rest;
    const int64_t matrix = InputIndex(p, at);
    flattened[i] = matrix < 0 ? 0 : input[matrix * size + element];
  }
};

struct InputExtend {  // Figure 5: repeats for each out channel
  int64_t size;
  const float* flattened;
  float* extended;

  __device__ void operator()(int64_t i) const { extended[i] = flattened[i % size]; }
};

struct KernelExtend {  // Figure 6: repeats for each out pixel, here of every sample
  Problem p;
  int64_t position;
  const float* weights;
  float* extended;

  __device__ void operator()(int64_t i) const {
    const int64_t size = Elements(p).weights;
    Axes axes{i};
    const int64_t element = axes.Take(size);
    const int64_t g = axes.Take(p.pose_depth);
    const int64_t row = axes.Take(position / p.pose_depth);
    const int64_t o = axes.rest / (p.batch * p.out_height * p.out_width);
    const int64_t matrix = (row * p.out_channels + o) * p.pose_depth + g;
    extended[i] = weights[matrix * size + element];
  }
};

struct OutputReduce {  // Figure 7
  Problem p;
  int64_t position;
  const float* products;
  float* output;

  __device__ void operator()(int64_t i) const {
    const int64_t size = Elements(p).output;
    const int64_t step = p.pose_depth * size;
    Axes axes{i};
    const int64_t element = axes.Take(step);
    const int64_t o = axes.Take(p.out_channels);
    const int64_t pixel = o * p.batch * p.out_height * p.out_width + axes.rest;
    const float* first = products + pixel * position * size + element;
    float sum = 0;
    for (int64_t row = 0; row < position / p.pose_depth; ++row)
      sum += first[row * step];
    output[i] = sum;
  }
};

struct OutputExtend {  // the gradient of OutputReduce
  Problem p;
  int64_t position;
  const float* grad;
  float* extended;

  __device__ void operator()(int64_t i) const {
    const int64_t size = p.pose_depth * Elements(p).output;
    Axes axes{i};
    const int64_t element = axes.Take(size);
    axes.Take(position / p.pose_depth);
    const int64_t pixel = axes.Take(p.batch * p.out_height * p.out_width);
    extended[i] = grad[(pixel * p.out_channels + axes.rest) * size + element];
  }
};

struct InputReduce {  // sums over out channels
  int64_t out_channels, size;
  const float* products;
  float* flattened;

  __device__ void operator()(int64_t i) const {
    float sum = 0;
    for (int64_t o = 0; o < out_channels; ++o) sum += products[o * size + i];
    flattened[i] = sum;
  }
};

struct CapsuleCol2im {
  Problem p;
  int64_t position;
  const float* flattened;
  float* grad_input;

  // Returns the output pixel that reads `in` at kernel position k, or -1.
  static __device__ int64_t Reader(int64_t in, int64_t k, int64_t stride,
                                   int64_t dilation, int64_t pad, int64_t out) {
    const int64_t first = in + pad - k * dilation;
    return first < 0 || first % stride != 0 || first / stride >= out ? -1
                                                                     : first / stride;
  }

  __device__ void operator()(int64_t i) const {
    const int64_t size = p.in_channels * p.pose_depth * Elements(p).input;
    Axes axes{i};
    const int64_t element = axes.Take(size);
    const int64_t column = axes.Take(p.in_width), row = axes.Take(p.in_height);
    float sum = 0;
    for (int64_t kh = 0; kh < p.kernel_height; ++kh) {
      const int64_t y =
          Reader(row, kh, p.stride_height, p.dilation_height, p.pad_top, p.out_height);
      for (int64_t kw = 0; y >= 0 && kw < p.kernel_width; ++kw) {
        const int64_t x = Reader(column, kw, p.stride_width, p.dilation_width,
                                 p.pad_left, p.out_width);
        if (x < 0) continue;
        const int64_t pixel = (axes.rest * p.out_height + y) * p.out_width + x;
        const int64_t place = (pixel * p.kernel_height + kh) * p.kernel_width + kw;
        sum += flattened[place * size + element];
      }
    }
    grad_input[i] = sum;
  }
};

struct Ones {
  float* ones;
  __device__ void operator()(int64_t i) const { ones[i] = 1; }
};

struct KernelTranspose {  // [out channel, position, ...] to the layout of weights
  Problem p;
  int64_t position;
  const float* sums;
  float* grad_weights;

  __device__ void operator()(int64_t i) const {
    const int64_t size = p.pose_depth * Elements(p).weights;
    Axes axes{i};
    const int64_t element = axes.Take(size), o = axes.Take(p.out_channels);
    const int64_t rows = position / p.pose_depth;
    grad_weights[i] = sums[(o * rows + axes.rest) * size + element];
  }
};

}  // namespace capsops::studies::capsule_conv
