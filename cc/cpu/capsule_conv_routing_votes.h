// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Computes the votes for windows of one pixel with one pixel per lane, the layout that
// routing uses. A convolution would store them pixel by pixel, and routing would have
// to transpose them.
#pragma once

#include <cstdint>

#include "cc/cpu/capsule_conv_routing.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_conv_routing::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Computes the votes of kTypes types from their children, with weights
// [in_dim][columns].
template <int kTypes, typename A>
CAPSOPS_INLINE void MakeVotesOf(int64_t in_dim, int64_t columns, const A* children,
                                const A* weights, A* votes) {
  const auto tile = [&](auto size, int64_t first) __attribute__((always_inline)) {
    constexpr int kColumns = decltype(size)::value;
    Vector<A> sums[kTypes][kColumns] = {};
    for (int64_t k = 0; k < in_dim; ++k) {
      const A* const row = weights + k * columns + first;
      for (int i = 0; i < kTypes; ++i) {
        const Vector<A> x = Load(children + (i * in_dim + k) * kLanes<A>);
        for (int n = 0; n < kColumns; ++n) sums[i][n] += x * row[n];
      }
    }
    for (int i = 0; i < kTypes; ++i) {
      for (int n = 0; n < kColumns; ++n) {
        Store(votes + (i * columns + first + n) * kLanes<A>, sums[i][n]);
      }
    }
  };
  capsule_routing::CAPSOPS_ISA::ForDims(columns, tile);
}

// Computes votes [types][parents][out_dim] from children [types][in_dim].
template <typename A>
void MakeVotes(const Problem& p, const A* children, const A* weights, A* votes) {
  const int64_t columns = Columns(p);
  int64_t i = 0;
  const auto make = [&](auto types) __attribute__((always_inline)) {
    MakeVotesOf<decltype(types)::value>(p.in_dim, columns,
                                        children + i * p.in_dim * kLanes<A>, weights,
                                        votes + i * columns * kLanes<A>);
  };
  for (; i + 2 <= p.types; i += 2) make(Constant<2>{});
  if (i < p.types) make(Constant<1>{});
}

}  // namespace capsops::capsule_conv_routing::CAPSOPS_ISA
