// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of INQ convolution, compiled once per instruction set. A call runs one
// task on one thread, as in cc/cpu/capsule_prediction.h. If the channels of the written
// image fill at least half of the lanes, cc/cpu/capsule_conv_columns.h computes the
// convolution from packed codes; otherwise weights are decoded first, and the lanes of
// cc/cpu/capsule_conv.h are pixels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cc/cpu/capsule_conv.h"
#include "cc/cpu/kernels.h"
#include "cc/launch/inq_conv.h"

namespace capsops::inq_conv {

// All weights are normal numbers for top exponents from -kLargestTop to kLargestTop.
template <typename A>
constexpr int64_t kLargestTop = std::is_same_v<A, double> ? 900 : 60;

// Kernels of the forward convolution or of the input gradient. Both read one image and
// write another.
template <typename A>
struct ImageKernels {
  capsule_conv::Division (*divide)(const Problem& p);
  // Decodes and packs weights with top exponent `top`, which is at most kLargestTop.
  // Returns whether all codes are in the code book.
  bool (*pack)(const Problem& p, int64_t task, int top, const uint8_t* codes,
               void* workspace);
  void (*run)(const Problem& p, int64_t task, const A* from, const void* workspace,
              A* to, void* scratch);
};

template <typename T>
struct CpuKernels {
  // Decodes `count` weights from index `begin` on, in the order of the codes. Returns
  // whether all codes are in the code book.
  bool (*decode)(const Problem& p, int64_t begin, int64_t count, int top,
                 const uint8_t* codes, Accumulator<T>* weights);
  void (*widen)(int64_t count, const T* from, Accumulator<T>* to);
  // Computes to = from * 2^exponent. `from` and `to` may be equal.
  void (*scale)(int64_t count, int64_t exponent, const Accumulator<T>* from, T* to);
  ImageKernels<Accumulator<T>> forward;
  ImageKernels<Accumulator<T>> backprop_input;
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::inq_conv
