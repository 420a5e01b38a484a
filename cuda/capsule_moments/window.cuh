// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Operands of capsule moments, and the mapping from windows and their children to
// capsules. Indices are flat: a position is a window [n, out_y, out_x], a capsule an
// input capsule [n, y, x, c], a parent [position, o], and k a child [kh, kw, c] of its
// window.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_moments.h"
#include "cuda/common/divisor.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_moments {

// Advances pointers that are not null.
template <typename... E>
void Advance(int64_t by, E**... pointers) {
  ((*pointers = *pointers != nullptr ? *pointers + by : nullptr), ...);
}

// Inputs of every plan. Absent tensors are null.
template <typename T>
struct Operands {
  using S = Statistic<T>;
  const CudaType<T>*poses, *activations, *weights;
  const S *bias, *linear, *precision, *center, *prior;

  Operands(const Problem& p, const T* poses, const T* activations, const T* weights,
           const S* bias, const S* linear, const S* precision, const S* center,
           const S* prior)
      : poses(Native(poses)),
        activations(p.has_activations ? Native(activations) : nullptr),
        weights(Native(weights)),
        bias(p.has_bias ? bias : nullptr),
        linear(p.has_linear ? linear : nullptr),
        precision(p.has_precision ? precision : nullptr),
        center(p.has_center ? center : nullptr),
        prior(p.has_prior ? prior : nullptr) {}

  // Returns the operands from sample `sample` on.
  Operands From(const Problem& p, int64_t sample) const {
    Operands from = *this;
    const int64_t capsules = sample * p.in_height * p.in_width * p.in_channels;
    const int64_t parents = sample * p.out_height * p.out_width * p.out_channels;
    Advance(capsules * p.pose_rows * p.pose_inner, &from.poses);
    Advance(capsules, &from.activations);
    Advance(parents, &from.bias);
    Advance(parents * VoteSize(p), &from.linear, &from.precision, &from.center);
    return from;
  }
};

// The three moments. Tensors beyond the order are null.
template <typename S>
struct Moments {
  S *mass = nullptr, *first = nullptr, *second = nullptr;

  Moments() = default;
  Moments(const Problem& p, S* mass, S* first, S* second)
      : mass(mass),
        first(p.order >= 1 ? first : nullptr),
        second(p.order >= 2 ? second : nullptr) {}

  // Returns the moments from sample `sample` on.
  Moments From(const Problem& p, int64_t sample) const {
    Moments from = *this;
    const int64_t parents = sample * p.out_height * p.out_width * p.out_channels;
    Advance(parents, &from.mass);
    Advance(parents * VoteSize(p), &from.first, &from.second);
    return from;
  }
};

// Returns tensor[at], or 0 if the tensor is absent.
template <typename S>
__device__ S At(const S* tensor, int64_t at) {
  return tensor == nullptr ? S{0} : tensor[at];
}

constexpr int64_t Capsules(const Problem& p) {
  return p.batch * p.in_height * p.in_width * p.in_channels;
}

// The first pixel of a window, which may be outside of the image. `lines` is the number
// of image rows in the preceding samples. Int must hold every index.
template <typename Int>
struct Corner {
  Int lines, y, x;

  __device__ Corner(const Problem& p, Int position) {
    Digits<Int> d(position);
    x = d.Next(p.out_width) * static_cast<Int>(p.stride_width) -
        static_cast<Int>(p.pad_left);
    y = d.Next(p.out_height) * static_cast<Int>(p.stride_height) -
        static_cast<Int>(p.pad_top);
    lines = d.rest * static_cast<Int>(p.in_height);
  }

  // Returns the index of the capsule that is child `k`, or -1 outside of the image.
  __device__ Int Child(const Problem& p, Int k) const {
    Digits<Int> d(k);
    const Int c = d.Next(p.in_channels), kw = d.Next(p.kernel_width), kh = d.rest;
    const int64_t line = y + kh * p.dilation_height, pixel = x + kw * p.dilation_width;
    if (line < 0 || line >= p.in_height || pixel < 0 || pixel >= p.in_width) return -1;
    return ((lines + static_cast<Int>(line)) * static_cast<Int>(p.in_width) +
            static_cast<Int>(pixel)) *
               static_cast<Int>(p.in_channels) +
           c;
  }
};

template <typename Int>
__device__ Int ChildOf(const Problem& p, Int position, Int k) {
  return Corner<Int>(p, position).Child(p, k);
}

// Returns the window, along one axis, whose tap `tap` reads `pixel`, or -1.
template <typename Int>
__device__ Int WindowAtTap(Int pixel, Int tap, int64_t pad, int64_t stride,
                           int64_t dilation, int64_t out) {
  const int64_t from = pixel + pad - tap * dilation;
  if (from < 0) return -1;
  const Int window = static_cast<Int>(from) / static_cast<Int>(stride);
  return window < out && window * stride == from ? window : -1;
}

// Calls visit(position, k) for each window that sees a capsule, in order of k. Int must
// hold the capsule, the position, k and a coordinate of the padded image.
template <typename Int, typename Visit>
__device__ void VisitWindows(const Problem& p, Int capsule, const Visit& visit) {
  Digits<Int> d(capsule);
  const Int c = d.Next(p.in_channels), x = d.Next(p.in_width), y = d.Next(p.in_height);
  const Int channels = static_cast<Int>(p.in_channels), n = d.rest;
  const Int height = static_cast<Int>(p.out_height);
  const Int width = static_cast<Int>(p.out_width);
  const Int kernel_width = static_cast<Int>(p.kernel_width);
  for (Int kh = 0; kh < p.kernel_height; ++kh) {
    const Int out_y =
        WindowAtTap(y, kh, p.pad_top, p.stride_height, p.dilation_height, p.out_height);
    if (out_y < 0) continue;
    for (Int kw = 0; kw < kernel_width; ++kw) {
      const Int out_x =
          WindowAtTap(x, kw, p.pad_left, p.stride_width, p.dilation_width, p.out_width);
      if (out_x < 0) continue;
      visit((n * height + out_y) * width + out_x,
            (kh * kernel_width + kw) * channels + c);
    }
  }
}

}  // namespace capsops::capsule_moments
