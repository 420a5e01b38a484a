// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of convolution with routing, compiled once per instruction set. A call
// runs one task on one thread, as in cc/cpu/capsule_prediction.h. CapsuleConv computes
// the votes of a slab of pixels (capsule_conv_slabs_plan.h); the kernels here copy its
// operands and route the votes, with one pixel per lane, so that lanes never exchange
// data.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing {

// Whether `route` and `route_backward` compute the votes themselves. They do for
// windows of one pixel, if the weights fit in the L2 cache and a sum over in_dim is
// short enough to be accurate without partial sums. Static for the reason that round.h
// gives.
template <typename T>
static inline bool MakesVotes(const Problem& p) {
  constexpr int64_t kMostTerms = 256, kMostBytes = 256 << 10;
  const int64_t weights = p.in_dim * Columns(p) * static_cast<int64_t>(sizeof(T));
  return std::is_same_v<T, Accumulator<T>> && p.shared_weights && !p.transposed &&
         p.kernel_depth == 1 && p.kernel_height == 1 && p.kernel_width == 1 &&
         p.stride_depth == 1 && p.stride_height == 1 && p.stride_width == 1 &&
         p.out_depth == p.in_depth && p.out_height == p.in_height &&
         p.out_width == p.in_width && p.pad_front == 0 && p.pad_top == 0 &&
         p.pad_left == 0 && p.types > 0 && p.in_dim > 0 && p.in_dim <= kMostTerms &&
         weights <= kMostBytes;
}

template <typename T>
struct CpuKernels {
  using A = Accumulator<T>;
  int64_t lanes;  // pixels that are routed together

  // Returns the bytes of scratch for `route` or, with `gradient`, `route_backward`.
  int64_t (*scratch)(const Problem& p, bool gradient);
  // Routes the votes of a range of pixels, [types][parents][out_dim] each, and stores
  // the results at the pixels' places in `output`. If MakesVotes, computes the votes
  // from the slab's `image` and the weights.
  void (*route)(const Problem& p, const Places& places, Range pixels, const T* image,
                const T* weights, const T* votes, const T* bias, const T* logits,
                T* output, void* scratch);
  // Replaces the votes of a range of pixels by their gradients, and adds the gradients
  // of bias and logits to `part`.
  void (*route_backward)(const Problem& p, const Places& places, Range pixels,
                         const T* image, const T* weights, const T* grad, const T* bias,
                         const T* logits, T* votes, A* part, void* scratch);
  // Adds up `count` parts.
  void (*add_parts)(const Problem& p, int64_t count, const A* parts, T* grad_bias,
                    T* grad_logits);

  // Copies one matrix of a phase's weights, or adds the gradient of the copy to `sums`.
  void (*relay)(const Relay& relay, int64_t matrix, const T* weights, T* copy);
  void (*add_relaid)(const Relay& relay, int64_t matrix, const T* copy, A* sums);
  void (*narrow)(int64_t count, const A* sums, T* to);

  // Copies all channels of row `row`, where rows of all frames of the copy are counted.
  void (*copy)(const Patch& patch, int64_t row, const T* input, T* copy);
  // Adds the gradient of the copy to input row `row`, where rows of all input frames
  // that the patch reads are counted.
  void (*add_copy)(const Patch& patch, int64_t row, const T* copy, T* grad_input);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_conv_routing
