// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs the filter into the operands of wgmma/product.cuh, in the order in which blocks
// read them:
//   [depth][column block][chunk][step][part][unit][column] of 16 bytes.
// A step has two units of one tap each (wgmma/units.cuh), the depth of one wgmma.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/wgmma/patch.cuh"
#include "cuda/capsule_conv/wgmma/units.cuh"

namespace capsops::capsule_conv::wgmma {

// Packs one step per block, one unit of one column per thread, as kParts parts of
// operand type O. `weights[i]` is element i of the filter.
template <typename O, int kParts, typename Weights>
__global__ void PackUnitsKernel(const Filter filter, const Product p,
                                const SortedPatch sorted, int columns,
                                const Weights weights, uint4* packed) {
  TriggerDependentLaunch();
  const int which = threadIdx.x / columns, column = threadIdx.x - which * columns;
  Digits<int> digits(blockIdx.x);
  const int step = digits.Next(p.order.steps), chunk = digits.Next(p.order.chunks);
  const int column_block = digits.Next(p.order.column_blocks), depth = digits.rest;

  const int taps = p.vertical.taps * p.horizontal.taps;
  const int i = UnitStep(p, sorted, step).numbers[which];
  const int unit = i / taps, tap = i - unit * taps, down = tap / p.horizontal.taps;
  const int y = p.vertical.first + down * p.vertical.every;
  const int x =
      p.horizontal.first + (tap - down * p.horizontal.taps) * p.horizontal.every;
  const int n = column_block * columns + column;
  const int out_channel = n / filter.out_inner;
  const int out_tap = out_channel / filter.tap_channels;
  const int64_t from =
      (int64_t{y} * filter.kernel_width + x) * filter.tap +
      depth * filter.depth_stride + out_tap * filter.out_tap +
      (out_channel - out_tap * int64_t{filter.tap_channels}) * filter.out_channel +
      (n - out_channel * filter.out_inner) * filter.out_element;
  const int quads = (filter.inner + kQuad - 1) / kQuad;
  constexpr int kElements = kUnitQuads<O> * kQuad;
  float elements[kElements]{};
#pragma unroll
  for (int q = 0; q < kUnitQuads<O>; ++q) {
    const int plane = (chunk * p.order.planes + unit) * kUnitQuads<O> + q;
    const int channel = plane / quads, first = (plane - channel * quads) * kQuad;
    if (unit >= p.order.planes || channel >= filter.channels ||
        out_channel >= filter.out_channels) {
      continue;
    }
#pragma unroll
    for (int e = 0; e < kQuad; ++e) {
      if (first + e >= filter.inner) continue;
      elements[q * kQuad + e] = Widen(
          weights[from + channel * filter.channel + (first + e) * filter.element]);
    }
  }
  uint4 parts[kParts];
  if constexpr (kParts > 1) {
    SplitUnit(elements, parts);
  } else {
    Pack<O, kElements> to;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      Narrow(
          std::is_same_v<O, float> ? Prepare<Tf32::kRounded>(elements[e]) : elements[e],
          &to.at[e]);
    }
    parts[0] = *reinterpret_cast<const uint4*>(&to);
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    packed[(int64_t{blockIdx.x} * kParts + part) * blockDim.x + threadIdx.x] =
        parts[part];
  }
}

// Launches PackUnitsKernel for tiles of `columns` columns.
template <typename O, int kParts, typename Weights>
LaunchError PackUnits(const GpuExec& exec, const char* op, const Filter& filter,
                      const Product& product, int columns, const Weights& weights,
                      uint32_t* packed) {
  const int64_t blocks = PackedSteps(filter, product.order);
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, blocks));
  return Launch(op, PackUnitsKernel<O, kParts, Weights>, blocks, 2 * columns, 0, exec,
                filter, product, SortedPatch(product), columns, weights,
                reinterpret_cast<uint4*>(packed));
}

}  // namespace capsops::capsule_conv::wgmma
