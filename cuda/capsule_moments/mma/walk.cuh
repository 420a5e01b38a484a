// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Windows and children that a thread takes in steps, without divisions.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WALK_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WALK_CUH_

#include "cuda/capsule_moments/window.cuh"

namespace capsops::capsule_moments::mma {

// An output pixel of sample n.
struct Pixel {
  int n, y, x;

  __device__ Pixel(const Problem& p, int position) {
    Digits<int> d(position);
    x = d.Next(p.out_width), y = d.Next(p.out_height), n = d.rest;
  }
  __device__ void Advance(const Problem& p, int by) {
    const int width = static_cast<int>(p.out_width);
    for (x += by; x >= width; x -= width) {
      if (++y == static_cast<int>(p.out_height)) y = 0, ++n;
    }
  }
};

struct Child {
  int kh, kw, c;

  Child() = default;
  __device__ Child(const Problem& p, int k) {
    Digits<int> d(k);
    c = d.Next(p.in_channels), kw = d.Next(p.kernel_width), kh = d.rest;
  }
  __device__ void Advance(const Problem& p, int by) {
    const int channels = static_cast<int>(p.in_channels);
    for (c += by; c >= channels; c -= channels) {
      if (++kw == static_cast<int>(p.kernel_width)) kw = 0, ++kh;
    }
  }
};

// Where a window begins: the lines of the images before, and the pixel of its first
// child, which may be outside of the image.
struct Corner {
  int lines, y, x;

  __device__ Corner(const Problem& p, const Pixel& of)
      : lines(of.n * static_cast<int>(p.in_height)),
        y(of.y * static_cast<int>(p.stride_height) - static_cast<int>(p.pad_top)),
        x(of.x * static_cast<int>(p.stride_width) - static_cast<int>(p.pad_left)) {}

  // Returns the capsule that is this child, as an index of activations, or -1 where
  // there is none.
  __device__ int Capsule(const Problem& p, const Child& child) const {
    const int height = static_cast<int>(p.in_height);
    const int width = static_cast<int>(p.in_width);
    const int line = y + child.kh * static_cast<int>(p.dilation_height);
    const int pixel = x + child.kw * static_cast<int>(p.dilation_width);
    if (line < 0 || line >= height || pixel < 0 || pixel >= width) return -1;
    return ((lines + line) * width + pixel) * static_cast<int>(p.in_channels) + child.c;
  }
};

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_WALK_CUH_
