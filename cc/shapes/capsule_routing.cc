// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_routing.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_routing {
namespace {

using tensorflow::DataType;
using tensorflow::PartialTensorShape;

void BindOperands(ShapeRule& rule, Problem& p, const PartialTensorShape& input,
                  const PartialTensorShape& weights, const PartialTensorShape& logits) {
  rule.Bind("input", input,
            {{"batch", &p.batch}, {"in_caps", &p.in_caps}, {"in_dim", &p.in_dim}});
  rule.Bind("weights", weights,
            {{"in_caps", &p.in_caps},
             {"out_caps", &p.out_caps},
             {"out_dim", &p.out_dim},
             {"in_dim", &p.in_dim}});
  rule.Bind("logits", logits, {{"in_caps", &p.in_caps}, {"out_caps", &p.out_caps}});
}

void BindSums(ShapeRule& rule, Problem& p, const PartialTensorShape& sums) {
  rule.Bind("sums", sums,
            {{"iterations", &p.iterations},
             {"batch", &p.batch},
             {"out_caps", &p.out_caps},
             {"out_dim", &p.out_dim}});
}

// What the sums of all iterations hold is counted, and so is a little more than them,
// in 64 bits; unknown dimensions and those of zero count as 1.
void CheckSums(ShapeRule& rule, const Problem& p) {
  constexpr int64_t kMostIterations = INT32_MAX, kMostSums = int64_t{1} << 48;
  rule.Require(p.iterations <= kMostIterations, [&] {
    return absl::StrCat("iterations must be at most ", kMostIterations, ", got ",
                        p.iterations);
  });
  int64_t left = kMostSums;
  for (const int64_t size : {p.iterations, p.batch, p.out_caps, p.out_dim}) {
    left /= std::max<int64_t>(size, 1);
  }
  rule.Require(left > 0, [&] {
    return absl::StrCat(
        "iterations x batch x out_caps x out_dim must be at most 2^48, got ",
        p.iterations, " x ", p.batch, " x ", p.out_caps, " x ", p.out_dim);
  });
}

void SetEpsilon(ShapeRule& rule, Problem& p, float epsilon) {
  rule.Require(epsilon > 0, [&] {
    return absl::StrCat("epsilon must be positive, got ", epsilon, " in float32");
  });
  rule.Require(std::isfinite(epsilon), [&] {
    return absl::StrCat("epsilon must be finite, got ", epsilon, " in float32");
  });
  p.set_epsilon(epsilon);
}

}  // namespace

absl::StatusOr<Problem> Resolve(const PartialTensorShape& input,
                                const PartialTensorShape& weights,
                                const PartialTensorShape& logits, int64_t iterations,
                                float epsilon) {
  Problem p;
  ShapeRule rule("CapsuleRouting");
  BindOperands(rule, p, input, weights, logits);
  rule.Require(iterations >= 1, [&] {
    return absl::StrCat("iterations must be at least 1, got ", iterations);
  });
  p.iterations = iterations;
  CheckSums(rule, p);
  SetEpsilon(rule, p, epsilon);
  if (!rule.status().ok()) return rule.status();
  return p;
}

absl::StatusOr<Problem> ResolveGrad(const PartialTensorShape& grad,
                                    const PartialTensorShape& input,
                                    const PartialTensorShape& weights,
                                    const PartialTensorShape& logits,
                                    const PartialTensorShape& sums, float epsilon) {
  Problem p;
  ShapeRule rule("CapsuleRoutingGrad");
  rule.Bind("grad", grad,
            {{"batch", &p.batch}, {"out_caps", &p.out_caps}, {"out_dim", &p.out_dim}});
  BindOperands(rule, p, input, weights, logits);
  BindSums(rule, p, sums);
  rule.Require(p.iterations != 0, [&] {
    return absl::StrCat("sums dim 0 (iterations) must be at least 1, got ",
                        sums.DebugString());
  });
  CheckSums(rule, p);
  SetEpsilon(rule, p, epsilon);
  if (!rule.status().ok()) return rule.status();
  return p;
}

absl::StatusOr<Problem> ResolveCoefficients(const PartialTensorShape& input,
                                            const PartialTensorShape& weights,
                                            const PartialTensorShape& logits,
                                            const PartialTensorShape& sums,
                                            float epsilon) {
  Problem p;
  ShapeRule rule("CapsuleRoutingCoefficients");
  BindOperands(rule, p, input, weights, logits);
  BindSums(rule, p, sums);
  CheckSums(rule, p);
  SetEpsilon(rule, p, epsilon);
  if (!rule.status().ok()) return rule.status();
  return p;
}

absl::Status CheckSumType(const char* op, DataType type, DataType sum_type) {
  using tensorflow::DataTypeString;
  const DataType required =
      type == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  return ShapeRule(op)
      .Require(sum_type == required,
               [&] {
                 return absl::StrCat("U (the type of sums) must be ",
                                     DataTypeString(required), " where T is ",
                                     DataTypeString(type), ", got ",
                                     DataTypeString(sum_type));
               })
      .status();
}

}  // namespace capsops::capsule_routing
