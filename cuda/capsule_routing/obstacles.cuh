// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Why a problem is too large for the kernels of capsule routing, in words that complete
// a plan's refusal; "" where it is not.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_OBSTACLES_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_OBSTACLES_CUH_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

namespace capsops::capsule_routing {

// The kernels count in 32 bits what is up to here.
constexpr int64_t kMost = int64_t{1} << 30;

// Of numbers and their names, the first that is over kMost.
inline std::string TooLarge(
    std::initializer_list<std::pair<const char*, int64_t>> numbers) {
  for (const auto& [name, number] : numbers) {
    if (number <= kMost) continue;
    return std::string(name) + " is " + std::to_string(number) + ", over " +
           std::to_string(kMost);
  }
  return "";
}

}  // namespace capsops::capsule_routing

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_OBSTACLES_CUH_
