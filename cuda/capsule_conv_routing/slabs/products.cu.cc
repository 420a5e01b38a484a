// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernels that compute the products of slabs.
#include "cuda/capsule_conv_routing/slabs/products.h"

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/weights.h"

namespace capsops::capsule_conv_routing::slabs {

// Conditions common to all kernels. TMA needs rows of channels and of columns to have a
// multiple of 16 bytes.
template <typename T>
bool Serves(const GpuExec& exec, const Problem& p) {
  constexpr int64_t kMost = 1 << 20, kUnit = 16 / sizeof(T);
  return (exec.tf32 || sizeof(T) < 4) && HasWgmma(exec.device) &&
         kMostSharedBytes <= exec.device.shared && p.shared_weights && p.types > 0 &&
         p.in_dim > 0 && p.in_dim % kUnit == 0 && Columns(p) % kUnit == 0 &&
         Columns(p) >= 16 &&
         std::max({p.batch, p.in_depth, p.in_dim, Columns(p), p.out_width * p.types,
                   p.in_width * p.types, p.in_height}) <= kMost &&
         p.batch * std::max(p.in_depth, p.out_depth) <= INT32_MAX &&
         AllPhases(p, [](const Phase& phase) {
           return IsSmall(phase.depth) && IsSmall(phase.y) && IsSmall(phase.x);
         });
}

// Uses the kernels, except where convolutions are at least as fast
// (docs/notebook/slim_capsules.md):
// - votes of 16-bit types, in images with types of fewer than 32 numbers unless the
//   layer is transposed, and with rows that fill less than a quarter of a tile
// - the gradient of weights of volumes in float, if it needs several transposed copies
template <typename T>
OwnProducts<T>::OwnProducts(const GpuExec& exec, const Problem& p, bool gradient)
    : p_(p), processors_(exec.device.processors) {
  const bool serves = Serves<T>(exec, p), volume = p.kernel_depth > 1;
  votes_ = serves && MakesVotes(p) &&
           (kFloats || (p.out_width * p.types >= 64 &&
                        (p.in_dim >= 32 || volume || p.transposed)));
  by_image_ = serves && gradient && AddsImage(p);
  stores_image_ = by_image_ && slabs::StoresImage(p);
  by_weights_ = serves && gradient && (!kFloats || !volume || p.types % 4 == 0) &&
                SumsWeights(p, kFloats);
}

template <typename T>
int64_t OwnProducts<T>::Scratch(const Slab& slab) const {
  constexpr int64_t kFloatSize = sizeof(float) / sizeof(T);
  return std::max(by_image_ ? ImageHalos(p_, slab) * kFloatSize : 0,
                  by_weights_ ? Sum(slab).transposed() : 0);
}
template <typename T>
int64_t OwnProducts<T>::Sums(const Slab& slab) const {
  return by_weights_ ? Sum(slab).parts() : 0;
}
template <typename T>
WeightSums OwnProducts<T>::Sum(const Slab& slab) const {
  return WeightSums(p_, slab, processors_, kFloats);
}

template class OwnProducts<float>;
template class OwnProducts<Float16>;
template class OwnProducts<BFloat16>;

}  // namespace capsops::capsule_conv_routing::slabs
