// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_routing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_routing {
namespace {

using tensorflow::PartialTensorShape;

void BindInput(ShapeRule& rule, Problem& p, const PartialTensorShape& input) {
  rule.Bind("input", input,
            {{"batch", &p.batch}, {"in_caps", &p.in_caps}, {"in_dim", &p.in_dim}});
}

void BindWeights(ShapeRule& rule, Problem& p, const PartialTensorShape& weights,
                 const char* name = "weights") {
  rule.Bind(name, weights,
            {{"in_caps", &p.in_caps},
             {"out_caps", &p.out_caps},
             {"out_dim", &p.out_dim},
             {"in_dim", &p.in_dim}});
}

void BindLogits(ShapeRule& rule, Problem& p, const PartialTensorShape& logits) {
  rule.Bind("logits", logits, {{"in_caps", &p.in_caps}, {"out_caps", &p.out_caps}});
}

// Binds input, weights and logits, which are the inputs `first` to `first` + 2.
void BindOperands(ShapeRule& rule, Problem& p, const OpInputs& inputs, int first) {
  BindInput(rule, p, inputs.shape(first));
  BindWeights(rule, p, inputs.shape(first + 1));
  BindLogits(rule, p, inputs.shape(first + 2));
}

void BindSums(ShapeRule& rule, Problem& p, const PartialTensorShape& sums) {
  rule.Bind("sums", sums,
            {{"iterations", &p.iterations},
             {"batch", &p.batch},
             {"out_caps", &p.out_caps},
             {"out_dim", &p.out_dim}});
}

// Requires that the size of the sums fits in 64 bits, with room to spare. Unknown
// dimensions and dimensions of 0 count as 1.
void CheckSums(ShapeRule& rule, const Problem& p,
               const char* iterations = "sums dim 0 (iterations)") {
  constexpr int64_t kMostIterations = INT32_MAX, kMostSums = int64_t{1} << 48;
  rule.Require(p.iterations <= kMostIterations, [&] {
    return absl::StrCat(iterations, " must be at most ", kMostIterations, ", got ",
                        p.iterations);
  });
  int64_t left = kMostSums;
  for (const int64_t size : {p.iterations, p.batch, p.out_caps, p.out_dim}) {
    left /= std::max<int64_t>(size, 1);
  }
  rule.Require(left > 0, [&] {
    return absl::StrCat(
        "sums of iterations x batch x out_caps x out_dim must be at most 2^48, got ",
        p.iterations, " x ", p.batch, " x ", p.out_caps, " x ", p.out_dim);
  });
}

void SetEpsilon(ShapeRule& rule, Problem& p, float epsilon) {
  CheckEpsilon(rule, epsilon);
  p.set_epsilon(epsilon);
}

}  // namespace

absl::StatusOr<Call<Problem>> ForwardWithSumsOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  BindOperands(rule, p, inputs, 0);
  p.iterations = iterations;
  CheckSums(rule, p, "iterations");
  SetEpsilon(rule, p, epsilon);
  return MakeCall(rule.status(), p, {0, 1, 2},
                  {{p.batch, p.out_caps, p.out_dim},
                   {p.iterations, p.batch, p.out_caps, p.out_dim}});
}

absl::StatusOr<Call<Problem>> BackwardOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  rule.Bind("grad", inputs.shape(0),
            {{"batch", &p.batch}, {"out_caps", &p.out_caps}, {"out_dim", &p.out_dim}});
  BindOperands(rule, p, inputs, 1);
  BindSums(rule, p, inputs.shape(4));
  rule.Require(p.iterations != 0, [&] {
    return absl::StrCat("sums dim 0 (iterations) must be at least 1, got ",
                        inputs.shape(4).DebugString());
  });
  CheckSums(rule, p);
  SetEpsilon(rule, p, epsilon);
  return MakeCall(rule.status(), p, {0, 1, 2, 3, 4},
                  {{p.batch, p.in_caps, p.in_dim},
                   {p.in_caps, p.out_caps, p.out_dim, p.in_dim},
                   {p.in_caps, p.out_caps}});
}

absl::StatusOr<Call<Problem>> CoefficientsOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  BindOperands(rule, p, inputs, 0);
  BindSums(rule, p, inputs.shape(3));
  CheckSums(rule, p);
  SetEpsilon(rule, p, epsilon);
  return MakeCall(rule.status(), p, {0, 1, 2, 3}, {{p.batch, p.in_caps, p.out_caps}});
}

}  // namespace capsops::capsule_routing

namespace capsops::inq_capsule_routing {

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  using namespace capsule_routing;
  Problem p;
  ShapeRule rule(kName);
  rule.Require(bits >= 2 && bits <= 8,
               [&] { return absl::StrCat("bits must be from 2 to 8, got ", bits); });
  p.bits = bits;
  BindInput(rule, p, inputs.shape(0));
  BindWeights(rule, p, inputs.shape(1), "codes");
  rule.Bind("top_exponent", inputs.shape(2), {});
  BindLogits(rule, p, inputs.shape(3));
  p.iterations = iterations;
  CheckSums(rule, p, "iterations");
  SetEpsilon(rule, p, epsilon);
  return MakeCall(rule.status(), p, {0, 1, 2, 3},
                  {{p.batch, p.out_caps, p.out_dim},
                   {p.iterations, p.batch, p.out_caps, p.out_dim}});
}

}  // namespace capsops::inq_capsule_routing
