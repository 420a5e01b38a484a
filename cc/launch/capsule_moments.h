// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: moments of capsules' votes, which every
// iteration of EM and related routing algorithms needs. Child k = (kh, kw, c) of the
// window at (y, x) is the pose and the activation at pixel
// (y*stride_height - pad_top + kh*dilation_height,
// x*stride_width - pad_left + kw*dilation_width), channel c; a child outside the image
// does not exist.
//   vote[k,o]  = pose[k] @ weights[k,o], u = vote - center[o]
//   logit[k,o] = prior[k,o] + bias[o] + <linear[o], vote> - 1/2 <precision[o], u^2>
//   share      = the softmax of logit over o                         kParents
//                the softmax over all (y,x,kh,kw,o) that see the
//                same pose                                           kAll
//                logit                                               kNone
//   mass   = sum over k of activation[k] share[k,o]
//   first  = sum over k of activation[k] share[k,o] u
//   second = sum over k of activation[k] share[k,o] u^2
// Votes are recomputed wherever they are needed and never stored. An absent optional
// tensor counts as zero (activations: as one), and its pointer is not read.
//
// T is float, double, Float16 or BFloat16; kernels compute in Statistic<T>. Every
// output element is written, even when a sum is empty. On a GPU all tensors are aligned
// to 16 bytes.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/exec.h"
#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::capsule_moments {

// The values of Problem::normalize: the set over which the shares add up to 1.
inline constexpr int64_t kParents = 0, kAll = 1, kNone = 2;

// -1 means unknown: a dimension, or whether a tensor is present. Planners need all.
struct Problem : capsule_conv::WindowProblem {
  int64_t pose_rows = -1;     // P
  int64_t pose_inner = -1;    // Q
  int64_t pose_columns = -1;  // R
  int64_t order = 0;          // 0: mass; 1: mass and first; 2: all three
  int64_t normalize = kParents;
  // 1 if the optional tensor is present, else 0.
  int64_t has_activations = -1;
  int64_t has_bias = -1;
  int64_t has_linear = -1;
  int64_t has_precision = -1;
  int64_t has_center = -1;
  int64_t has_prior = -1;
};

// The type of the statistics, the moments and the prior.
template <typename T>
using Statistic = Accumulator<T>;

// The number of windows, of children of a window (including those outside the image),
// and of elements of a vote.
constexpr int64_t NumWindows(const Problem& p) {
  return p.batch * p.out_height * p.out_width;
}
constexpr int64_t Children(const Problem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels;
}
constexpr int64_t VoteSize(const Problem& p) { return p.pose_rows * p.pose_columns; }

// poses [batch, in_height, in_width, in_channels, pose_rows, pose_inner], activations
// [batch, in_height, in_width, in_channels], weights [kernel_height, kernel_width,
// in_channels, out_channels, pose_inner, pose_columns], bias [batch, out_height,
// out_width, out_channels], linear, precision and center [batch, out_height, out_width,
// out_channels, pose_rows, pose_columns], prior [kernel_height, kernel_width,
// in_channels, out_channels] -> mass, shaped like bias, first and second, shaped like
// center; first is written only where order >= 1 and second where order == 2.
template <typename Exec, typename T>
using ForwardPlan =
    Plan<Exec, const T* /*poses*/, const T* /*activations*/, const T* /*weights*/,
         const Statistic<T>* /*bias*/, const Statistic<T>* /*linear*/,
         const Statistic<T>* /*precision*/, const Statistic<T>* /*center*/,
         const Statistic<T>* /*prior*/, Statistic<T>* /*mass*/, Statistic<T>* /*first*/,
         Statistic<T>* /*second*/>;

CAPSOPS_OP(Forward, "CapsuleMoments", ForwardPlan)

// The gradients of the moments up to `order`, the inputs of the forward plan, and its
// results mass and (if order >= 1) first -> the gradients of all inputs that are
// present. With q = activation * share:
//   dq      = grad_mass + <grad_first, u> + <grad_second, u^2>
//   dr      = activation dq
//   dz      = share (dr - the sum of share dr over the softmax's own set); kNone: dr
//   d vote  = q (grad_first + 2 grad_second u) + dz (linear - precision u)
//   grad_activations = sum over all (y,x,kh,kw,o) of share dq
//   grad_poses       = sum over all (y,x,kh,kw,o) of d vote @ transpose(weights)
//   grad_weights     = sum over n, y, x of transpose(pose) @ d vote
//   grad_prior       = sum over n, y, x of dz
//   grad_bias        = sum over k of dz
//   grad_linear      = sum over k of dz vote
//   grad_precision   = -1/2 sum over k of dz u^2
//   grad_center      = precision sum over k of dz u - mass grad_first
//                      - 2 first grad_second
template <typename Exec, typename T>
using BackwardPlan =
    Plan<Exec, const Statistic<T>* /*grad_mass*/, const Statistic<T>* /*grad_first*/,
         const Statistic<T>* /*grad_second*/, const T* /*poses*/,
         const T* /*activations*/, const T* /*weights*/, const Statistic<T>* /*bias*/,
         const Statistic<T>* /*linear*/, const Statistic<T>* /*precision*/,
         const Statistic<T>* /*center*/, const Statistic<T>* /*prior*/,
         const Statistic<T>* /*mass*/, const Statistic<T>* /*first*/, T* /*grad_poses*/,
         T* /*grad_activations*/, T* /*grad_weights*/, Statistic<T>* /*grad_bias*/,
         Statistic<T>* /*grad_linear*/, Statistic<T>* /*grad_precision*/,
         Statistic<T>* /*grad_center*/, Statistic<T>* /*grad_prior*/>;

CAPSOPS_OP(Backward, "CapsuleMomentsGrad", BackwardPlan)

// The inputs of the forward plan, for any order -> shares [batch, out_height,
// out_width, kernel_height, kernel_width, in_channels, out_channels], which are 0 for
// children outside the image.
template <typename Exec, typename T>
using SharesPlan =
    Plan<Exec, const T* /*poses*/, const T* /*activations*/, const T* /*weights*/,
         const Statistic<T>* /*bias*/, const Statistic<T>* /*linear*/,
         const Statistic<T>* /*precision*/, const Statistic<T>* /*center*/,
         const Statistic<T>* /*prior*/, Statistic<T>* /*shares*/>;

CAPSOPS_OP(Shares, "CapsuleMomentShares", SharesPlan)

}  // namespace capsops::capsule_moments
