// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The XLA kernels of all ops. Each emits a custom call, which handlers.cc runs, except
// for InqDecode on a GPU, which emits elementwise operations.

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

#include "cc/framework/device.h"
#include "cc/framework/op_call.h"
#include "cc/framework/window.h"
#include "cc/launch/choice.h"
#include "cc/launch/op.h"
#include "cc/shapes/every_op.h"
#include "cc/xla/op_kernel.h"
#include "cc/xla/target.h"

namespace capsops {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::XlaOpKernelContext;

class CompileInputs final : public OpInputs {
 public:
  explicit CompileInputs(XlaOpKernelContext* ctx) : ctx_(ctx) {}
  PartialTensorShape shape(int index) const override {
    return PartialTensorShape(ctx_->InputXlaShape(index)->dimensions());
  }
  absl::StatusOr<PartialTensorShape> ShapeIn(int index, const char* op,
                                             const char* name) const override {
    TF_ASSIGN_OR_RETURN(const auto sizes, ctx_->ConstantInputTensor(index));
    return ShapeInSizes(op, name, sizes);
  }
  absl::StatusOr<int32_t> Value(int index) const override {
    int64_t value;
    TF_RETURN_IF_ERROR(ctx_->ConstantInputAsIntScalar(index, &value));
    return value;
  }

 private:
  XlaOpKernelContext* ctx_;
};

// The properties of a custom call that are not in Call.
struct CustomCallInfo {
  std::string target;
  std::vector<int64_t> words;               // the attribute kProblem
  std::vector<xla::PrimitiveType> results;  // the element types
  int64_t workspace = 0;                    // bytes
};

xla::Shape RowMajor(xla::PrimitiveType type, absl::Span<const int64_t> dims) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(type, dims);
}

// Adds the custom call to the XLA program, with row-major operands and results.
absl::Status EmitCustomCall(XlaOpKernelContext* ctx, const std::vector<int>& inputs,
                            const std::vector<PartialTensorShape>& results,
                            const CustomCallInfo& info) {
  std::vector<xla::XlaOp> operands;
  std::vector<xla::Shape> operand_shapes, result_shapes;
  for (const int index : inputs) {
    operands.push_back(ctx->Input(index));
    TF_ASSIGN_OR_RETURN(const auto shape, ctx->InputXlaShape(index));
    operand_shapes.push_back(RowMajor(shape.element_type(), shape.dimensions()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    result_shapes.push_back(RowMajor(info.results[i], results[i].dim_sizes()));
  }
  if (info.workspace > 0) {
    result_shapes.push_back(RowMajor(xla::U8, {info.workspace}));
  }
  const xla::XlaOp call = xla::CustomCallWithLayout(
      ctx->builder(), info.target, operands,
      xla::ShapeUtil::MakeTupleShape(result_shapes), operand_shapes,
      absl::StrCat("{", kProblem, " = array<i64: ", absl::StrJoin(info.words, ", "),
                   ">}"),
      /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
      /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  for (int i = 0; i < ctx->num_outputs(); ++i) {
    ctx->SetOutput(i, xla::GetTupleElement(call, i));
  }
  return absl::OkStatus();
}

// Returns the bytes that a plan will need in this process. A GPU plan may run with TF32
// allowed or not, so this is the larger of both sizes.
template <typename Op, typename T>
absl::Status PlanWorkspace(const typename Op::Problem& problem, const CpuExec& exec,
                           int64_t* bytes) {
  const auto plan = Op::template MakePlan<T>(exec, problem);
  *bytes = plan.workspace;
  return ToStatus(plan.error);
}
#if TF_CAPSOPS_CUDA
template <typename Op, typename T>
absl::Status PlanWorkspace(const typename Op::Problem& problem, GpuExec exec,
                           int64_t* bytes) {
  TF_RETURN_IF_ERROR(ToStatus(DescribeDevice(&exec.device)));
  exec.tf32 = tensorflow::tensor_float_32_execution_enabled();
  const auto plan = Op::template MakePlan<T>(exec, problem);
  exec.tf32 = !exec.tf32;
  *bytes = std::max(plan.workspace, Op::template MakePlan<T>(exec, problem).workspace);
  return ToStatus(plan.error);
}
#endif

// Returns the custom call's target, attribute, result types and workspace.
template <typename Op, typename T, typename Exec>
absl::StatusOr<CustomCallInfo> Prepare(const Call<typename Op::Problem>& call) {
  CustomCallInfo info;
  info.target = Target<Op, T>();
  info.words.resize(ProblemWords<typename Op::Problem>());
  std::memcpy(info.words.data(), &call.problem, sizeof(call.problem));
  info.words.insert(info.words.end(), call.values.begin(), call.values.end());
  absl::Status status = PlanWorkspace<Op, T>(call.problem, Exec(), &info.workspace);
  VisitArguments(static_cast<PlanOf<Op, T, Exec>*>(nullptr), [&](auto* argument) {
    using P = std::remove_pointer_t<decltype(argument)>;
    if constexpr (kIsResult<P>) {
      status.Update(tensorflow::DataTypeToPrimitiveType(
          kDataType<std::remove_pointer_t<P>>, &info.results.emplace_back()));
    }
  });
  if (!status.ok()) return status;
  return info;
}

// Returns InqDecode's weights by elementwise operations. XLA fuses these with the
// operations that read the weights, and launches them in less time than a custom call.
[[maybe_unused]] xla::XlaOp Decoded(XlaOpKernelContext* ctx, int64_t bits,
                                    xla::PrimitiveType type) {
  const auto number = [&](int64_t n) { return xla::ConstantR0(ctx->builder(), n); };
  const auto wide = type == xla::F64 ? xla::F64 : xla::F32;
  const auto power_of_two = [&](xla::XlaOp n) {  // as PowerOfTwoBits
    n = xla::Clamp(number(-1023), n, number(1024)) + number(1023);
    const auto power = xla::BitcastConvertType(xla::ShiftLeft(n, number(52)), xla::F64);
    return xla::ConvertElementType(power, wide);
  };
  const auto code = xla::ConvertElementType(ctx->Input(0), xla::S64);
  const auto level = xla::ShiftRightArithmetic(code - number(1), number(1));
  const auto weight = xla::Mul(power_of_two(-level), power_of_two(ctx->Input(1)), {1});
  const auto is_odd = xla::Eq(code & number(1), number(1));
  const auto is_weight = xla::And(xla::Gt(code, number(0)),
                                  xla::Le(code, number(int64_t{1} << (bits - 1))));
  return xla::ConvertElementType(
      xla::Select(is_weight, xla::Select(is_odd, weight, -weight),
                  xla::ZerosLike(weight)),
      type);
}

template <typename Op, typename Exec>
class XlaKernel final : public tensorflow::XlaOpKernel {
 public:
  explicit XlaKernel(tensorflow::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, op_.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &type_));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const auto shape = ctx->InputXlaShape(i);
      OP_REQUIRES_OK(ctx, shape.status());
      OP_REQUIRES(
          ctx, shape->is_static(),
          absl::UnimplementedError(absl::StrCat(
              Op::kName, ": XLA must know the shapes of all inputs, but that of input ",
              i, " depends on data: ", shape->ToString())));
    }
    const auto call = op_.Resolve(CompileInputs(ctx));
    OP_REQUIRES_OK(ctx, call.status());
    if constexpr (std::is_same_v<Op, inq_decode::DecodeOp> &&
                  std::is_same_v<Exec, GpuExec>) {
      xla::PrimitiveType type;
      OP_REQUIRES_OK(ctx, tensorflow::DataTypeToPrimitiveType(type_, &type));
      return ctx->SetOutput(0, Decoded(ctx, call->problem.bits, type));
    }
    absl::StatusOr<CustomCallInfo> info;
#define CAPSOPS_PREPARE(T) \
  if (type_ == kDataType<T>) info = Prepare<Op, T, Exec>(*call);
    CAPSOPS_FOR_EACH_TYPE(CAPSOPS_PREPARE)
#undef CAPSOPS_PREPARE
    OP_REQUIRES_OK(ctx, info.status());
    OP_REQUIRES_OK(ctx, EmitCustomCall(ctx, call->operands, call->results, *info));
  }

 private:
  Op op_;
  tensorflow::DataType type_;
};

template <typename Op, typename Exec>
void Register(const char* device) {
  auto builder = tensorflow::XlaOpRegistrationBuilder::Name(Op::kOp);
  builder.Device(device);
  for (const char* input : Op::kHostInputs) builder.CompileTimeConstantInput(input);
  tensorflow::XlaOpRegistrar(
      builder.Build([](tensorflow::OpKernelConstruction* ctx) -> tensorflow::OpKernel* {
        return new XlaKernel<Op, Exec>(ctx);
      }));
}

template <typename... Ops>
bool RegisterAll(OpList<Ops...>) {
  (Register<Ops, CpuExec>(tensorflow::DEVICE_CPU_XLA_JIT), ...);
#if TF_CAPSOPS_CUDA
  (Register<Ops, GpuExec>(tensorflow::DEVICE_GPU_XLA_JIT), ...);
#endif
  return true;
}

[[maybe_unused]] const bool kRegistered = RegisterAll(EveryOp());

}  // namespace
}  // namespace capsops
