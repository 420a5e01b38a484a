// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The OpKernel of an op that op_call.h describes. It looks up the cached plan for these
// shapes or makes one, allocates the results and the workspace, and runs the plan.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"

#include "cc/framework/device.h"
#include "cc/framework/op_call.h"
#include "cc/framework/window.h"
#include "cc/launch/choice.h"
#include "cc/launch/op.h"

namespace capsops {

class KernelInputs final : public OpInputs {
 public:
  explicit KernelInputs(tensorflow::OpKernelContext* ctx) : ctx_(ctx) {}
  tensorflow::PartialTensorShape shape(int index) const override {
    return ctx_->input(index).shape();
  }
  absl::StatusOr<tensorflow::PartialTensorShape> ShapeIn(
      int index, const char* op, const char* name) const override {
    return ShapeInSizes(op, name, ctx_->input(index));
  }
  absl::StatusOr<int32_t> Value(int index) const override {
    return ctx_->input(index).scalar<int32_t>()();
  }

 private:
  tensorflow::OpKernelContext* ctx_;
};

// Provides a plan's arguments (RunPlan in op.h) from an OpKernelContext.
template <typename Problem>
class KernelArguments {
 public:
  KernelArguments(const char* op, tensorflow::OpKernelContext* ctx,
                  const Call<Problem>& call)
      : op_(op), ctx_(ctx), call_(call), temporaries_(call.results.size()) {}

  template <typename P>
  P Next() {
    if constexpr (kIsOperand<P>) {
      return static_cast<P>(ctx_->input(call_.operands[operand_++]).data());
    } else if constexpr (kIsResult<P>) {
      return static_cast<P>(NextResult(kDataType<std::remove_pointer_t<P>>));
    } else {
      return call_.values[value_++];
    }
  }
  void* Workspace(int64_t bytes) {
    status_.Update(AllocateWorkspace(ctx_, bytes, &workspace_));
    return bytes > 0 ? workspace_.data() : nullptr;
  }
  const char* op() const { return op_; }
  int64_t Elements(int result) const { return call_.results[result].num_elements(); }
  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  // Allocates the next result, as a temporary if it is not an output of the op.
  void* NextResult(tensorflow::DataType type) {
    const int index = result_++;
    tensorflow::Tensor* tensor = &temporaries_[index];
    const tensorflow::PartialTensorShape& shape = call_.results[index];
    status_.Update(index < ctx_->num_outputs()
                       ? AllocateOutput(ctx_, index, shape, &tensor)
                       : AllocateTemporary(ctx_, shape, type, tensor));
    return status_.ok() ? tensor->data() : nullptr;
  }

  const char* op_;
  tensorflow::OpKernelContext* ctx_;
  const Call<Problem>& call_;
  int operand_ = 0, result_ = 0, value_ = 0;
  std::vector<tensorflow::Tensor> temporaries_;
  tensorflow::Tensor workspace_;
  absl::Status status_;
};

// OpKernel of `Op` for the element type T; `Exec` is CpuExec or GpuExec.
template <typename Op, typename Exec, typename T>
class PlannedOp : public tensorflow::OpKernel {
 public:
  explicit PlannedOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, op_.Read(ctx));
  }

  void Compute(tensorflow::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

  bool IsExpensive() override { return Op::kExpensive && OpKernel::IsExpensive(); }

 private:
  absl::Status Run(tensorflow::OpKernelContext* ctx) {
    const auto call = op_.Resolve(KernelInputs(ctx));
    if (!call.ok()) {
      // Our rules name the op. TensorFlow's message for too many elements does not.
      const bool named = absl::StrContains(call.status().message(), Op::kName);
      return named ? call.status() : WithInputShapes(ctx, call.status());
    }
    Exec exec;
    TF_RETURN_IF_ERROR(MakeExec(ctx, &exec));
    const auto plan = plans_.Find(exec, call->problem);
    if (!plan->run) return ToStatus(plan->error);
    KernelArguments arguments(Op::kName, ctx, *call);
    if (RecordsKernels()) {
      RecordKernel(Op::kName, plan->kernel, plan->workspace);
#if TF_CAPSOPS_CUDA
      if constexpr (std::is_same_v<Exec, CpuExec>) RecordPretended(call->problem);
#endif
    }
    const LaunchError error = RunPlan(arguments, *plan, exec);
    if (arguments.failed()) return WithInputShapes(ctx, arguments.status());
    const absl::Status status = ToStatus(error);
    const bool device = absl::IsInternal(status) || absl::IsResourceExhausted(status);
    return device ? WithInputShapes(ctx, status) : status;
  }

  // Adds the input shapes to an error about size, memory or a failed launch. TensorFlow
  // names only the tensor that did not fit, and launchers only their op.
  static absl::Status WithInputShapes(tensorflow::OpKernelContext* ctx,
                                      const absl::Status& status) {
    std::string shapes;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      shapes += (i > 0 ? ", " : "") + ctx->input(i).shape().DebugString();
    }
    return absl::Status(status.code(), std::string(Op::kOp) + " of inputs " + shapes +
                                           ": " + std::string(status.message()));
  }

#if TF_CAPSOPS_CUDA
  // Records the kernel that the GPU of TF_CAPSOPS_DEVICE would run, for tests on a CPU.
  static void RecordPretended(const typename Op::Problem& problem) {
    GpuExec exec;
    exec.tf32 = tensorflow::tensor_float_32_execution_enabled();
    bool pretended = false;
    const LaunchError error = PretendDevice(&exec.device, &pretended);
    if (!pretended || !error.empty()) return;
    const auto plan = Op::template MakePlan<T>(exec, problem);
    RecordKernel(std::string(Op::kName) + "@GPU", plan.run ? plan.kernel : "none",
                 plan.workspace);
  }
#endif

  Op op_;
  PlanCache<Op, T, Exec> plans_;
};

}  // namespace capsops
