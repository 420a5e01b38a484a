// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The faults of cc/launch/faults.h, on CPUs, and what only their library has besides.
#include "cc/launch/faults.h"

#include <cstdlib>
#include <fstream>

// Writes down which lines ran, once in a process. It belongs to GCC's runtime, and is
// null in a build that does not count lines.
extern "C" __attribute__((weak)) void __gcov_dump();
// For tests, because a process that is killed in the end writes nothing.
extern "C" __attribute__((visibility("default"))) void WriteCoverage() {
  if (__gcov_dump) __gcov_dump();
}

namespace capsops {

bool FaultAsked(const std::string& name) {
  const char* const asked = std::getenv("TF_CAPSOPS_FAULT");
  if (asked == nullptr) return false;
  if (*asked == '>') std::ofstream(asked + 1, std::ios::app) << name + "\n";
  return name == asked;
}

LaunchError FailLaunch(const CpuExec&, const char* op) {
  return std::string(op) + ": launch failed on purpose";
}

LaunchError FlipBits(const CpuExec&, uint8_t* byte, uint8_t mask) {
  *byte ^= mask;
  return {};
}

}  // namespace capsops
