// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/cpu/capsule_conv.h"

#include "cc/cpu/convert.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {
namespace {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Sizes of the matrices of a capsule.
struct Poses {
  explicit Poses(const Problem& p)
      : input(p.pose_depth * p.pose_rows * p.pose_inner),
        weights(p.pose_depth * p.pose_inner * p.pose_columns),
        output(p.pose_depth * p.pose_rows * p.pose_columns) {}
  int64_t input, weights, output;
};

template <typename T>
void Forward(const Problem& p, int64_t task, const T* input, const T* weights,
             T* output) {
  using A = Accumulator<T>;
  const Poses poses(p);
  const int64_t n = task / p.out_height, y = task % p.out_height;
  for (int64_t x = 0; x < p.out_width; ++x) {
    T* out = output + (task * p.out_width + x) * p.out_channels * poses.output;
    for (int64_t o = 0; o < p.out_channels; ++o) {
      for (int64_t m = 0; m < p.pose_depth * p.pose_rows * p.pose_columns; ++m) {
        const int64_t row = m / p.pose_columns, column = m % p.pose_columns;
        const int64_t g = row / p.pose_rows;
        A sum{0};
        for (int64_t k = 0; k < p.kernel_height * p.kernel_width; ++k) {
          const int64_t kh = k / p.kernel_width, kw = k % p.kernel_width;
          const int64_t from_y =
              y * p.stride_height - p.pad_top + kh * p.dilation_height;
          const int64_t from_x =
              x * p.stride_width - p.pad_left + kw * p.dilation_width;
          if (from_y < 0 || from_y >= p.in_height) continue;
          if (from_x < 0 || from_x >= p.in_width) continue;
          const int64_t pixel = (n * p.in_height + from_y) * p.in_width + from_x;
          A part{0};
          for (int64_t c = 0; c < p.in_channels; ++c) {
            const T* in =
                input + (pixel * p.in_channels + c) * poses.input + row * p.pose_inner;
            const T* w =
                weights +
                ((k * p.in_channels + c) * p.out_channels + o) * poses.weights +
                g * p.pose_inner * p.pose_columns + column;
            for (int64_t q = 0; q < p.pose_inner; ++q) {
              part += Widen(in[q]) * Widen(w[q * p.pose_columns]);
            }
          }
          sum += part;
        }
        Narrow(sum, out + o * poses.output + m);
      }
    }
  }
}

template <typename T>
void BackpropInput(const Problem& p, int64_t task, const T* weights, const T* grad,
                   T* grad_input) {
  using A = Accumulator<T>;
  const Poses poses(p);
  const int64_t n = task / p.in_height, y = task % p.in_height;
  for (int64_t x = 0; x < p.in_width; ++x) {
    T* out = grad_input + (task * p.in_width + x) * p.in_channels * poses.input;
    for (int64_t c = 0; c < p.in_channels; ++c) {
      for (int64_t m = 0; m < p.pose_depth * p.pose_rows * p.pose_inner; ++m) {
        const int64_t row = m / p.pose_inner, q = m % p.pose_inner;
        const int64_t g = row / p.pose_rows;
        A sum{0};
        for (int64_t k = 0; k < p.kernel_height * p.kernel_width; ++k) {
          const int64_t kh = k / p.kernel_width, kw = k % p.kernel_width;
          const int64_t to_y = y + p.pad_top - kh * p.dilation_height;
          const int64_t to_x = x + p.pad_left - kw * p.dilation_width;
          if (to_y < 0 || to_y % p.stride_height != 0) continue;
          if (to_x < 0 || to_x % p.stride_width != 0) continue;
          const int64_t out_y = to_y / p.stride_height, out_x = to_x / p.stride_width;
          if (out_y >= p.out_height || out_x >= p.out_width) continue;
          const int64_t pixel = (n * p.out_height + out_y) * p.out_width + out_x;
          A part{0};
          for (int64_t o = 0; o < p.out_channels; ++o) {
            const T* in = grad + (pixel * p.out_channels + o) * poses.output +
                          row * p.pose_columns;
            const T* w =
                weights +
                ((k * p.in_channels + c) * p.out_channels + o) * poses.weights +
                (g * p.pose_inner + q) * p.pose_columns;
            for (int64_t r = 0; r < p.pose_columns; ++r) {
              part += Widen(in[r]) * Widen(w[r]);
            }
          }
          sum += part;
        }
        Narrow(sum, out + c * poses.input + m);
      }
    }
  }
}

template <typename T>
void BackpropWeights(const Problem& p, int64_t task, const T* input, const T* grad,
                     T* grad_weights) {
  using A = Accumulator<T>;
  const Poses poses(p);
  const int64_t c = task % p.in_channels, k = task / p.in_channels;
  const int64_t kh = k / p.kernel_width, kw = k % p.kernel_width;
  T* const to = grad_weights + task * p.out_channels * poses.weights;
  for (int64_t o = 0; o < p.out_channels; ++o) {
    for (int64_t m = 0; m < poses.weights; ++m) {
      const int64_t column = m % p.pose_columns, inner = m / p.pose_columns;
      const int64_t g = inner / p.pose_inner, q = inner % p.pose_inner;
      A sum{0};
      for (int64_t row = 0; row < p.batch * p.out_height; ++row) {
        const int64_t n = row / p.out_height, y = row % p.out_height;
        const int64_t from_y = y * p.stride_height - p.pad_top + kh * p.dilation_height;
        if (from_y < 0 || from_y >= p.in_height) continue;
        A part{0};
        for (int64_t x = 0; x < p.out_width; ++x) {
          const int64_t from_x =
              x * p.stride_width - p.pad_left + kw * p.dilation_width;
          if (from_x < 0 || from_x >= p.in_width) continue;
          const int64_t pixel = (n * p.in_height + from_y) * p.in_width + from_x;
          const T* in = input + (pixel * p.in_channels + c) * poses.input +
                        g * p.pose_rows * p.pose_inner + q;
          const T* out = grad +
                         ((row * p.out_width + x) * p.out_channels + o) * poses.output +
                         g * p.pose_rows * p.pose_columns + column;
          for (int64_t i = 0; i < p.pose_rows; ++i) {
            part += Widen(in[i * p.pose_inner]) * Widen(out[i * p.pose_columns]);
          }
        }
        sum += part;
      }
      Narrow(sum, to + o * poses.weights + m);
    }
  }
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {Forward<T>, BackpropInput<T>, BackpropWeights<T>};
}
template CpuKernels<float> Kernels();
template CpuKernels<double> Kernels();
template CpuKernels<Float16> Kernels();
template CpuKernels<BFloat16> Kernels();

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
