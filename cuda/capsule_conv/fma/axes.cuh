// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution and both its gradients as one matrix product on the tensors' own
// layout,
//   out[row, column] = sum over terms of left[row, term] right[term, column].
// The index of a row, term or column is split into digits (mixed radix), and its offset
// in either of two tensors is linear in the digits. Row and term together give a pixel
// of the image in `left`, which is zero outside of it.
//
//   product          row           term          column  left   right    out
//   forward          n, y, x, p    kh, kw, c, q  o, r    input  weights  output
//   input gradient   n, y, x, p    kh, kw, o, r  c, q    grad   weights  grad_input
//   weight gradient  kh, kw, c, q  n, y, x, p    o, r    input  grad     grad_weights
//
// An input pixel gets a gradient only from taps by which some output pixel reads it.
// With strides, these differ from pixel to pixel. So the input gradient is computed in
// phases: pixels that are equal modulo the strides have the same taps, and their sum is
// an unstrided convolution.
#pragma once

#include <cstdint>

namespace capsops::capsule_conv::fma {

// Terms per step, between two block barriers.
constexpr int kDepth = 8;
// Limit on any dimension.
constexpr int64_t kLargest = int64_t{1} << 30;

// The position of an index: an offset in `left`, an offset in the other tensor with
// this index, and a pixel of the image in `left`.
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

// A digit of a mixed-radix index: its radix, and the step of one unit.
struct Digit {
  int64_t count;
  Place step;
};

// a / b for 0 <= a and 0 < b. Dividing in 64 bits takes four times as long as in 32.
__device__ inline int64_t Divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// An index of four digits, the most significant first. Index 0 has position `origin`.
struct Axis {
  Place origin;
  Digit digits[4];

  __host__ __device__ int64_t size() const {
    int64_t product = 1;
    for (const Digit& digit : digits) product *= digit.count;
    return product;
  }
};

// The phases of the input gradient along one axis: pixels equal to `phase` modulo the
// stride, and the taps that reach them. These are the taps k with
//   y stride = phase + pad - k dilation  for some y:
// the first such k, and every `every`-th tap from there.
struct Phases {
  int64_t count;  // number of phases
  int64_t size, stride, dilation, pad, taps, every;
  int64_t out_step;  // stride of a pixel in grad_input
  int64_t tap_step;  // stride of a tap in weights

  // Sets the counts and origins of the pixel digit and the tap digit for a phase.
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

// Kernel parameters: the axes of the product, its strides, and its division into tiles.
struct Product {
  Axis rows, terms;
  int64_t columns, column_inner;  // the inner digit has stride 1 in out
  int64_t right_outer, right_inner, out_outer;
  int64_t left_depth, right_depth, out_depth;  // strides of pose matrices
  int depth, height, width;                    // pose matrices; image in `left`
  Phases vertical, horizontal;  // only in the input gradient; elsewhere count is 0
  int64_t elements;             // total elements of out
  int64_t row_tiles, column_tiles;
  int parts;    // split-K parts
  bool vector;  // whether a thread's columns are contiguous and aligned in `out`
};

// Computes the digits of `index` on an axis, and its position.
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

// Advances a term by kDepth without division: digits are added with carry. Pixel
// coordinates of terms fit in 32 bits.
struct Stride {
  struct Move {
    int64_t left, other;
    int y, x;
  };
  Move all;       // move without carries
  Move carry[4];  // added on a carry out of a digit; unused for the first
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

// A term's digits and position. Past the last term, its first digit is too large.
struct TermIterator {
  Stride::Move at;
  int digits[4];

  __device__ TermIterator(const Axis& axis, int64_t index)
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
