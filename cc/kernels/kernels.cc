// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers the OpKernels of all ops for every element type and device.

#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

#include "cc/framework/planned_op.h"
#include "cc/shapes/every_op.h"

namespace capsops {
namespace {

template <typename Op, typename Exec, typename T>
void RegisterKernel(const char* device) {
  tensorflow::KernelDefBuilder builder(Op::kOp);
  builder.Device(device).TypeConstraint("T", kDataType<T>);
  for (const char* input : Op::kHostInputs) builder.HostMemory(input);
  if (Op::kSumType != nullptr) {
    builder.TypeConstraint(Op::kSumType, kDataType<Accumulator<T>>);
  }
  tensorflow::kernel_factory::OpKernelRegistrar(
      builder.Build(), Op::kOp,
      [](tensorflow::OpKernelConstruction* ctx) -> tensorflow::OpKernel* {
        return new PlannedOp<Op, Exec, T>(ctx);
      });
}

template <typename Op, typename Exec>
void RegisterKernels(const char* device) {
#define CAPSOPS_REGISTER(T) RegisterKernel<Op, Exec, T>(device);
  CAPSOPS_FOR_EACH_TYPE(CAPSOPS_REGISTER)
#undef CAPSOPS_REGISTER
}

template <typename... Ops>
bool Register(OpList<Ops...>) {
  (RegisterKernels<Ops, CpuExec>(tensorflow::DEVICE_CPU), ...);
#if TF_CAPSOPS_CUDA
  (RegisterKernels<Ops, GpuExec>(tensorflow::DEVICE_GPU), ...);
#endif
  return true;
}

[[maybe_unused]] const bool kRegistered = Register(EveryOp());

}  // namespace
}  // namespace capsops
