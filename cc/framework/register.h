// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers an OpKernel for every element type on every device.
#ifndef CAPSOPS_CC_FRAMEWORK_REGISTER_H_
#define CAPSOPS_CC_FRAMEWORK_REGISTER_H_

#include <initializer_list>
#include <type_traits>

#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

#include "cc/launch/exec.h"

namespace capsops {

// The type in which numbers of T are added up.
template <typename T>
using SumType = std::conditional_t<std::is_same_v<T, double>, double, float>;

// At namespace scope: static const RegisterKernels<CapsuleConvOp> kConv("CapsuleConv");
template <template <typename Exec, typename T> class Kernel>
class RegisterKernels {
 public:
  struct Options {
    std::initializer_list<const char*> host_memory = {};  // inputs read by the host
    const char* sum_type = nullptr;  // the attribute that must be SumType<T>
  };

  explicit RegisterKernels(const char* op) : RegisterKernels(op, Options{}) {}
  RegisterKernels(const char* op, const Options& options) {
    Register<CpuExec>(op, tensorflow::DEVICE_CPU, options);
#if TF_CAPSOPS_CUDA
    Register<GpuExec>(op, tensorflow::DEVICE_GPU, options);
#endif
  }

 private:
  template <typename Exec>
  void Register(const char* op, const char* device, const Options& options) {
    RegisterOne<Exec, float>(op, device, options);
    RegisterOne<Exec, double>(op, device, options);
    RegisterOne<Exec, Eigen::half>(op, device, options);
    RegisterOne<Exec, Eigen::bfloat16>(op, device, options);
  }

  template <typename Exec, typename T>
  void RegisterOne(const char* op, const char* device, const Options& options) {
    tensorflow::KernelDefBuilder builder(op);
    builder.Device(device).TypeConstraint<T>("T");
    for (const char* input : options.host_memory) builder.HostMemory(input);
    if (options.sum_type != nullptr) {
      builder.TypeConstraint<SumType<T>>(options.sum_type);
    }
    tensorflow::kernel_factory::OpKernelRegistrar(
        builder.Build(), op,
        [](tensorflow::OpKernelConstruction* ctx) -> tensorflow::OpKernel* {
          return new Kernel<Exec, T>(ctx);
        });
  }
};

}  // namespace capsops

#endif  // CAPSOPS_CC_FRAMEWORK_REGISTER_H_
