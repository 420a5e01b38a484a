// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// From TensorFlow's OpKernelContext to what launchers take. The only place
// that knows where TensorFlow keeps its threads and its CUDA stream.
#ifndef CAPSOPS_CC_FRAMEWORK_DEVICE_H_
#define CAPSOPS_CC_FRAMEWORK_DEVICE_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "tensorflow/core/util/work_sharder.h"
#include "xla/stream_executor/stream.h"

#include "cc/launch/exec.h"

namespace capsops {

// The launchers' element type for each of TensorFlow's.
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

template <typename Exec>
Exec MakeExec(tensorflow::OpKernelContext* ctx);

// TensorFlow's own thread pool, so that nothing oversubscribes.
template <>
inline CpuExec MakeExec<CpuExec>(tensorflow::OpKernelContext* ctx) {
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  return {[&workers](int64_t count, int64_t cost, const CpuExec::Body& body) {
    tensorflow::Shard(workers.num_threads, workers.workers, count, cost, body);
  }};
}

template <>
inline GpuExec MakeExec<GpuExec>(tensorflow::OpKernelContext* ctx) {
  return {static_cast<CUstream_st*>(
              ctx->op_device_context()->stream()->platform_specific_handle().stream),
          tensorflow::tensor_float_32_execution_enabled()};
}

// A launcher's working space, which lives as long as `workspace` and whatever the
// stream was given before. TensorFlow aligns it to 64 bytes at least.
inline absl::Status AllocateWorkspace(tensorflow::OpKernelContext* ctx, int64_t bytes,
                                      tensorflow::Tensor* workspace) {
  tensorflow::TensorShape shape;
  const absl::Status status =
      tensorflow::TensorShape::BuildTensorShape({bytes}, &shape);
  if (!status.ok()) return status;
  return ctx->allocate_temp(tensorflow::DT_UINT8, shape, workspace);
}

// An op's one result, of a shape that is known, and the launcher's working space.
inline absl::Status AllocateResult(tensorflow::OpKernelContext* ctx,
                                   const tensorflow::PartialTensorShape& known,
                                   int64_t workspace_bytes, tensorflow::Tensor** result,
                                   tensorflow::Tensor* workspace) {
  tensorflow::TensorShape shape;
  absl::Status status =
      tensorflow::TensorShape::BuildTensorShape(known.dim_sizes(), &shape);
  if (status.ok()) status = ctx->allocate_output(0, shape, result);
  if (status.ok()) status = AllocateWorkspace(ctx, workspace_bytes, workspace);
  return status;
}

inline absl::Status ToStatus(const LaunchError& error) {
  return error.empty() ? absl::OkStatus() : absl::InternalError(error);
}

}  // namespace capsops

#endif  // CAPSOPS_CC_FRAMEWORK_DEVICE_H_
