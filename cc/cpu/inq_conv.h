// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// INQ convolution for one thread, once per instruction set. As in
// cc/cpu/capsule_prediction.h, these functions use nothing but their arguments;
// cc/cpu/dispatch/ divides their work. Where the channels of the written image fill
// half of the lanes or more, cc/cpu/inq_conv_tiles.h computes the convolution.
// Otherwise cc/cpu/capsule_conv.h does, whose lanes are pixels.
#ifndef CAPSOPS_CC_CPU_INQ_CONV_H_
#define CAPSOPS_CC_CPU_INQ_CONV_H_

#include <cstdint>
#include <type_traits>

#include "cc/cpu/kernels.h"
#include "cc/launch/inq_conv.h"

namespace capsops::inq_conv {

// With top exponents from minus this to this, no weight overflows or is subnormal.
template <typename A>
constexpr int64_t kLargestTop = std::is_same_v<A, double> ? 900 : 60;

// How work is divided, which depends on nothing but the problem and the instruction
// set.
struct Division {
  bool fits;           // whether these kernels can compute the problem
  int64_t workspace;   // bytes of the packed weights
  int64_t pack_tasks;  // of `pack`
  int64_t tasks;       // of `run`
};

// The forward convolution and the gradient of the input are alike: each reads an image
// and writes another.
template <typename A>
struct ImageKernels {
  Division (*divide)(const Problem& p);
  // Decodes and packs weights whose top exponent is `top`, at most kLargestTop. Returns
  // whether all of their codes are in the code book.
  bool (*pack)(const Problem& p, int64_t task, int top, const uint8_t* codes,
               void* workspace);
  void (*run)(const Problem& p, int64_t task, const A* from, const void* workspace,
              A* to);
};

template <typename T>
struct CpuKernels {
  // Decodes `count` weights from number `begin` on, in the order of the codes. Returns
  // what `pack` returns.
  bool (*decode)(const Problem& p, int64_t begin, int64_t count, int top,
                 const uint8_t* codes, Accumulator<T>* weights);
  void (*widen)(int64_t count, const T* from, Accumulator<T>* to);
  // Sets to = from * 2^exponent. `from` and `to` may be the same.
  void (*scale)(int64_t count, int64_t exponent, const Accumulator<T>* from, T* to);
  ImageKernels<Accumulator<T>> forward;
  ImageKernels<Accumulator<T>> backprop_input;
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::inq_conv

#endif  // CAPSOPS_CC_CPU_INQ_CONV_H_
