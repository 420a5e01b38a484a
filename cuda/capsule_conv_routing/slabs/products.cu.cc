// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernels that make products of slabs.
#include "cuda/capsule_conv_routing/slabs/products.h"

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/capsule_conv_routing/slabs/pack.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/weights.h"

namespace capsops::capsule_conv_routing::slabs {

// The conditions of all kernels.
bool Serves(const GpuExec& exec, const Problem& p) {
  constexpr int64_t kMost = 1 << 20;
  return exec.tf32 && HasWgmma(exec.device) &&
         Stages<8>::SharedBytes() <= exec.device.shared && p.shared_weights &&
         p.types > 0 && p.in_dim > 0 && p.in_dim % 4 == 0 && Columns(p) % 4 == 0 &&
         Columns(p) >= 16 && std::max({p.batch, p.in_depth, p.in_dim}) <= kMost &&
         AllPhases(p, [](const Phase& phase) {
           return IsSmall(phase.depth) && IsSmall(phase.y) && IsSmall(phase.x);
         });
}

// Windows are no gain without taps across, nor in images where they fill the narrowest
// tiles. In volumes, nor are gradients of weights that need several copies of the
// transposed image (docs/notebook/slim_capsules.md).
OwnProducts::OwnProducts(const GpuExec& exec, const Problem& p, bool gradient)
    : p_(p), processors_(exec.device.processors) {
  const bool serves = Serves(exec, p);
  rows_ = serves && ReadsRows(p);
  windows_ = serves && !rows_ && p.kernel_width > 1 &&
             (Columns(p) > 64 || (Columns(p) == 64 && p.kernel_depth > 1)) &&
             ReadsWindows(p);
  by_image_ = serves && gradient && AddsImage(p);
  by_weights_ =
      serves && gradient && (p.kernel_depth == 1 || p.types % 4 == 0) && SumsWeights(p);
}

int64_t OwnProducts::Scratch(const Slab& slab) const {
  return std::max({windows_ ? PaddedImage(p_, slab) : 0,
                   by_image_ ? ImageHalos(p_, slab) : 0,
                   by_weights_ ? WeightSums(p_, slab, processors_).transposed() : 0});
}
int64_t OwnProducts::Sums(const Slab& slab) const {
  return by_weights_ ? WeightSums(p_, slab, processors_).parts() : 0;
}

LaunchError OwnProducts::PackWeights(const GpuExec& exec, const char* op,
                                     const Slab& slab, const float* weights,
                                     float* packed) const {
  const int64_t y_taps = slab.phase.y.taps, x_taps = slab.phase.x.taps;
  const int64_t z_taps = slab.phase.depth.taps;
  return rows_ ? slabs::PackWeights(exec, op, y_taps * x_taps * z_taps, 1, 1, p_.in_dim,
                                    Columns(p_), weights, packed)
               : slabs::PackWeights(exec, op, y_taps, x_taps, z_taps, p_.in_dim,
                                    Columns(p_), weights, packed);
}
LaunchError OwnProducts::MakeVotes(const GpuExec& exec, const char* op,
                                   const Slab& slab, const float* input,
                                   const float* packed, float* scratch,
                                   float* votes) const {
  return rows_ ? MakeRowVotes(exec, op, p_, slab, input, packed, votes)
               : MakeWindowVotes(exec, op, p_, slab, input, packed, scratch, votes);
}
LaunchError OwnProducts::AddImage(const GpuExec& exec, const char* op, const Slab& slab,
                                  const float* grads, const float* weights,
                                  float* scratch, float* grad_input) const {
  return AddImageGrad(exec, op, p_, slab, grads, weights, scratch, grad_input);
}
LaunchError OwnProducts::SumWeights(const GpuExec& exec, const char* op,
                                    const Slab& slab, bool first, const float* input,
                                    const float* grads, float* scratch,
                                    float* sums) const {
  return slabs::SumWeights(exec, op, p_, slab, first, input, grads, scratch, sums);
}
LaunchError OwnProducts::FinishWeights(const GpuExec& exec, const char* op,
                                       const Slab& slab, const float* sums,
                                       float* grad_weights) const {
  return slabs::FinishWeights(exec, op, p_, slab, sums, grad_weights);
}

}  // namespace capsops::capsule_conv_routing::slabs
