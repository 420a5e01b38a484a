// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Injects faults, to test the tests. Only the library of `make faults` contains them.
// The variable TF_CAPSOPS_FAULT, read at every call, names one:
//   spoil CapsuleConv x86-64-v4 0   this kernel's result 0 has one wrong number
//   launch CapsuleConv x86-64-v4    this kernel cannot be launched
//   rule CapsuleConv input rank     this rule of cc/shapes is skipped
// With TF_CAPSOPS_FAULT=>FILE nothing fails, and the names of all faults that calls
// could have hit are written to FILE.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/launch/exec.h"

namespace capsops {

#if CAPSOPS_FAULTS

// Returns whether the fault of this name is requested. tests/faults defines this
// function and the others that are only declared here.
bool FaultAsked(const std::string& name);

// Fails a launch. On a CPU, returns an error and no kernel runs. On a GPU, a kernel
// launched before the op's own fails, and the op's launcher must report that.
LaunchError FailLaunch(const CpuExec& exec, const char* op);
LaunchError FailLaunch(const GpuExec& exec, const char* op);

// Flips the bits `mask` in one byte of a result.
LaunchError FlipBits(const CpuExec& exec, uint8_t* byte, uint8_t mask);
LaunchError FlipBits(const GpuExec& exec, uint8_t* byte, uint8_t mask);

// The position of the exponent's lowest bit. Flipping it doubles or halves a number.
template <typename T>
inline constexpr int kExponentBit = std::is_same_v<T, double>    ? 52
                                    : std::is_same_v<T, float>   ? 23
                                    : std::is_same_v<T, Float16> ? 10
                                                                 : 7;

// Fails the launch if that fault is requested. `source` is as in RunPlan (op.h).
template <typename Exec, typename Source>
LaunchError MaybeFailLaunch(const Exec& exec, const Source& source,
                            const std::string& kernel) {
  const bool asked = FaultAsked("launch " + std::string(source.op()) + " " + kernel);
  return asked ? FailLaunch(exec, source.op()) : LaunchError();
}

// Spoils one number of the requested result, if any. It avoids the first number, which
// may be the gradient of a tap outside the image: doubling that zero changes nothing.
template <typename Exec, typename Source, typename... Pointers>
LaunchError MaybeSpoil(const Exec& exec, const Source& source,
                       const std::string& kernel, Pointers... pointers) {
  const std::string name = "spoil " + std::string(source.op()) + " " + kernel + " ";
  LaunchError error;
  int results = 0;
  const auto spoil = [&](auto pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    if constexpr (std::is_pointer_v<decltype(pointer)> && !std::is_const_v<T>) {
      const int result = results++;
      const int64_t elements = source.Elements(result);
      if (elements > 0 && FaultAsked(name + std::to_string(result))) {
        constexpr int kBit = kExponentBit<T>;
        T* const spoiled = pointer + elements * 7 / 11;
        error = FlipBits(exec, reinterpret_cast<uint8_t*>(spoiled) + kBit / 8,
                         1 << kBit % 8);
      }
    }
  };
  (spoil(pointers), ...);
  return error;
}

// Returns whether to skip a rule. A rule is named by a tensor and its rank or
// axis, or by a file and line.
inline bool RuleDropped(const char* op, const char* tensor, const std::string& axis) {
  return FaultAsked("rule " + std::string(op) + " " + tensor + " " + axis);
}
inline bool RuleDropped(const char* op, const char* file, int line) {
  return RuleDropped(op, file, std::to_string(line));
}

#else

template <typename... Unused>
LaunchError MaybeFailLaunch(const Unused&...) {
  return {};
}
template <typename... Unused>
LaunchError MaybeSpoil(const Unused&...) {
  return {};
}
template <typename... Unused>
constexpr bool RuleDropped(const Unused&...) {
  return false;
}

#endif

}  // namespace capsops
