// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Binds tensor shapes to the named dimensions of a Problem. The same rule serves the
// shape function (unknown dimensions are -1) and the kernel (all are known). Binding a
// dimension twice checks that both sizes are equal.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

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

// Returns the axes of `first`, followed by those of `more`.
std::vector<Axis> Joined(std::vector<Axis> first, absl::Span<const Axis> more);

// Returns the dimensions that axes have bound.
std::vector<int64_t> Sizes(absl::Span<const Axis> axes);

// Returns the rank and the axes as a message lists them: "2 [rows, columns]".
std::string Listed(absl::Span<const Axis> axes);

class ShapeRule {
 public:
  // `op` begins every message.
  explicit ShapeRule(const char* op) : op_(op) {}

  // Requires `shape` to have exactly these axes: dimensions that are still -1 take its
  // sizes, others must equal them. A shape of unknown rank binds nothing. After a
  // failure further calls do nothing.
  ShapeRule& Bind(const char* tensor, const tensorflow::PartialTensorShape& shape,
                  absl::Span<const Axis> axes);

  // Requires `holds`, or fails with the op's name and `text`, which may be a function
  // that returns the text. The caller's file and line name the rule for faults.h.
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

  // Returns the first failure as InvalidArgument, or OK.
  const absl::Status& status() const { return status_; }

 private:
  void Fail(absl::string_view text);

  const char* op_;
  absl::Status status_;
};

// Requires `epsilon` to be a positive normal number, so that squash can add it to a
// squared length.
void CheckEpsilon(ShapeRule& rule, float epsilon);

// Returns the shape of input `index` as far as the shape function knows it.
tensorflow::PartialTensorShape InputShape(
    tensorflow::shape_inference::InferenceContext* ctx, int index);

// Sets the dimensions of output `index`; -1 is unknown.
absl::Status SetOutputShape(tensorflow::shape_inference::InferenceContext* ctx,
                            int index, const tensorflow::PartialTensorShape& shape);

}  // namespace capsops
