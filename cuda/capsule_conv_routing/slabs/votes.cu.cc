// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Computes the votes of a slab straight from the input, with RowProductKernel. A
// horizontal tap is a shift of the positions that TMA reads.
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/capsule_conv_routing/slabs/rows.cuh"

namespace capsops::capsule_conv_routing::slabs {

bool ReadsRows(const Problem& p) {
  constexpr int64_t kMost = 1 << 20;
  if (Columns(p) > kMost || p.in_dim % kFewTerms != 0 ||
      p.out_width * p.types > kMost || p.in_width * p.types > kMost ||
      p.in_height > kMost) {
    return false;
  }
  return AllPhases(p, [&](const Phase& phase) {
    return phase.x.stride == 1 &&
           (phase.x.pad + phase.x.taps * phase.x.dilation) * p.types < kMost &&
           phase.x.taps * phase.y.taps * phase.depth.taps < 65536;
  });
}

template <typename S>
LaunchError MakeRowVotes(const GpuExec& exec, const char* op, const Problem& p,
                         const Slab& slab, const S* input, const S* packed, S* votes) {
  const RowProduct w(p, slab, p.in_dim, kFewTerms, Columns(p));
  StoreTile<S> store;
  CAPSOPS_RETURN_IF_ERROR(MakeStoreTile(op, w, false, votes, &store));
  return WithProducts<8, 16, 24, 32>(w.wide(), [&](auto products) {
    return LaunchRowProduct<kFewTerms, products.value, true>(
        exec, op, w, 8 * products.value, input + FirstRow(p, slab), packed, store);
  });
}

#define CAPSOPS_INSTANTIATE(S)                                                      \
  template LaunchError MakeRowVotes<S>(const GpuExec&, const char*, const Problem&, \
                                       const Slab&, const S*, const S*, S*);
CAPSOPS_FOR_EACH_PRODUCT_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
