// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Faults on purpose, by which the tests are tested. Only the library of `make faults`
// has them. There TF_CAPSOPS_FAULT, read at every call, names one:
//   spoil CapsuleConv x86-64-v4 0   this kernel's result 0 has one wrong number
//   launch CapsuleConv x86-64-v4    this kernel cannot be launched
//   rule CapsuleConv input rank     this rule of cc/shapes is left out
// With TF_CAPSOPS_FAULT=>FILE nothing fails, and FILE gets the names of all faults that
// calls pass by.
#ifndef CAPSOPS_CC_LAUNCH_FAULTS_H_
#define CAPSOPS_CC_LAUNCH_FAULTS_H_

#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/launch/exec.h"

namespace capsops {

#if CAPSOPS_FAULTS

// Whether the fault of this name is asked for. tests/faults has this and all below that
// is not defined here.
bool FaultAsked(const std::string& name);

// A launch that fails: of no kernel on a CPU, and on a GPU of one before the kernel's,
// whose launcher must see it.
LaunchError FailLaunch(const CpuExec& exec, const char* op);
LaunchError FailLaunch(const GpuExec& exec, const char* op);

// Changes the bits `mask` of a byte of a result.
LaunchError FlipBits(const CpuExec& exec, uint8_t* byte, uint8_t mask);
LaunchError FlipBits(const GpuExec& exec, uint8_t* byte, uint8_t mask);

// The lowest bit of the exponent, which makes a number twice or half as large.
template <typename T>
inline constexpr int kExponentBit = std::is_same_v<T, double>    ? 52
                                    : std::is_same_v<T, float>   ? 23
                                    : std::is_same_v<T, Float16> ? 10
                                                                 : 7;

// `source` is that of the plan's arguments (op.h), and knows the op.
template <typename Exec, typename Source>
LaunchError MaybeFailLaunch(const Exec& exec, const Source& source,
                            const std::string& kernel) {
  const bool asked = FaultAsked("launch " + std::string(source.op()) + " " + kernel);
  return asked ? FailLaunch(exec, source.op()) : LaunchError();
}

// Spoils one number of the result that is asked for, if any. It is not the first: where
// that is the gradient of a tap outside the image it is zero, and so is twice that.
// `source` knows how many elements each result has.
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

// Whether a rule of an op is left out: of a tensor and its rank or an axis, or of a
// file and a line.
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

#endif  // CAPSOPS_CC_LAUNCH_FAULTS_H_
