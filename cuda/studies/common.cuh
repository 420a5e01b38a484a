// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The wording of the studies' refusals.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/common/launch.cuh"

namespace capsops::studies {

constexpr int64_t kMaxThreads = 1024;  // threads per block

// Returns the reason of a refusal.
inline std::string Must(const std::string& what, const std::string& be, int64_t is) {
  return what + " must be " + be + ", got " + std::to_string(is);
}
inline std::string Must(const std::string& what, int64_t be, int64_t is) {
  return Must(what, std::to_string(be), is);
}

// Returns the reason of a refusal if a number is too large, else "".
inline std::string MustBeAtMost(const std::string& what, int64_t maximum,
                                const std::string& why, int64_t is) {
  if (is <= maximum) return {};
  return Must(what, "at most " + std::to_string(maximum) + " (" + why + ")", is);
}

}  // namespace capsops::studies
