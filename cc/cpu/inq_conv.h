// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of INQ convolution, compiled once per instruction set. A call runs one
// task on one thread, as in cc/cpu/capsule_prediction.h. If the channels of the written
// image fill at least half of the lanes, cc/cpu/inq_conv_tiles.h computes the
// convolution; otherwise cc/cpu/capsule_conv.h does, whose lanes are pixels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cc/cpu/kernels.h"
#include "cc/launch/inq_conv.h"

namespace capsops::inq_conv {

// All weights are normal numbers for top exponents from -kLargestTop to kLargestTop.
template <typename A>
constexpr int64_t kLargestTop = std::is_same_v<A, double> ? 900 : 60;

// The division of the work, which depends only on the problem and the instruction set.
struct Division {
  bool fits;           // whether these kernels can compute the problem
  int64_t workspace;   // bytes of the packed weights
  int64_t pack_tasks;  // number of tasks of `pack`
  int64_t tasks;       // number of tasks of `run`
};

// Kernels of the forward convolution or of the input gradient. Both read one image and
// write another.
template <typename A>
struct ImageKernels {
  Division (*divide)(const Problem& p);
  // Decodes and packs weights with top exponent `top`, which is at most kLargestTop.
  // Returns whether all codes are in the code book.
  bool (*pack)(const Problem& p, int64_t task, int top, const uint8_t* codes,
               void* workspace);
  void (*run)(const Problem& p, int64_t task, const A* from, const void* workspace,
              A* to);
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
