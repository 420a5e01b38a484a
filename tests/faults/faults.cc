// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Implements cc/launch/faults.h for CPUs.
#include "cc/launch/faults.h"

#include <cstdlib>
#include <fstream>

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
