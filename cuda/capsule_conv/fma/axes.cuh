// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution and both its gradients as one matrix product,
//   out[row, column] = sum over terms of left[row, term] right[term, column],
// in the tensors' own layout: a row, a term and a column each lead to places in two of
// the tensors, linear in their digits, and row and term together to a pixel of the
// image in `left`, which is zero outside.
//
//   product          row           term          column  left   right    out
//   forward          n, y, x, p    kh, kw, c, q  o, r    input  weights  output
//   input gradient   n, y, x, p    kh, kw, o, r  c, q    grad   weights  grad_input
//   weight gradient  kh, kw, c, q  n, y, x, p    o, r    input  grad     grad_weights
//
// An input pixel gets gradient from the taps that a stride away from it leads to. So
// input pixels are taken in phases, those that are equal modulo the strides: within
// one, all have the same taps, and the sum is a convolution of its own.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_FMA_AXES_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_FMA_AXES_CUH_

#include <cstdint>

namespace capsops::capsule_conv::fma {

// Terms that are multiplied between two block barriers.
constexpr int kDepth = 8;
// No dimension is larger.
constexpr int64_t kLargest = int64_t{1} << 30;

// What lies where an index leads to: an element of `left`, one of the other tensor that
// has the index, and a pixel of the image in `left`.
struct Place {
  int64_t left, other, y, x;

  __host__ __device__ Place& operator+=(const Place& by) {
    left += by.left;
    other += by.other;
    y += by.y;
    x += by.x;
    return *this;
  }
};

__host__ __device__ inline Place operator*(int64_t times, const Place& p) {
  return {times * p.left, times * p.other, times * p.y, times * p.x};
}

struct Digit {
  int64_t count;
  Place step;
};

// For 0 <= a and 0 < b; most are small, and 64 bits take four times as long.
__device__ inline int64_t Divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// An index of four digits, the most significant first; index 0 leads to `origin`.
struct Axis {
  Place origin;
  Digit digits[4];

  __host__ __device__ int64_t size() const {
    int64_t product = 1;
    for (const Digit& digit : digits) product *= digit.count;
    return product;
  }
};

// The pixels of an input gradient along height or width that are equal to `phase`
// modulo the stride, and the taps that reach them: of the taps k with
//   y stride = phase + pad - k dilation  for some y
// the first is found, and `every`-th is the next.
struct Phases {
  int64_t count;  // of phases
  int64_t size, stride, dilation, pad, taps, every;
  int64_t out_step;  // in grad_input, from a pixel to the next
  int64_t tap_step;  // in weights, from a tap to the next

  // Sets counts and origins of the digits that stand for pixels and taps.
  __device__ void Select(int64_t phase, Axis* rows, Digit* pixel, Axis* terms,
                         Digit* tap) const {
    const int64_t candidates = min(every, taps);
    int64_t first = 0;
    while (first < candidates && (phase + pad - first * dilation) % stride != 0) {
      ++first;
    }
    pixel->count = Divide(size - phase + stride - 1, stride);
    tap->count = first < candidates ? Divide(taps - first + every - 1, every) : 0;
    if (tap->count == 0) return;
    const int64_t y = (phase + pad - first * dilation) / stride;
    rows->origin += y * Place{pixel->step.left, 0, pixel->step.y, pixel->step.x};
    terms->origin.other += first * tap_step;
  }
};

// What a launch works on.
struct Product {
  Axis rows, terms;
  int64_t columns, column_inner;  // the inner of two digits, whose step in out is 1
  int64_t right_outer, right_inner, out_outer;
  int64_t left_depth, right_depth, out_depth;  // from a pose matrix to the next
  int depth, height, width;                    // pose matrices; the image in `left`
  Phases vertical, horizontal;                 // of an input gradient, or 0 of them
  int64_t elements;                            // of out
  int64_t row_tiles, column_tiles;
  int parts;  // that the terms are cut into
};

// The digits of `index` on an axis, and where it leads to.
__device__ inline Place Locate(const Axis& axis, int64_t index, int (&digits)[4]) {
  Place place = axis.origin;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    const int64_t rest = i > 0 ? Divide(index, axis.digits[i].count) : 0;
    const int64_t digit = index - rest * axis.digits[i].count;
    place += digit * axis.digits[i].step;
    digits[i] = static_cast<int>(digit);
    index = rest;
  }
  return place;
}

// How a thread goes from a term to the one kDepth further on, without divisions: digits
// are added with carry. Pixels of terms fit into 32 bits.
struct Stride {
  struct Move {
    int64_t left, other;
    int y, x;
  };
  Move all;       // without carry
  Move carry[4];  // what a carry out of a digit adds, none out of the first
  int count[4], by[4];

  __device__ void Set(const Axis& axis) {
    Place sum{};
    int64_t rest = kDepth;
    for (int i = 3; i >= 0; --i) {
      const Digit& digit = axis.digits[i];
      const int64_t next = i > 0 ? Divide(rest, digit.count) : 0;
      by[i] = static_cast<int>(rest - next * digit.count);
      count[i] = static_cast<int>(digit.count);
      sum += by[i] * digit.step;
      if (i > 0) {
        Place place = axis.digits[i - 1].step;
        place += -digit.count * digit.step;
        carry[i] = From(place);
      }
      rest = next;
    }
    all = From(sum);
  }

  __device__ static Move From(const Place& p) {
    return {p.left, p.other, static_cast<int>(p.y), static_cast<int>(p.x)};
  }
};

// A term, perhaps past the last: then its first digit is too large.
struct Walk {
  Stride::Move at;
  int digits[4];

  __device__ Walk(const Axis& axis, int64_t index)
      : at(Stride::From(Locate(axis, index, digits))) {}

  __device__ void Advance(const Stride& stride) {
    Add(stride.all);
    bool carry = false;
#pragma unroll
    for (int i = 3; i > 0; --i) {
      digits[i] += stride.by[i] + carry;
      carry = digits[i] >= stride.count[i];
      if (carry) {
        digits[i] -= stride.count[i];
        Add(stride.carry[i]);
      }
    }
    digits[0] += stride.by[0] + carry;
  }

  __device__ bool PastEnd(const Stride& stride) const {
    return digits[0] >= stride.count[0];
  }

 private:
  __device__ void Add(const Stride::Move& move) {
    at.left += move.left;
    at.other += move.other;
    at.y += move.y;
    at.x += move.x;
  }
};

}  // namespace capsops::capsule_conv::fma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_FMA_AXES_CUH_
