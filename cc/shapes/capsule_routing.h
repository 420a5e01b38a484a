// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of routing by agreement are checked.
#ifndef CAPSOPS_CC_SHAPES_CAPSULE_ROUTING_H_
#define CAPSOPS_CC_SHAPES_CAPSULE_ROUTING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"

#include "cc/launch/capsule_routing.h"

namespace capsops::capsule_routing {

absl::StatusOr<Problem> Resolve(const tensorflow::PartialTensorShape& input,
                                const tensorflow::PartialTensorShape& weights,
                                const tensorflow::PartialTensorShape& logits,
                                int64_t iterations, float epsilon);

// The number of iterations is that of the sums.
absl::StatusOr<Problem> ResolveGrad(const tensorflow::PartialTensorShape& grad,
                                    const tensorflow::PartialTensorShape& input,
                                    const tensorflow::PartialTensorShape& weights,
                                    const tensorflow::PartialTensorShape& logits,
                                    const tensorflow::PartialTensorShape& sums,
                                    float epsilon);

// Likewise; here it may be none.
absl::StatusOr<Problem> ResolveCoefficients(
    const tensorflow::PartialTensorShape& input,
    const tensorflow::PartialTensorShape& weights,
    const tensorflow::PartialTensorShape& logits,
    const tensorflow::PartialTensorShape& sums, float epsilon);

// The type U that the sums of an op on T must have: `Sum` of the boundary. A kernel has
// no other, so only shape functions ask.
absl::Status CheckSumType(const char* op, tensorflow::DataType type,
                          tensorflow::DataType sum_type);

}  // namespace capsops::capsule_routing

#endif  // CAPSOPS_CC_SHAPES_CAPSULE_ROUTING_H_
