// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution from its definition, number by number.
#include "cc/cpu/high_order_conv.h"

#include "cc/cpu/convert.h"

namespace capsops::high_order_conv::CAPSOPS_ISA {
namespace {

using capsops::CAPSOPS_ISA::Accumulator;
using capsops::CAPSOPS_ISA::Narrow;
using capsops::CAPSOPS_ISA::Widen;

// Where number `c` of a pixel lies in a tensor that has `depth` of them.
int64_t Index(const Problem& p, int64_t depth, int64_t n, int64_t y, int64_t x,
              int64_t c) {
  return p.channels_first ? ((n * depth + c) * p.height + y) * p.width + x
                          : ((n * p.height + y) * p.width + x) * depth + c;
}

// The pixel that is kernel position `k` away from another, `sign` times.
struct Neighbour {
  Neighbour(const Problem& p, int64_t from_y, int64_t from_x, int64_t k, int sign)
      : y(from_y + sign * (k / p.kernel_width - p.kernel_height / 2) *
                       p.dilation_height),
        x(from_x +
          sign * (k % p.kernel_width - p.kernel_width / 2) * p.dilation_width),
        inside(y >= 0 && y < p.height && x >= 0 && x < p.width) {}
  int64_t y, x;
  bool inside;
};

template <typename T>
Accumulator<T> Product(T a, T b) {
  return Accumulator<T>(Widen(a)) * Accumulator<T>(Widen(b));
}

template <typename T>
void Forward(const Problem& p, int64_t row_begin, int64_t row_end, const T* input,
             const T* filters, T* output) {
  const int64_t positions = p.kernel_height * p.kernel_width;
  const int64_t depth = p.groups * positions;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t n = row / p.height, y = row % p.height;
    for (int64_t x = 0; x < p.width; ++x) {
      for (int64_t c = 0; c < p.channels; ++c) {
        const int64_t first = c / (p.channels / p.groups) * positions;
        Accumulator<T> sum = 0;
        for (int64_t k = 0; k < positions; ++k) {
          const Neighbour at(p, y, x, k, 1);
          if (!at.inside) continue;
          sum += Product(input[Index(p, p.channels, n, at.y, at.x, c)],
                         filters[Index(p, depth, n, y, x, first + k)]);
        }
        Narrow(sum, &output[Index(p, p.channels, n, y, x, c)]);
      }
    }
  }
}

template <typename T>
void Backward(const Problem& p, int64_t row_begin, int64_t row_end, const T* grad,
              const T* input, const T* filters, T* grad_input, T* grad_filters) {
  const int64_t positions = p.kernel_height * p.kernel_width;
  const int64_t depth = p.groups * positions, per_group = p.channels / p.groups;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t n = row / p.height, y = row % p.height;
    for (int64_t x = 0; x < p.width; ++x) {
      for (int64_t c = 0; c < p.channels; ++c) {
        Accumulator<T> sum = 0;
        for (int64_t k = 0; k < positions; ++k) {
          const Neighbour at(p, y, x, k, -1);
          if (!at.inside) continue;
          const int64_t d = c / per_group * positions + k;
          sum += Product(grad[Index(p, p.channels, n, at.y, at.x, c)],
                         filters[Index(p, depth, n, at.y, at.x, d)]);
        }
        Narrow(sum, &grad_input[Index(p, p.channels, n, y, x, c)]);
      }
      for (int64_t d = 0; d < depth; ++d) {
        const Neighbour at(p, y, x, d % positions, 1);
        const int64_t begin = d / positions * per_group;
        Accumulator<T> sum = 0;
        for (int64_t c = begin; at.inside && c < begin + per_group; ++c) {
          sum += Product(grad[Index(p, p.channels, n, y, x, c)],
                         input[Index(p, p.channels, n, at.y, at.x, c)]);
        }
        Narrow(sum, &grad_filters[Index(p, depth, n, y, x, d)]);
      }
    }
  }
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {Forward<T>, Backward<T>};
}

template CpuKernels<float> Kernels();
template CpuKernels<double> Kernels();
template CpuKernels<Float16> Kernels();
template CpuKernels<BFloat16> Kernels();

}  // namespace capsops::high_order_conv::CAPSOPS_ISA
