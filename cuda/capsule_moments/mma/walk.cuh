// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Iterators over windows and children that advance without divisions.
#pragma once

#include "cuda/capsule_moments/window.cuh"

namespace capsops::capsule_moments::mma {

// One axis of an image and its windows, with 32-bit numbers.
struct Axis {
  int in, out, kernel, stride, dilation, pad;

  // Returns how many windows see a pixel.
  __device__ int WindowsOf(int pixel) const {
    int count = 0;
    for (int tap = 0; tap < kernel; ++tap) {
      const int from = pixel + pad - tap * dilation, window = from / stride;
      count += from >= 0 && window < out && window * stride == from;
    }
    return count;
  }
};

// Both axes of an image, and its channels.
struct Image {
  Axis y, x;
  int channels;

  Image() = default;
  explicit Image(const Problem& p)
      : y{Int(p.in_height),     Int(p.out_height),      Int(p.kernel_height),
          Int(p.stride_height), Int(p.dilation_height), Int(p.pad_top)},
        x{Int(p.in_width),     Int(p.out_width),      Int(p.kernel_width),
          Int(p.stride_width), Int(p.dilation_width), Int(p.pad_left)},
        channels(Int(p.in_channels)) {}

  // Returns how many windows see a capsule.
  __device__ int WindowsOf(int capsule) const {
    const int pixel = capsule / channels, line = pixel / x.in;
    return x.WindowsOf(pixel - line * x.in) * y.WindowsOf(line % y.in);
  }

 private:
  static int Int(int64_t number) { return static_cast<int>(number); }
};

// An output pixel of sample n.
struct Pixel {
  int n, y, x;

  __device__ Pixel(const Image& image, int position) {
    const int line = position / image.x.out;
    x = position - line * image.x.out;
    n = line / image.y.out;
    y = line - n * image.y.out;
  }
  __device__ void Advance(const Image& image, int by) {
    for (x += by; x >= image.x.out; x -= image.x.out) {
      if (++y == image.y.out) y = 0, ++n;
    }
  }
};

// A child of a window: its tap and its channel.
struct Child {
  int kh, kw, c;

  Child() = default;
  __device__ Child(const Image& image, int k) {
    const int tap = k / image.channels;
    c = k - tap * image.channels;
    kh = tap / image.x.kernel;
    kw = tap - kh * image.x.kernel;
  }
  __device__ void Advance(const Image& image, int by) {
    for (c += by; c >= image.channels; c -= image.channels) {
      if (++kw == image.x.kernel) kw = 0, ++kh;
    }
  }
};

// The first pixel of a window, which may be outside of the image. `lines` is the number
// of image rows in the preceding samples.
struct Corner {
  int lines, y, x;

  __device__ Corner(const Image& image, const Pixel& of)
      : lines(of.n * image.y.in),
        y(of.y * image.y.stride - image.y.pad),
        x(of.x * image.x.stride - image.x.pad) {}

  // Returns the index of the capsule that is this child, or -1 outside of the image.
  __device__ int Capsule(const Image& image, const Child& child) const {
    const int line = y + child.kh * image.y.dilation;
    const int pixel = x + child.kw * image.x.dilation;
    if (line < 0 || line >= image.y.in || pixel < 0 || pixel >= image.x.in) return -1;
    return ((lines + line) * image.x.in + pixel) * image.channels + child.c;
  }
};

}  // namespace capsops::capsule_moments::mma
