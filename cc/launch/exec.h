// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The execution context of a kernel (threads or a stream), errors, and element types,
// in plain C++, so that kernels depend on no framework.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

struct CUstream_st;  // cudaStream_t is a pointer to this

namespace capsops {

// Why a launch failed.
enum class Fault { kInternal, kInvalidArgument, kUnimplemented, kOutOfMemory };

// The outcome of a launch: empty on success, else one sentence for the user.
class LaunchError {
 public:
  LaunchError() = default;
  LaunchError(std::string text, Fault fault = Fault::kInternal)  // NOLINT: implicit
      : text_(std::move(text)), fault_(fault) {}
  LaunchError(const char* text) : text_(text) {}  // NOLINT: implicit

  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  Fault fault() const { return fault_; }

 private:
  std::string text_;
  Fault fault_ = Fault::kInternal;
};

// Returns from the function with the expression's LaunchError, unless it is empty.
#define CAPSOPS_RETURN_IF_ERROR(...) \
  if (const LaunchError error = (__VA_ARGS__); !error.empty()) return error

// A pool of CPU threads. Kernels divide their work such that the result does not depend
// on how the pool splits the range.
struct CpuExec {
  using Body = std::function<void(int64_t begin, int64_t end)>;
  // Calls `body` on disjoint ranges that together cover [0, count), and returns when
  // all calls have returned. `cost` is the work of one item in cycles.
  std::function<void(int64_t count, int64_t cost, const Body& body)> parallel_for;
};

// The properties of a GPU that plans depend on.
struct GpuDevice {
  int processors = 1;
  int shared = 48 << 10;            // bytes of shared memory that one block can use
  int processor_shared = 48 << 10;  // bytes that the blocks of a multiprocessor share
  int capability = 0;               // compute capability times 10, as in 90 for 9.0

  bool operator==(const GpuDevice& other) const {
    return processors == other.processors && shared == other.shared &&
           processor_shared == other.processor_shared && capability == other.capability;
  }
};

// A CUDA stream on the calling thread's current device. `tf32` allows TF32 for float.
struct GpuExec {
  CUstream_st* stream = nullptr;
  bool tf32 = false;
  GpuDevice device;
};

// Fills in the properties of the calling thread's current device.
LaunchError QueryDevice(GpuDevice* device);

// 16-bit floats as raw bits. CPU and CUDA code convert them by their own means.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The type in which kernels compute and accumulate elements of type T.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The element types of every op.
#define CAPSOPS_FOR_EACH_TYPE(DO) DO(float) DO(double) DO(Float16) DO(BFloat16)

// Declares an op's planner, which returns PlanOf<Exec, T>.
#define CAPSOPS_DECLARE_PLANNER(Planner, PlanOf, Exec) \
  template <typename T>                                \
  PlanOf<Exec, T> Planner(const Exec& exec, const Problem& problem);

// Declares a kernel path's planners of an op and of its gradient.
#define CAPSOPS_DECLARE_PATH(path)                             \
  namespace path {                                             \
  CAPSOPS_DECLARE_PLANNER(PlanForward, ForwardPlan, GpuExec)   \
  CAPSOPS_DECLARE_PLANNER(PlanBackward, BackwardPlan, GpuExec) \
  }

// Instantiates an op's planner, which returns PlanOf<Exec, T>, for every type.
#define CAPSOPS_INSTANTIATE_PLANNER(Planner, PlanOf, Exec)                      \
  template PlanOf<Exec, float> Planner<float>(const Exec&, const Problem&);     \
  template PlanOf<Exec, double> Planner<double>(const Exec&, const Problem&);   \
  template PlanOf<Exec, Float16> Planner<Float16>(const Exec&, const Problem&); \
  template PlanOf<Exec, BFloat16> Planner<BFloat16>(const Exec&, const Problem&);

// Instantiates the planners of an op and of its gradient.
#define CAPSOPS_INSTANTIATE_PATH(Exec)                        \
  CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, Exec) \
  CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, Exec)

}  // namespace capsops
