// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Limits on a problem's sizes. TooLarge() returns the end of a refusal's sentence, or
// "" if everything fits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "cc/launch/capsule_routing.h"

namespace capsops::capsule_routing {

// Limit of every size that the kernels count in 32 bits.
constexpr int64_t kMax = int64_t{1} << 30;

// Names the first number over kMax.
inline std::string TooLarge(
    std::initializer_list<std::pair<const char*, int64_t>> numbers) {
  for (const auto& [name, number] : numbers) {
    if (number <= kMax) continue;
    return std::string(name) + " is " + std::to_string(number) + ", over " +
           std::to_string(kMax);
  }
  return "";
}

// Checks the sizes of a nonempty problem.
inline std::string TooLarge(const Problem& p) {
  return TooLarge({{"out_caps", p.out_caps},
                   {"out_dim", p.out_dim},
                   {"in_dim", p.in_dim},
                   {"out_dim x in_dim", p.out_dim * p.in_dim},
                   {"out_caps x out_dim", p.out_caps * p.out_dim},
                   {"out_caps x iterations", p.out_caps * p.iterations}});
}

inline bool Empty(const Problem& p) {
  return std::min({p.batch, p.in_caps, p.out_caps, p.out_dim, p.in_dim}) == 0;
}

}  // namespace capsops::capsule_routing
