// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// An op on a problem: a GPU plan with its operands, and the expected results. These
// come from the double-precision CPU kernels, which share no code with the GPU kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/sanitizers/problems.h"

namespace capsops {

// A type's largest number, and its smallest one with full precision.
struct Range {
  double most, least;
};
inline Range RangeOf(double) { return {1.7e308, 2.3e-308}; }
inline Range RangeOf(float) { return {3.4e38, 1.2e-38}; }
inline Range RangeOf(Float16) { return {65504, 6.2e-5}; }
inline Range RangeOf(BFloat16) { return {3.38e38, 1.2e-38}; }
inline Range RangeOf(uint8_t) { return {255, 0}; }
inline Range RangeOf(int64_t) { return {9.2e18, 0}; }

inline double Widen(float x) { return x; }
inline double Widen(double x) { return x; }
inline double Widen(Float16 x) { return __half2float(__half(__half_raw{x.bits})); }
inline double Widen(BFloat16 x) {
  return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{x.bits}));
}
inline double Widen(uint8_t x) { return x; }
inline double Widen(int64_t x) { return x; }

template <typename T>
double WidenAt(const void* data, int64_t i) {
  return Widen(static_cast<const T*>(data)[i]);
}

template <typename T>
void DrawAll(Source& draw, void* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) draw.Draw(static_cast<T*>(data) + i);
}

// A tensor of a call.
struct Tensor {
  bool operand;
  int64_t count, element;  // number of elements, and bytes per element
  double (*widen)(const void* data, int64_t i);
  void (*draw)(Source& draw, void* data, int64_t count);
  Range range;
  int shift;      // the shift of an operand (ShiftOf)
  Bytes numbers;  // contents of an operand

  int64_t bytes() const { return count * element; }
  void Draw(Source& source) {
    numbers.resize(bytes());
    source.shift = shift;
    draw(source, numbers.data(), count);
    source.shift = 0;
  }
};

using Values = std::vector<std::vector<double>>;  // one vector per result

struct Call {
  std::vector<int64_t> problem;
  int64_t workspace = 0;  // bytes
  std::vector<Tensor> tensors;
  int32_t top_exponent = kTopExponent;
  // Runs the plan on pointers to the call's tensors.
  std::function<LaunchError(const Call&, const GpuExec&, const std::vector<void*>&,
                            void* workspace)>
      run;
  // Returns the CPU's results, or its results for the operands' magnitudes.
  std::function<Values(const Call&, bool magnitudes)> reference;
};

// Supplies RunPlan with the arguments of a GPU plan.
struct OnGpu {
  template <typename P>
  P Next() {
    if constexpr (std::is_pointer_v<P>) {
      return static_cast<P>(pointers[next++]);
    } else {
      return top_exponent;
    }
  }
  void* Workspace(int64_t) const { return workspace; }
  bool failed() const { return false; }

  int32_t top_exponent;
  const std::vector<void*>& pointers;
  void* workspace;
  size_t next = 0;
};

// Returns the magnitude of an operand, or the code of a weight's magnitude. Exponents
// do not change.
inline double Magnitude(double x) { return std::abs(x); }
inline int64_t Magnitude(int64_t exponent) { return exponent; }
inline uint8_t Magnitude(uint8_t code) {
  return code == 0 ? 0 : (code - 1) / 2 * 2 + 1;
}

// Supplies RunPlan with the arguments of a CPU plan in double precision.
struct OnCpu {
  template <typename P>
  P Next() {
    if constexpr (std::is_pointer_v<P>) {
      using N = std::remove_const_t<std::remove_pointer_t<P>>;
      const Tensor& tensor = call.tensors[all.size()];
      Bytes& bytes = all.emplace_back(tensor.count * sizeof(N));
      N* const data = reinterpret_cast<N*>(bytes.data());
      for (int64_t i = 0; tensor.operand && i < tensor.count; ++i) {
        const N number = static_cast<N>(tensor.widen(tensor.numbers.data(), i));
        data[i] = magnitudes ? Magnitude(number) : number;
      }
      return data;
    } else {
      return call.top_exponent;
    }
  }
  void* Workspace(int64_t bytes) {
    scratch.resize(bytes + 64);
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    return scratch.data() + (64 - address % 64) % 64;
  }
  bool failed() const { return false; }

  const Call& call;
  bool magnitudes;
  std::vector<Bytes> all;
  Bytes scratch;
};

// Returns the results of the CPU in double precision.
template <typename Op>
Values Reference(const typename Op::Problem& problem, const Call& call,
                 bool magnitudes) {
  const CpuExec exec{
      [](int64_t count, int64_t, const CpuExec::Body& body) { body(0, count); }};
  const auto plan = Op::template MakePlan<double>(exec, problem);
  OnCpu source{call, magnitudes, {}, {}};
  const LaunchError error = RunPlan(source, plan, exec);
  if (!error.empty()) return {};
  Values values;
  for (size_t t = 0; t < call.tensors.size(); ++t) {
    if (call.tensors[t].operand) continue;
    const double* const data = reinterpret_cast<const double*>(source.all[t].data());
    values.emplace_back(data, data + call.tensors[t].count);
  }
  return values;
}

// Plans an op on a problem, and describes its tensors without filling them. Returns the
// plan's error, if any.
template <typename Op, typename T>
LaunchError MakeCall(const GpuExec& exec, const typename Op::Problem& problem,
                     const Counts& counts, Call* call) {
  const auto plan = Op::template MakePlan<T>(exec, problem);
  if (!plan.run) return plan.error;
  static_assert(sizeof(problem) % sizeof(int64_t) == 0);
  call->problem.resize(sizeof(problem) / sizeof(int64_t));
  std::memcpy(call->problem.data(), &problem, sizeof(problem));
  call->workspace = plan.workspace;
  VisitArguments(&plan, [&](auto* argument) {
    using P = std::remove_pointer_t<decltype(argument)>;
    if constexpr (std::is_pointer_v<P>) {
      using N = std::remove_const_t<std::remove_pointer_t<P>>;
      const size_t place = call->tensors.size();
      const int64_t count = counts[place];
      call->tensors.push_back({kIsOperand<P>,
                               count,
                               int64_t{sizeof(N)},
                               WidenAt<N>,
                               DrawAll<N>,
                               RangeOf(N()),
                               ShiftOf(Op(), problem, place),
                               {}});
    }
  });
  call->run = [plan](const Call& call, const GpuExec& exec,
                     const std::vector<void*>& pointers, void* workspace) {
    OnGpu source{call.top_exponent, pointers, workspace};
    return RunPlan(source, plan, exec);
  };
  call->reference = [problem](const Call& call, bool magnitudes) {
    return Reference<Op>(problem, call, magnitudes);
  };
  return {};
}

}  // namespace capsops
