// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the instruction set of the CPU kernels, once per process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

// CAPSOPS_SELECT(f) is f in the namespace of the best instruction set: one of the
// levels of the x86-64 psABI or, on other processors, the baseline.
#if defined(__x86_64__)
#define CAPSOPS_SELECT(f) \
  (::capsops::CpuLevel() >= 4 ? v4::f : ::capsops::CpuLevel() >= 3 ? v3::f : v2::f)
#else
#define CAPSOPS_SELECT(f) baseline::f
#endif

namespace capsops {

#if defined(__x86_64__)
// Returns the environment variable TF_CAPSOPS_CPU_LEVEL, or 0. Values 2, 3 and 4 lower
// the level to this one and switch VNNI off, so that tests reach the kernels of older
// processors; other values change nothing.
inline int AskedCpuLevel() {
  const char* const asked = std::getenv("TF_CAPSOPS_CPU_LEVEL");
  return asked == nullptr ? 0 : std::atoi(asked);
}

// Returns the highest of levels 2, 3 and 4 that the processor and operating system
// support, or the lower one that is asked for.
inline int CpuLevel() {
  static const int level = [] {
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt");
    const bool v4 =
        v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl");
    const int best = v4 ? 4 : v3 ? 3 : 2, asked = AskedCpuLevel();
    return asked == 2 || asked == 3 ? std::min(best, asked) : best;
  }();
  return level;
}

// Returns whether to use AVX-512 VNNI, which no level includes.
inline bool UseVnni() {
  static const bool use =
      CpuLevel() == 4 && AskedCpuLevel() != 4 && __builtin_cpu_supports("avx512vnni");
  return use;
}
#else
inline bool UseVnni() { return false; }
#endif

// Returns the name of the chosen instruction set, which is the kernel name in plans.
inline const char* CpuKernelName() {
#if defined(__x86_64__)
  constexpr const char* kNames[] = {"x86-64-v2", "x86-64-v3", "x86-64-v4"};
  return kNames[CpuLevel() - 2];
#else
  return "baseline";
#endif
}

// Returns the plan of a CPU kernel.
template <typename Plan, typename Run>
Plan CpuPlan(int64_t workspace, const Run& run) {
  Plan plan = Plan::Make(workspace, run);
  plan.kernel = CpuKernelName();
  return plan;
}

}  // namespace capsops

// Defines Selected<T>() in an op's namespace: the CpuKernels<T> of the chosen
// instruction set.
#define CAPSOPS_SELECTED_KERNELS                                       \
  template <typename T>                                                \
  const CpuKernels<T>& Selected() {                                    \
    static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>()); \
    return kernels;                                                    \
  }
