// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of convolution with routing, compiled once per instruction set. A call
// runs one task on one thread, as in cc/cpu/capsule_prediction.h. Votes are routed with
// one pixel per lane, so no step needs another lane.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing {

// A range of pixels of a slab.
struct Range {
  int64_t begin, end;
};

template <typename T>
struct CpuKernels {
  using A = Accumulator<T>;
  int64_t lanes;  // pixels that are routed together

  // Returns the bytes of scratch for `route` or, with `gradient`, `route_backward`.
  int64_t (*scratch)(const Problem& p, bool gradient);
  // Routes pixels of `votes`, [types][parents][out_dim] each, to their places.
  void (*route)(const Problem& p, const Places& places, Range pixels, const T* votes,
                const T* bias, const T* logits, T* output, void* scratch);
  // Replaces the votes of pixels by their gradients, and adds those of bias and logits
  // to `part`.
  void (*route_backward)(const Problem& p, const Places& places, Range pixels,
                         const T* grad, const T* bias, const T* logits, T* votes,
                         A* part, void* scratch);
  // Writes the sums of `count` parts.
  void (*add_parts)(const Problem& p, int64_t count, const A* parts, T* grad_bias,
                    T* grad_logits);

  // Copies the weights of one matrix, or adds their copy to `sums`.
  void (*relay)(const Relay& relay, int64_t matrix, const T* weights, T* copy);
  void (*add_relaid)(const Relay& relay, int64_t matrix, const T* copy, A* sums);
  void (*narrow)(int64_t count, const A* sums, T* to);

  // Copies the channels of row `row` of all rows of the copy. Adds the copy's gradients
  // to row `row` of the rows of the input that the patch reads.
  void (*copy)(const Patch& patch, int64_t row, const T* input, T* copy);
  void (*add_copy)(const Patch& patch, int64_t row, const T* copy, T* grad_input);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_conv_routing
