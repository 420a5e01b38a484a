// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: capsule prediction,
//   output[b,i,j] = weights[i,j] @ input[b,i],
// and its gradients. T is float, double, Float16 or BFloat16; the 16-bit types
// accumulate in float. Every output element is written, even when a contraction is
// empty.
#pragma once

#include <cstdint>

#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::capsule_prediction {

// -1 is an unknown dimension; planners need them all.
struct Problem {
  int64_t batch = -1;
  int64_t in_caps = -1;
  int64_t out_caps = -1;
  int64_t out_dim = -1;
  int64_t in_dim = -1;
};

// input [batch, in_caps, in_dim], weights [in_caps, out_caps, out_dim, in_dim]
// -> output [batch, in_caps, out_caps, out_dim].
template <typename Exec, typename T>
using ForwardPlan = Plan<Exec, const T* /*input*/, const T* /*weights*/, T* /*output*/>;

CAPSOPS_OP(Forward, "CapsulePrediction", ForwardPlan)

// grad is shaped like output, grad_input like input, grad_weights like weights:
//   grad_input[b,i]     = sum_j weights[i,j]^T @ grad[b,i,j]
//   grad_weights[i,j]   = sum_b grad[b,i,j] (outer) input[b,i]
template <typename Exec, typename T>
using BackwardPlan = Plan<Exec, const T* /*grad*/, const T* /*input*/,
                          const T* /*weights*/, T* /*grad_input*/, T* /*grad_weights*/>;

CAPSOPS_OP(Backward, "CapsulePredictionGrad", BackwardPlan)

}  // namespace capsops::capsule_prediction
