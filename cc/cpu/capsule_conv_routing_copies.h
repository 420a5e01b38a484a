// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies the operands of a slab's convolution, and adds the gradients of the copies.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_conv_routing.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_conv_routing::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Implements CpuKernels::relay.
template <typename T>
void CopyMatrix(const Relay& relay, int64_t matrix, const T* weights, T* copy) {
  std::memcpy(copy + matrix * relay.matrix, weights + relay.From(matrix) * relay.matrix,
              relay.matrix * sizeof(T));
}

// Implements CpuKernels::add_relaid.
template <typename T>
void AddMatrix(const Relay& relay, int64_t matrix, const T* copy,
               Accumulator<T>* sums) {
  const T* const from = copy + matrix * relay.matrix;
  Accumulator<T>* const to = sums + relay.From(matrix) * relay.matrix;
  for (int64_t i = 0; i < relay.matrix; ++i) to[i] += Widen(from[i]);
}

// Implements CpuKernels::narrow.
template <typename T>
void NarrowAll(int64_t count, const Accumulator<T>* sums, T* to) {
  for (int64_t i = 0; i < count; ++i) Narrow(sums[i], to + i);
}

// Implements CpuKernels::copy.
template <typename T>
void CopyRow(const Patch& patch, int64_t row, const T* input, T* copy) {
  const int64_t frame = patch.first + row / patch.rows;
  const int64_t image = frame / patch.per_image, place = frame % patch.per_image;
  const int64_t y = patch.row + row % patch.rows;
  const int64_t step = patch.channels * patch.pixel;
  copy += row * patch.width * step;
  for (int64_t c = 0; c < patch.channels; ++c, copy += patch.pixel) {
    const int64_t depth = place * patch.read_step + c * patch.read_tap + patch.read;
    const bool inside = depth >= 0 && depth < patch.depth;
    const int64_t from =
        ((image * patch.depth + depth) * patch.height + y) * patch.width * patch.pixel;
    for (int64_t x = 0; x < patch.width; ++x) {
      if (inside) {
        std::memcpy(copy + x * step, input + from + x * patch.pixel,
                    patch.pixel * sizeof(T));
      } else {
        std::memset(copy + x * step, 0, patch.pixel * sizeof(T));
      }
    }
  }
}

// Implements CpuKernels::add_copy for the frames from begin_frame() to end_frame().
template <typename T>
void AddRow(const Patch& patch, int64_t row, const T* copy, T* grad_input) {
  const int64_t frame = patch.begin_frame() + row / patch.rows;
  const int64_t image = frame / patch.depth, depth = frame % patch.depth;
  const int64_t y = row % patch.rows, line = patch.width * patch.pixel;
  T* const to = grad_input + (frame * patch.height + patch.row + y) * line;
  for (int64_t c = 0; c < patch.channels; ++c) {
    const int64_t place = depth - c * patch.read_tap - patch.read;
    if (place < 0 || place % patch.read_step != 0 ||
        place / patch.read_step >= patch.per_image) {
      continue;
    }
    const int64_t slice =
        image * patch.per_image + place / patch.read_step - patch.first;
    if (slice < 0 || slice >= patch.frames) continue;
    const T* const from = copy + (slice * patch.rows + y) * line * patch.channels;
    for (int64_t x = 0; x < patch.width; ++x) {
      const T* const added = from + (x * patch.channels + c) * patch.pixel;
      T* const sum = to + x * patch.pixel;
      for (int64_t i = 0; i < patch.pixel; ++i) {
        Narrow(Widen(sum[i]) + Widen(added[i]), sum + i);
      }
    }
  }
}

}  // namespace capsops::capsule_conv_routing::CAPSOPS_ISA
