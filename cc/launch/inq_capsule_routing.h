// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: routing by agreement
// (cc/launch/capsule_routing.h) with weights that are zero or powers of two, given as
// one-byte codes of one code book (cc/launch/inq_decode.h). Results are those of
// routing with the decoded weights, to the bit.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_routing.h"
#include "cc/launch/inq_decode.h"
#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::inq_capsule_routing {

struct Problem : capsule_routing::Problem {
  int64_t bits = 5;  // 2 to 8

  // Returns the number of weights. If one dimension is 0, the product of the others may
  // overflow.
  int64_t weights() const {
    const bool empty = in_caps == 0 || out_caps == 0 || out_dim == 0 || in_dim == 0;
    return empty ? 0 : in_caps * out_caps * out_dim * in_dim;
  }
};

// input, logits, output and sums as in capsule_routing::ForwardPlan, codes shaped like
// the weights there, and top_exponent a single number.
template <typename Exec, typename T>
using ForwardPlan = Plan<Exec, const T* /*input*/, const uint8_t* /*codes*/,
                         const int64_t* /*top_exponent*/, const T* /*logits*/,
                         T* /*output*/, capsule_routing::Sum<T>* /*sums*/>;

CAPSOPS_OP(Forward, "InqCapsuleRouting", ForwardPlan)

}  // namespace capsops::inq_capsule_routing
