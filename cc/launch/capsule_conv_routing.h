// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: convolution and routing by agreement in
// one op. The vote of child type i for parent j at output pixel p is a convolution,
//   votes[p,i,j] = sum over taps t of
//       input[p * stride + t * dilation - pad, i] @ weights[t,i,:,j]
// where input outside the image is zero, or a transposed convolution,
//   votes[q * stride + t - pad, i, j] += input[q,i] @ weights[t,i,:,j].
// At every output pixel, iteration r = 1, 2, ... `iterations` computes
//   c_r[i]  = softmax over j of (logits[i,j] + <votes[i,j], V_r[j]>)
//   s_r[j]  = sum_i c_r[i,j] votes[i,j] + bias[j]
//   v_r[j]  = squash(s_r[j])
// with V_r = v_1 + ... + v_{r-1} and squash as in capsule_routing.h. If `leaky`, the
// softmax has one more term, exp(0), in its denominator.
//
// Votes exist only for a slab of pixels at a time (capsule_conv_slabs.h).
//
// T is float, double, Float16 or BFloat16; the 16-bit types are routed in float. Every
// output element is written, even when a sum is empty. On a GPU all tensors are aligned
// to 16 bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/launch/exec.h"
#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::capsule_conv_routing {

// -1 is an unknown dimension; planners need them all. Images of one or two dimensions
// have a depth, and lines also a height, of 1.
struct Problem {
  int64_t batch = -1;
  int64_t in_depth = 1;
  int64_t in_height = 1;
  int64_t in_width = -1;
  int64_t types = -1;
  int64_t in_dim = -1;
  int64_t kernel_depth = 1;
  int64_t kernel_height = 1;
  int64_t kernel_width = -1;
  int64_t parents = -1;
  int64_t out_dim = -1;
  int64_t out_depth = 1;
  int64_t out_height = 1;
  int64_t out_width = -1;
  int64_t stride_depth = 1;
  int64_t stride_height = 1;
  int64_t stride_width = 1;
  int64_t dilation_depth = 1;
  int64_t dilation_height = 1;
  int64_t dilation_width = 1;
  int64_t pad_front = 0;
  int64_t pad_top = 0;
  int64_t pad_left = 0;
  int64_t iterations = -1;
  int64_t epsilon_bits = 0;    // the bits of a float: equal problems have equal bytes
  int64_t shared_weights = 1;  // whether all types have the same weights
  int64_t transposed = 0;
  int64_t leaky = 0;

  float epsilon() const {
    float value;
    std::memcpy(&value, &epsilon_bits, sizeof(value));
    return value;
  }
  void set_epsilon(float value) { std::memcpy(&epsilon_bits, &value, sizeof(value)); }
};

// input [batch, in_depth, in_height, in_width, types, in_dim], weights [kernel_depth,
// kernel_height, kernel_width, types, in_dim, parents, out_dim] or, if shared, without
// types, bias [parents, out_dim], logits [types, parents] -> output [batch, out_depth,
// out_height, out_width, parents, out_dim], which is the last v.
template <typename Exec, typename T>
using ForwardPlan = Plan<Exec, const T* /*input*/, const T* /*weights*/,
                         const T* /*bias*/, const T* /*logits*/, T* /*output*/>;

CAPSOPS_OP(Forward, "CapsuleConvRouting", ForwardPlan)

// grad is shaped like output, and the gradients like the inputs. At each pixel:
//   db_r[i,j]   = c_r (dc - sum_j c_r dc) with dc[i,j] = <votes[i,j], ds_r[j]>
//   dV_r[j]     = sum_i db_r[i,j] votes[i,j], which adds to dv_q of every q < r
//   ds_r[j]     = dv_r backpropagated through squash
//   dvotes[i,j] = sum_r (c_r ds_r + db_r V_r)
//   grad_bias   = the sum of ds_r over r and pixels
//   grad_logits = the sum of db_r over r and pixels
template <typename Exec, typename T>
using BackwardPlan =
    Plan<Exec, const T* /*grad*/, const T* /*input*/, const T* /*weights*/,
         const T* /*bias*/, const T* /*logits*/, T* /*grad_input*/, T* /*grad_weights*/,
         T* /*grad_bias*/, T* /*grad_logits*/>;

CAPSOPS_OP(Backward, "CapsuleConvRoutingGrad", BackwardPlan)

}  // namespace capsops::capsule_conv_routing
