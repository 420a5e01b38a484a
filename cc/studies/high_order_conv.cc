// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers cuda/studies/high_order_conv.h as ops of the studies' library. Their
// weights are HighOrderConv's NCHW filters, transposed. Shapes are checked by
// HighOrderConv's own rule, then by the study's kernels.
#include "cuda/studies/high_order_conv.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "cc/shapes/high_order_conv.h"
#include "cc/studies/study.h"

namespace capsops::studies::high_order_conv {
namespace {

// Returns the shape of the filters from the shape of the transposed weights,
// [positions, batch, 1, height, width].
absl::StatusOr<PartialTensorShape> FiltersOf(const char* op,
                                             const PartialTensorShape& weights) {
  if (weights.unknown_rank()) return weights;
  int64_t positions = -1, batch = -1, shared = 1, height = -1, width = -1;
  const absl::Status status = ShapeRule(op)
                                  .Bind("weights", weights,
                                        {{"kernel_positions", &positions},
                                         {"batch", &batch},
                                         {"channels that differ", &shared},
                                         {"height", &height},
                                         {"width", &width}})
                                  .status();
  if (!status.ok()) return status;
  PartialTensorShape filters;
  TF_RETURN_IF_ERROR(PartialTensorShape::BuildPartialTensorShape(
      std::vector<int64_t>{batch, positions, height, width}, &filters));
  return filters;
}

// Base class of both ops.
struct StudyOp : OpBase<Problem>, OpDefaults {
  // Sets HighOrderConv's attributes; these ops have only kernel_size.
  template <typename Context>
  absl::Status Read(Context* ctx) {
    attributes.dilations = {1, 1};
    attributes.data_format = "NCHW";
    return ctx->GetAttr("kernel_size", &attributes.kernel_size);
  }

  // Checks the shapes by HighOrderConv's rule, and refuses a problem that the scheme
  // does not support. Unknown dimensions (-1) pass.
  absl::StatusOr<Problem> ResolveAll(
      const char* op,
      std::initializer_list<std::pair<const char*, PartialTensorShape>> images,
      const PartialTensorShape& filters) const {
    TF_ASSIGN_OR_RETURN(const Problem problem,
                        capsops::high_order_conv::Resolve("HighOrderConv", images,
                                                          filters, attributes));
    return ErrorIf<Problem>(Unsupported(problem), op, problem);
  }

  capsops::high_order_conv::Attributes attributes;
};

struct ForwardOp : StudyOp {
  static constexpr const char *kName = "HighOrderConvStudy", *kOp = kName;

  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const {
    TF_ASSIGN_OR_RETURN(const auto filters, FiltersOf(kName, inputs.shape(1)));
    TF_ASSIGN_OR_RETURN(const auto p,
                        ResolveAll(kName, {{"input", inputs.shape(0)}}, filters));
    return MakeCall(absl::OkStatus(), p, {0, 1},
                    {{p.batch, p.channels, p.height, p.width}});
  }
  template <typename T, typename Exec>
  static auto MakePlan(const Exec&, const Problem& p) {
    return Plan<Exec, const T*, const T*, T*>::Make(
        0, [p](const Exec& exec, const T* input, const T* weights, T* output, void*) {
          return Forward(exec, p, input, weights, output);
        });
  }
};

struct BackwardOp : StudyOp {
  static constexpr const char *kName = "HighOrderConvStudyGrad", *kOp = kName;

  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const {
    TF_ASSIGN_OR_RETURN(const auto filters, FiltersOf(kName, inputs.shape(2)));
    TF_ASSIGN_OR_RETURN(
        const auto p,
        ResolveAll(kName, {{"grad", inputs.shape(0)}, {"input", inputs.shape(1)}},
                   filters));
    return MakeCall(
        absl::OkStatus(), p, {0, 1, 2},
        {{p.batch, p.channels, p.height, p.width},
         {p.kernel_height * p.kernel_width, p.batch, 1, p.height, p.width}});
  }
  template <typename T, typename Exec>
  static auto MakePlan(const Exec&, const Problem& p) {
    return Plan<Exec, const T*, const T*, const T*, T*, T*>::Make(
        0, [p](const Exec& exec, const T* grad, const T* input, const T* weights,
               T* grad_input, T* grad_weights, void*) {
          return Backward(exec, p, grad, input, weights, grad_input, grad_weights);
        });
  }
};

REGISTER_OP("HighOrderConvStudy")
    .Input("input: float")
    .Input("weights: float")
    .Output("output: float")
    .Attr("kernel_size: list(int)")
    .SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
HighOrderConv as Simeng and Zhejin, "PyTorch Extension", compute it in CUDA, on a GPU.

input: Images, [batch, channels, height, width]; width is at most 1024.
weights: A filter for each pixel, [kernel_height * kernel_width, batch, 1, height, width].
output: Shaped like input.
kernel_size: Rows and columns of a filter, two odd numbers.
)doc");

REGISTER_OP("HighOrderConvStudyGrad")
    .Input("grad: float")
    .Input("input: float")
    .Input("weights: float")
    .Output("grad_input: float")
    .Output("grad_weights: float")
    .Attr("kernel_size: list(int)")
    .SetShapeFn(InferShapes<BackwardOp>)
    .Doc(R"doc(
Both gradients of HighOrderConvStudy, in one kernel as there.

grad: Gradient of the loss in the output, shaped like input.
input: As given to HighOrderConvStudy.
weights: As given to HighOrderConvStudy.
grad_input: Shaped like input.
grad_weights: Shaped like weights.
kernel_size: As given to HighOrderConvStudy.
)doc");

REGISTER_KERNEL_BUILDER(Name(ForwardOp::kOp).Device(tensorflow::DEVICE_GPU),
                        PlannedOp<ForwardOp, GpuExec, float>);
REGISTER_KERNEL_BUILDER(Name(BackwardOp::kOp).Device(tensorflow::DEVICE_GPU),
                        PlannedOp<BackwardOp, GpuExec, float>);

}  // namespace
}  // namespace capsops::studies::high_order_conv
