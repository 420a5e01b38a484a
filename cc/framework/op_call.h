// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One call of an op, determined by its shapes and attributes. For each op of
// TensorFlow, cc/shapes has a class that derives from the op at the boundary
// (cc/launch) and adds
//   kOp              its name in TensorFlow. It may differ from kName: the kName of
//                    CapsuleRoutingWithSums is CapsuleRouting, whose kernels it runs
//   kHostInputs      the names of the inputs whose values the host reads
//   kSumType         the attribute that gives the type of sums of T, or null
//   kExpensive       whether TensorFlow may hand the op to another thread, so that ops
//                    that are ready run at the same time
//   Read(ctx)        reads the attributes
//   Resolve(inputs)  checks shapes, and returns the Call
// Shape functions, OpKernels and XLA kernels are generated from these classes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

#include "cc/launch/exec.h"

namespace capsops {

// The shapes and host values of an op's inputs. Shape functions may know only some.
class OpInputs {
 public:
  virtual ~OpInputs() = default;
  virtual tensorflow::PartialTensorShape shape(int index) const = 0;
  // Returns the shape that input `index`, an int32 vector, holds; `op` and `name` are
  // for messages.
  virtual absl::StatusOr<tensorflow::PartialTensorShape> ShapeIn(
      int index, const char* op, const char* name) const = 0;
  // Returns the int32 in input `index`, or 0 if it is unknown: no shape depends on it.
  virtual absl::StatusOr<int32_t> Value(int index) const = 0;
};

template <typename Problem>
struct Call {
  Problem problem;
  std::vector<int> operands;  // indices of the inputs that the plan takes, in its order
  std::vector<tensorflow::PartialTensorShape> results = {};  // shapes of its results
  std::vector<int32_t> values = {};                          // its by-value arguments

  absl::Status AddResult(absl::Span<const int64_t> dims) {
    return tensorflow::PartialTensorShape::BuildPartialTensorShape(
        dims, &results.emplace_back());
  }
};

// Returns the call with results of these dimensions, or the status if it is an error.
template <typename Problem>
absl::StatusOr<Call<Problem>> MakeCall(
    absl::Status status, const Problem& problem, std::vector<int> operands,
    std::initializer_list<absl::Span<const int64_t>> results,
    std::vector<int32_t> values = {}) {
  Call<Problem> call{problem, std::move(operands), {}, std::move(values)};
  for (const absl::Span<const int64_t> dims : results) {
    status.Update(call.AddResult(dims));
  }
  if (!status.ok()) return status;
  return call;
}

// Defaults for ops without host inputs, sum type and attributes.
struct OpDefaults {
  static constexpr std::array<const char*, 0> kHostInputs = {};
  static constexpr const char* kSumType = nullptr;
  static constexpr bool kExpensive = true;
  template <typename Context>
  absl::Status Read(Context*) {
    return absl::OkStatus();
  }
};

// Defaults for ops whose attributes are read by the function GetAttributes() in the
// namespace of their struct.
template <typename Attributes>
struct OpWith : OpDefaults {
  template <typename Context>
  absl::Status Read(Context* ctx) {
    return GetAttributes(ctx, &attributes);
  }
  Attributes attributes;
};

// TensorFlow's DataType for each of our element types.
template <typename T>
inline constexpr tensorflow::DataType kDataType = tensorflow::DataTypeToEnum<T>::value;
template <>
inline constexpr tensorflow::DataType kDataType<Float16> = tensorflow::DT_HALF;
template <>
inline constexpr tensorflow::DataType kDataType<BFloat16> = tensorflow::DT_BFLOAT16;

}  // namespace capsops
