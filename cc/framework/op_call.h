// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One call of an op, as its shapes and attributes determine it. cc/shapes has a class
// for each op of TensorFlow, which derives from the op at the boundary (cc/launch) and
// adds
//   kOp              its name in TensorFlow; kName of CapsuleRoutingWithSums is
//                    CapsuleRouting, whose kernels it runs
//   kHostInputs      the names of inputs whose values the host reads
//   kSumType         the attribute that is the type of sums of T, or null
//   Read(ctx)        reads the attributes
//   Resolve(inputs)  checks shapes, and returns the Call
// The shape function, the OpKernels and the XLA kernels are made of these.
#ifndef CAPSOPS_CC_FRAMEWORK_OP_CALL_H_
#define CAPSOPS_CC_FRAMEWORK_OP_CALL_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace capsops {

// What can be known of an op's inputs; a shape function does not know all.
class OpInputs {
 public:
  virtual ~OpInputs() = default;
  virtual tensorflow::PartialTensorShape shape(int index) const = 0;
  // The shape that the vector of int32 in input `index` holds; `op` and `name` are for
  // messages.
  virtual absl::StatusOr<tensorflow::PartialTensorShape> ShapeIn(
      int index, const char* op, const char* name) const = 0;
  // The int32 in input `index`, or 0 where it is not known: no shape depends on it.
  virtual absl::StatusOr<int32_t> Value(int index) const = 0;
};

template <typename Problem>
struct Call {
  Problem problem;
  std::vector<int> operands;  // the inputs that the plan has pointers of, in its order
  std::vector<tensorflow::PartialTensorShape> results = {};  // what it writes, likewise
  std::vector<int32_t> values = {};                          // what it takes by value

  absl::Status AddResult(std::initializer_list<int64_t> dims) {
    return tensorflow::PartialTensorShape::BuildPartialTensorShape(
        absl::MakeConstSpan(dims.begin(), dims.size()), &results.emplace_back());
  }
};

// kHostInputs, kSumType and Read of ops that need nothing else.
struct OpDefaults {
  static constexpr std::array<const char*, 0> kHostInputs = {};
  static constexpr const char* kSumType = nullptr;
  template <typename Context>
  absl::Status Read(Context*) {
    return absl::OkStatus();
  }
};

// The same for ops whose attributes GetAttributes(), in the namespace of their struct,
// reads.
template <typename Attributes>
struct OpWith : OpDefaults {
  template <typename Context>
  absl::Status Read(Context* ctx) {
    return GetAttributes(ctx, &attributes);
  }
  Attributes attributes;
};

}  // namespace capsops

#endif  // CAPSOPS_CC_FRAMEWORK_OP_CALL_H_
