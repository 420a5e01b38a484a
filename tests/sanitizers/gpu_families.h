// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Families of problems for the GPU kernels.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace capsops {

// A problem that suits some kernels, and for each of its dimensions sizes below, at and
// above their tiles.
template <typename P>
struct Family {
  P base;
  std::vector<std::pair<int64_t P::*, std::vector<int64_t>>> dimensions;
};

// Returns one family per base.
template <typename P>
std::vector<Family<P>> Families(const std::vector<P>& bases,
                                const decltype(Family<P>::dimensions)& dimensions) {
  std::vector<Family<P>> families;
  for (const P& base : bases) families.push_back({base, dimensions});
  return families;
}

template <typename P>
void Append(std::vector<P>* all, const std::vector<P>& more) {
  all->insert(all->end(), more.begin(), more.end());
}

}  // namespace capsops
