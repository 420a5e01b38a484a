// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Binds tensor shapes to the named dimensions of a Problem. One rule serves
// the shape function (unknown dimensions are -1) and the kernel (all known):
// naming a dimension twice is the check that both are equal.
#ifndef CAPSOPS_CC_FRAMEWORK_SHAPE_RULE_H_
#define CAPSOPS_CC_FRAMEWORK_SHAPE_RULE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/launch/faults.h"

namespace capsops {

// One axis of a tensor: its name for messages, and the dimension it binds.
struct Axis {
  const char* name;
  int64_t* dim;
};

class ShapeRule {
 public:
  // `op` begins every message.
  explicit ShapeRule(const char* op) : op_(op) {}

  // Requires `shape` to have exactly these axes; dimensions that are still -1
  // take its values, others must equal them. An unknown rank says nothing.
  // After a failure further calls do nothing.
  ShapeRule& Bind(const char* tensor, const tensorflow::PartialTensorShape& shape,
                  absl::Span<const Axis> axes);

  // Requires what `text`, the message after the op's name, says must be. A message that
  // takes time to make is a function that returns it. The place of the call names the
  // rule to faults.h.
  template <typename Text>
  ShapeRule& Require(bool holds, const Text& text, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
    if (!status_.ok() || RuleDropped(op_, file, line) || holds) return *this;
    if constexpr (std::is_invocable_v<const Text&>) {
      Fail(text());
    } else {
      Fail(text);
    }
    return *this;
  }

  // The first failure as InvalidArgument, or OK.
  const absl::Status& status() const { return status_; }

 private:
  void Fail(absl::string_view text);

  const char* op_;
  absl::Status status_;
};

// Input `index` of an op as the shape function knows it.
tensorflow::PartialTensorShape InputShape(
    tensorflow::shape_inference::InferenceContext* ctx, int index);

// Declares output `index` to have these dimensions, -1 being unknown.
absl::Status SetOutputShape(tensorflow::shape_inference::InferenceContext* ctx,
                            int index, std::initializer_list<int64_t> dims);
absl::Status SetOutputShape(tensorflow::shape_inference::InferenceContext* ctx,
                            int index, const tensorflow::PartialTensorShape& shape);

}  // namespace capsops

#endif  // CAPSOPS_CC_FRAMEWORK_SHAPE_RULE_H_
