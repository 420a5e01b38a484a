// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Makes a CpuExec or GpuExec from TensorFlow's OpKernelContext, converts errors, and
// allocates tensors. Only this file knows where TensorFlow keeps its threads and its
// CUDA stream.
#pragma once

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "tensorflow/core/util/work_sharder.h"
#include "xla/stream_executor/stream.h"

#include "cc/launch/choice.h"
#include "cc/launch/exec.h"

namespace capsops {

// Our element type for each of TensorFlow's.
template <typename T>
struct ElementOf {
  using type = T;
};
template <>
struct ElementOf<Eigen::half> {
  using type = Float16;
};
template <>
struct ElementOf<Eigen::bfloat16> {
  using type = BFloat16;
};
template <typename T>
using Element = typename ElementOf<T>::type;

template <typename T>
const Element<T>* Data(const tensorflow::Tensor& tensor) {
  return reinterpret_cast<const Element<T>*>(tensor.flat<T>().data());
}
template <typename T>
Element<T>* Data(tensorflow::Tensor* tensor) {
  return reinterpret_cast<Element<T>*>(tensor->flat<T>().data());
}

inline absl::Status ToStatus(const LaunchError& error) {
  if (error.empty()) return absl::OkStatus();
  switch (error.fault()) {
    case Fault::kInvalidArgument:
      return absl::InvalidArgumentError(error.text());
    case Fault::kUnimplemented:
      return absl::UnimplementedError(error.text());
    case Fault::kOutOfMemory:
      return absl::ResourceExhaustedError(error.text());
    case Fault::kInternal:
      break;
  }
  return absl::InternalError(error.text());
}

// Uses TensorFlow's own thread pool, so that cores are not oversubscribed.
inline absl::Status MakeExec(tensorflow::OpKernelContext* ctx, CpuExec* exec) {
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  exec->parallel_for = [&workers](int64_t count, int64_t cost,
                                  const CpuExec::Body& body) {
    tensorflow::Shard(workers.num_threads, workers.workers, count, cost, body);
  };
  return absl::OkStatus();
}

#if TF_CAPSOPS_CUDA
inline absl::Status MakeExec(tensorflow::OpKernelContext* ctx, GpuExec* exec) {
  exec->stream = static_cast<CUstream_st*>(
      ctx->op_device_context()->stream()->platform_specific_handle().stream);
  exec->tf32 = tensorflow::tensor_float_32_execution_enabled();
  return ToStatus(DescribeDevice(&exec->device));
}
#endif

// Converts a known shape to a TensorShape. Refuses more than 2^62 bytes, because
// TensorFlow's allocators crash if rounding up the number of bytes overflows.
inline absl::Status MakeShape(const tensorflow::PartialTensorShape& known,
                              tensorflow::DataType type,
                              tensorflow::TensorShape* shape) {
  const absl::Status status =
      tensorflow::TensorShape::BuildTensorShape(known.dim_sizes(), shape);
  constexpr int64_t kMostBytes = int64_t{1} << 62;
  if (!status.ok() ||
      shape->num_elements() <= kMostBytes / tensorflow::DataTypeSize(type)) {
    return status;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("OOM when allocating tensor with shape", shape->DebugString(),
                   " and type ", tensorflow::DataTypeString(type)));
}

inline absl::Status AllocateTemporary(tensorflow::OpKernelContext* ctx,
                                      const tensorflow::PartialTensorShape& known,
                                      tensorflow::DataType type,
                                      tensorflow::Tensor* tensor) {
  tensorflow::TensorShape shape;
  const absl::Status status = MakeShape(known, type, &shape);
  return status.ok() ? ctx->allocate_temp(type, shape, tensor) : status;
}

// Allocates a kernel's workspace, aligned to 64 bytes. It may be freed as soon as the
// kernel is enqueued: whatever reuses the memory runs later on the same stream.
inline absl::Status AllocateWorkspace(tensorflow::OpKernelContext* ctx, int64_t bytes,
                                      tensorflow::Tensor* workspace) {
  if (bytes == 0) return absl::OkStatus();
  return AllocateTemporary(ctx, {bytes}, tensorflow::DT_UINT8, workspace);
}

// Allocates the op's output `index`, whose shape must be known.
inline absl::Status AllocateOutput(tensorflow::OpKernelContext* ctx, int index,
                                   const tensorflow::PartialTensorShape& known,
                                   tensorflow::Tensor** output) {
  tensorflow::TensorShape shape;
  const absl::Status status =
      MakeShape(known, ctx->expected_output_dtype(index), &shape);
  return status.ok() ? ctx->allocate_output(index, shape, output) : status;
}

}  // namespace capsops
