// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernels that compute the products of slabs.
#include "cuda/capsule_conv_routing/slabs/products.h"

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/capsule_conv_routing/slabs/pack.h"
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
         Columns(p) >= 16 && std::max({p.batch, p.in_depth, p.in_dim}) <= kMost &&
         AllPhases(p, [](const Phase& phase) {
           return IsSmall(phase.depth) && IsSmall(phase.y) && IsSmall(phase.x);
         });
}

// Uses the kernels except where convolutions measured at least as fast
// (docs/notebook/slim_capsules.md):
// - rows: in volumes of 16-bit types, unless the layer is transposed
// - windows: with one horizontal tap; with few columns; and in images of 16-bit types,
//   unless the layer is transposed
// - gradient of weights: in volumes of float that need several transposed copies
template <typename T>
OwnProducts<T>::OwnProducts(const GpuExec& exec, const Problem& p, bool gradient)
    : p_(p), processors_(exec.device.processors) {
  const bool serves = Serves<T>(exec, p), rows = serves && ReadsRows(p);
  const bool volume = p.kernel_depth > 1, wide = Columns(p) > 64;
  rows_ = rows && (kFloats || p.transposed || !volume);
  windows_ = serves && !rows && p.kernel_width > 1 &&
             (kFloats ? wide || (Columns(p) == 64 && volume)
                      : wide && (p.transposed || volume)) &&
             ReadsWindows(p);
  by_image_ = serves && gradient && AddsImage(p);
  by_weights_ = serves && gradient && (!kFloats || !volume || p.types % 4 == 0) &&
                SumsWeights(p, kFloats);
}

template <typename T>
int64_t OwnProducts<T>::Scratch(const Slab& slab) const {
  constexpr int64_t kFloatSize = sizeof(float) / sizeof(T);
  return std::max({windows_ ? PaddedImage(p_, slab) : 0,
                   by_image_ ? ImageHalos(p_, slab) * kFloatSize : 0,
                   by_weights_ ? Sum(slab).transposed() : 0});
}
template <typename T>
int64_t OwnProducts<T>::Sums(const Slab& slab) const {
  return by_weights_ ? Sum(slab).parts() : 0;
}
template <typename T>
WeightSums OwnProducts<T>::Sum(const Slab& slab) const {
  return WeightSums(p_, slab, processors_, kFloats);
}

template <typename T>
LaunchError OwnProducts<T>::PackWeights(const GpuExec& exec, const char* op,
                                        const Slab& slab, const T* weights,
                                        T* packed) const {
  const int64_t y_taps = slab.phase.y.taps, x_taps = slab.phase.x.taps;
  const int64_t z_taps = slab.phase.depth.taps;
  const int64_t taps = y_taps * x_taps * z_taps, columns = Columns(p_);
  return rows_ ? slabs::PackWeights(exec, op, taps, 1, 1, p_.in_dim, columns,
                                    Native(weights), Native(packed))
               : slabs::PackWeights(exec, op, y_taps, x_taps, z_taps, p_.in_dim,
                                    columns, Native(weights), Native(packed));
}
template <typename T>
LaunchError OwnProducts<T>::MakeVotes(const GpuExec& exec, const char* op,
                                      const Slab& slab, const T* input, const T* packed,
                                      T* scratch, T* votes) const {
  return rows_ ? MakeRowVotes(exec, op, p_, slab, Native(input), Native(packed),
                              Native(votes))
               : MakeWindowVotes(exec, op, p_, slab, Native(input), Native(packed),
                                 Native(scratch), Native(votes));
}
template <typename T>
LaunchError OwnProducts<T>::AddImage(const GpuExec& exec, const char* op,
                                     const Slab& slab, const T* grads, const T* weights,
                                     T* scratch, T* grad_input) const {
  return AddImageGrad(exec, op, p_, slab, Native(grads), Native(weights),
                      reinterpret_cast<float*>(scratch), Native(grad_input));
}
template <typename T>
LaunchError OwnProducts<T>::SumWeights(const GpuExec& exec, const char* op,
                                       const Slab& slab, bool first, const T* input,
                                       const T* grads, T* scratch, float* sums) const {
  return slabs::SumWeights(exec, op, p_, slab, first, Native(input), Native(grads),
                           Native(scratch), sums);
}
template <typename T>
LaunchError OwnProducts<T>::FinishWeights(const GpuExec& exec, const char* op,
                                          const Slab& slab, const float* sums,
                                          T* grad_weights) const {
  return slabs::FinishWeights(exec, op, p_, slab, sums, Native(grad_weights));
}

template class OwnProducts<float>;
template class OwnProducts<Float16>;
template class OwnProducts<BFloat16>;

}  // namespace capsops::capsule_conv_routing::slabs
