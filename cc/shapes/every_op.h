// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The list of all ops. cc/kernels registers their OpKernels, and cc/xla their XLA
// kernels.
#pragma once

#include "cc/shapes/capsule_conv.h"
#include "cc/shapes/capsule_conv_routing.h"
#include "cc/shapes/capsule_moments.h"
#include "cc/shapes/capsule_prediction.h"
#include "cc/shapes/capsule_routing.h"
#include "cc/shapes/high_order_conv.h"
#include "cc/shapes/inq_conv.h"
#include "cc/shapes/inq_conv_int8.h"
#include "cc/shapes/inq_decode.h"

namespace capsops {

template <typename... Ops>
struct OpList {};

using EveryOp =
    OpList<capsule_conv::ForwardOp, capsule_conv::ForwardBiasReluOp,
           capsule_conv::BackpropInputOp, capsule_conv::BackpropWeightsOp,
           capsule_conv_routing::ForwardOp, capsule_conv_routing::BackwardOp,
           capsule_moments::ForwardOp, capsule_moments::BackwardOp,
           capsule_moments::SharesOp, capsule_prediction::ForwardOp,
           capsule_prediction::BackwardOp, capsule_routing::ForwardOp,
           capsule_routing::ForwardWithSumsOp, capsule_routing::BackwardOp,
           capsule_routing::CoefficientsOp, high_order_conv::ForwardOp,
           high_order_conv::BackwardOp, inq_conv::ForwardOp, inq_conv::BackpropInputOp,
           inq_conv_int8::ForwardOp, inq_decode::DecodeOp,
           inq_capsule_routing::ForwardOp>;

}  // namespace capsops
