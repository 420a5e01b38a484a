// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: routing by agreement. With
//   u_hat[b,i,j] = weights[i,j] @ input[b,i]
// iteration r = 1, 2, ... `iterations` computes
//   c_r[b,i]   = softmax over j of (logits[i,j] + <u_hat[b,i,j], V_r[b,j]>)
//   s_r[b,j]   = sum_i c_r[b,i,j] u_hat[b,i,j]
//   v_r[b,j]   = squash(s_r[b,j]),    squash(s) = s q/(1+q)/sqrt(q+epsilon), q = |s|^2
// where V_r = v_1 + ... + v_{r-1}. Adding <u_hat, v_r> to the logits after every
// iteration gives the same c_r, but would need logits for each sample and pair of
// capsules; V_r is much smaller. GPU kernels never store u_hat in global memory: they
// recompute it, or keep it in shared memory.
//
// T is float, double, Float16 or BFloat16; the 16-bit types are computed in float.
// Every output element is written, even when a sum is empty. On a GPU all tensors are
// aligned to 16 bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/launch/exec.h"
#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::capsule_routing {

// The names of the ops in errors.
inline constexpr char kForwardName[] = "CapsuleRouting";
inline constexpr char kBackwardName[] = "CapsuleRoutingGrad";
inline constexpr char kCoefficientsName[] = "CapsuleRoutingCoefficients";

// -1 is an unknown dimension; planners need them all.
struct Problem {
  int64_t batch = -1;
  int64_t in_caps = -1;
  int64_t out_caps = -1;
  int64_t out_dim = -1;
  int64_t in_dim = -1;
  int64_t iterations = -1;
  int64_t epsilon_bits = 0;  // bits of a float: equal problems, equal bytes

  float epsilon() const {
    float value;
    std::memcpy(&value, &epsilon_bits, sizeof(value));
    return value;
  }
  void set_epsilon(float value) { std::memcpy(&epsilon_bits, &value, sizeof(value)); }
};

// The type of the sums s that the forward pass saves for the gradient.
template <typename T>
using Sum = Accumulator<T>;

// input [batch, in_caps, in_dim], weights [in_caps, out_caps, out_dim, in_dim], logits
// [in_caps, out_caps] -> output [batch, out_caps, out_dim], which is the last v, and
// sums [iterations, batch, out_caps, out_dim], which are s_1, s_2, ...
template <typename Exec, typename T>
using ForwardPlan = Plan<Exec, const T* /*input*/, const T* /*weights*/,
                         const T* /*logits*/, T* /*output*/, Sum<T>* /*sums*/>;

CAPSOPS_OP(Forward, kForwardName, ForwardPlan)

// grad is shaped like output, and sums come from the forward plan; grad_input,
// grad_weights and grad_logits are shaped like the inputs:
//   db_r[b,i,j]  = c_r (dc - sum_j c_r dc) with dc[b,i,j] = <u_hat[b,i,j], ds_r[b,j]>
//   dV_r[b,j]    = sum_i db_r[b,i,j] u_hat[b,i,j], which adds to dv_q of every q < r
//   ds_r[b,j]    = dv_r backpropagated through squash
//   du_hat[b,i,j] = sum_r (c_r ds_r + db_r V_r)
//   grad_input[b,i]   = sum_j weights[i,j]^T @ du_hat[b,i,j]
//   grad_weights[i,j] = sum_b du_hat[b,i,j] (outer) input[b,i]
//   grad_logits[i,j]  = sum_b sum_r db_r[b,i,j]
template <typename Exec, typename T>
using BackwardPlan =
    Plan<Exec, const T* /*grad*/, const T* /*input*/, const T* /*weights*/,
         const T* /*logits*/, const Sum<T>* /*sums*/, T* /*grad_input*/,
         T* /*grad_weights*/, T* /*grad_logits*/>;

CAPSOPS_OP(Backward, kBackwardName, BackwardPlan)

// Computes coefficients [batch, in_caps, out_caps] = c of the iteration that follows
// the `iterations` iterations (here possibly 0) whose sums are given.
template <typename Exec, typename T>
using CoefficientsPlan =
    Plan<Exec, const T* /*input*/, const T* /*weights*/, const T* /*logits*/,
         const Sum<T>* /*sums*/, T* /*coefficients*/>;

CAPSOPS_OP(Coefficients, kCoefficientsName, CoefficientsPlan)

}  // namespace capsops::capsule_routing
