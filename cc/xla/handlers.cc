// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The handlers that XLA calls to run an op, one for each op, element type and platform.
// A handler finds the plan in a cache or makes it, and runs it on the buffers of the
// call. On a GPU it only enqueues work, so XLA may record the call in a CUDA graph; the
// handler then runs once, during the recording, and its choice of kernel is final.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "xla/ffi/api/ffi.h"

#include "cc/launch/choice.h"
#include "cc/launch/op.h"
#include "cc/xla/target.h"

namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();  // from libtensorflow_cc
}  // namespace xla::ffi

namespace capsops {
namespace {

namespace ffi = ::xla::ffi;

ffi::Error ToError(const LaunchError& error) {
  if (error.empty()) return ffi::Error::Success();
  switch (error.fault()) {
    case Fault::kInvalidArgument:
      return {ffi::ErrorCode::kInvalidArgument, error.text()};
    case Fault::kUnimplemented:
      return {ffi::ErrorCode::kUnimplemented, error.text()};
    case Fault::kOutOfMemory:
      return {ffi::ErrorCode::kResourceExhausted, error.text()};
    case Fault::kInternal:
      break;
  }
  return {ffi::ErrorCode::kInternal, error.text()};
}

// Provides a plan's arguments (RunPlan in op.h) from the buffers of a call.
class CallArguments {
 public:
  CallArguments(const char* op, ffi::RemainingArgs operands, ffi::RemainingRets results,
                const int64_t* values)
      : op_(op), operands_(operands), results_(results), values_(values) {}

  template <typename P>
  P Next() {
    if constexpr (kIsOperand<P>) {
      return static_cast<P>(Data(operands_.get<ffi::AnyBuffer>(operand_++)));
    } else if constexpr (kIsResult<P>) {
      return static_cast<P>(Data(results_.get<ffi::AnyBuffer>(result_++)));
    } else {
      return *values_++;
    }
  }
  void* Workspace(int64_t bytes) {
    if (bytes == 0) return nullptr;
    auto buffer = results_.get<ffi::AnyBuffer>(result_);
    const int64_t planned =
        buffer.has_value() ? static_cast<int64_t>((*buffer)->size_bytes()) : 0;
    if (planned < bytes) {
      error_ = std::string(op_) + ": the kernel needs " + std::to_string(bytes) +
               " bytes of workspace, but was compiled with " + std::to_string(planned) +
               ": compile it on the same device, with the same TF_CAPSOPS_KERNEL and "
               "TF_CAPSOPS_DEVICE";
      return nullptr;
    }
    return (*buffer)->untyped_data();
  }
  const char* op() const { return op_; }
  int64_t Elements(int result) const {
    auto buffer = results_.get<ffi::AnyBuffer>(result);
    return buffer.has_value() ? (*buffer)->element_count() : 0;
  }
  bool failed() const { return !error_.empty(); }
  const LaunchError& error() const { return error_; }

  // Adds the input shapes to an error about memory or a failed launch.
  LaunchError WithInputShapes(const LaunchError& error) const {
    if (error.empty() ||
        (error.fault() != Fault::kOutOfMemory && error.fault() != Fault::kInternal)) {
      return error;
    }
    std::string shapes;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const auto buffer = operands_.get<ffi::AnyBuffer>(i);
      if (!buffer.has_value()) continue;
      std::string dims;
      for (const int64_t dim : buffer->dimensions()) {
        dims += (dims.empty() ? "" : ",") + std::to_string(dim);
      }
      shapes += (shapes.empty() ? "[" : ", [") + dims + "]";
    }
    return {std::string(op_) + " of inputs " + shapes + ": " + error.text(),
            error.fault()};
  }

 private:
  void* Data(const ffi::ErrorOr<ffi::AnyBuffer>& buffer) {
    if (buffer.has_value()) return buffer->untyped_data();
    error_ = buffer.error().message();
    return nullptr;
  }
  void* Data(ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> buffer) {
    if (buffer.has_value()) return (*buffer)->untyped_data();
    error_ = buffer.error().message();
    return nullptr;
  }

  const char* op_;
  ffi::RemainingArgs operands_;
  ffi::RemainingRets results_;
  const int64_t* values_;
  int operand_ = 0, result_ = 0;
  LaunchError error_;
};

// Decodes the Problem from `words`, and runs its plan on the buffers.
template <typename Op, typename T, typename Exec>
ffi::Error RunCall(const Exec& exec, ffi::Span<const int64_t> words,
                   ffi::RemainingArgs operands, ffi::RemainingRets results) {
  // Never freed, because threads may run calls until the process ends.
  static auto& plans = *new PlanCache<Op, T, Exec>;
  constexpr size_t kWords = ProblemWords<typename Op::Problem>();
  size_t values = 0;
  VisitArguments(static_cast<PlanOf<Op, T, Exec>*>(nullptr), [&](auto* argument) {
    using P = std::remove_pointer_t<decltype(argument)>;
    values += !kIsOperand<P> && !kIsResult<P>;
  });
  if (words.size() != kWords + values) {
    return {ffi::ErrorCode::kInternal,
            std::string(Op::kName) + ": another version of tf_capsops compiled this"};
  }
  typename Op::Problem problem;
  std::memcpy(static_cast<void*>(&problem), words.begin(), sizeof(problem));
  const auto plan = plans.Find(exec, problem);
  if (!plan->run) return ToError(plan->error);
  if (RecordsKernels()) RecordKernel(Op::kName, plan->kernel, plan->workspace);
  CallArguments arguments(Op::kName, operands, results, words.begin() + kWords);
  const LaunchError error = RunPlan(arguments, *plan, exec);
  return ToError(arguments.failed() ? arguments.error()
                                    : arguments.WithInputShapes(error));
}

// Runs `body` on blocks of [0, count) in XLA's threads and in this one. Each thread
// takes the next free block, and this thread waits only for blocks that others have
// started, so it makes progress even if all other threads are busy.
void ParallelFor(ffi::ThreadPool& pool, int64_t count, int64_t cost,
                 const CpuExec::Body& body) {
  constexpr int64_t kLeastCycles = 10000;  // minimum work of a block, in cycles
  constexpr int64_t kBlocksPerThread = 4;
  const double worthwhile = static_cast<double>(count) * cost / kLeastCycles;
  const int64_t most = std::min(count, pool.num_threads() * kBlocksPerThread);
  const int64_t blocks = worthwhile < most ? worthwhile : most;
  if (blocks <= 1) {
    if (count > 0) body(0, count);
    return;
  }
  struct State {
    std::atomic<int64_t> next = 0;
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable all_done;
  };
  const auto state = std::make_shared<State>();
  // A thread that starts too late finds no block, and touches only the shared state.
  const auto work = [state, count, blocks, &body] {
    for (int64_t b; (b = state->next++) < blocks;) {
      body(count * b / blocks, count * (b + 1) / blocks);
      const std::lock_guard<std::mutex> lock(state->mutex);
      if (++state->done == blocks) state->all_done.notify_one();
    }
  };
  for (int64_t t = 1; t < std::min(pool.num_threads(), blocks); ++t) {
    pool.Schedule(std::function<void()>(work));
  }
  work();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->done == blocks; });
}

template <typename Op, typename T>
ffi::Error RunOnHost(ffi::ThreadPool pool, ffi::Span<const int64_t> words,
                     ffi::RemainingArgs operands, ffi::RemainingRets results) {
  CpuExec exec;
  exec.parallel_for = [&pool](int64_t count, int64_t cost, const CpuExec::Body& body) {
    ParallelFor(pool, count, cost, body);
  };
  return RunCall<Op, T>(exec, words, operands, results);
}

template <typename Op, typename T>
XLA_FFI_Error* HandleOnHost(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::ThreadPool>()
                                   .Attr<ffi::Span<const int64_t>>(kProblem)
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .To(RunOnHost<Op, T>)
                                   .release();
  return handler->Call(frame);
}

#if TF_CAPSOPS_CUDA
constexpr auto kTraits = ffi::Traits::kCmdBufferCompatible;

template <typename Op, typename T>
ffi::Error RunOnGpu(CUstream_st* stream, ffi::Span<const int64_t> words,
                    ffi::RemainingArgs operands, ffi::RemainingRets results) {
  GpuExec exec;
  exec.stream = stream;
  exec.tf32 = tensorflow::tensor_float_32_execution_enabled();
  const LaunchError error = DescribeDevice(&exec.device);
  return error.empty() ? RunCall<Op, T>(exec, words, operands, results)
                       : ToError(error);
}

template <typename Op, typename T>
XLA_FFI_Error* HandleOnGpu(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::PlatformStream<CUstream_st*>>()
                                   .Attr<ffi::Span<const int64_t>>(kProblem)
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .To(RunOnGpu<Op, T>, {kTraits})
                                   .release();
  return handler->Call(frame);
}
#endif

template <typename Op, typename T>
void Register() {
  // Registration fails if another copy of this library has already registered its
  // handlers, which then serve both.
  const XLA_FFI_Api* const api = ffi::GetXlaFfiApi();
  ffi::Ffi::RegisterStaticHandler(api, Target<Op, T>(), "Host", HandleOnHost<Op, T>);
#if TF_CAPSOPS_CUDA
  ffi::Ffi::RegisterStaticHandler(api, Target<Op, T>(), "CUDA", HandleOnGpu<Op, T>,
                                  static_cast<XLA_FFI_Handler_Traits>(kTraits));
#endif
}

template <typename... Ops>
bool RegisterAll() {
#define CAPSOPS_REGISTER(T) (Register<Ops, T>(), ...);
  CAPSOPS_FOR_EACH_TYPE(CAPSOPS_REGISTER)
#undef CAPSOPS_REGISTER
  return true;
}

[[maybe_unused]] const bool kRegistered = RegisterAll<
    capsule_conv::Forward, capsule_conv::ForwardBiasRelu, capsule_conv::BackpropInput,
    capsule_conv::BackpropWeights, capsule_conv_routing::Forward,
    capsule_conv_routing::Backward, capsule_moments::Forward, capsule_moments::Backward,
    capsule_moments::Shares, capsule_prediction::Forward, capsule_prediction::Backward,
    capsule_routing::Forward, capsule_routing::Backward, capsule_routing::Coefficients,
    high_order_conv::Forward, high_order_conv::Backward, inq_conv::Forward,
    inq_conv::BackpropInput, inq_conv_int8::Forward, inq_decode::Decode,
    inq_capsule_routing::Forward>();

}  // namespace
}  // namespace capsops
