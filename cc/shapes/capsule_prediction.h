// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes of capsule prediction are checked.
#ifndef CAPSOPS_CC_SHAPES_CAPSULE_PREDICTION_H_
#define CAPSOPS_CC_SHAPES_CAPSULE_PREDICTION_H_

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/launch/capsule_prediction.h"

namespace capsops::capsule_prediction {

absl::StatusOr<Problem> Resolve(const tensorflow::PartialTensorShape& input,
                                const tensorflow::PartialTensorShape& weights);

absl::StatusOr<Problem> ResolveGrad(const tensorflow::PartialTensorShape& grad,
                                    const tensorflow::PartialTensorShape& input,
                                    const tensorflow::PartialTensorShape& weights);

}  // namespace capsops::capsule_prediction

#endif  // CAPSOPS_CC_SHAPES_CAPSULE_PREDICTION_H_
