// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// wgmma kernels for the products of slabs with shared weights, in TF32 or 16-bit types.
// NoProducts of capsule_conv_slabs_products.h describes their interface.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/capsule_conv_slabs_products.h"
#include "cuda/capsule_conv_routing/slabs/weights.h"

namespace capsops::capsule_conv_routing::slabs {

// Chooses and launches the kernels. T is float, Float16 or BFloat16.
template <typename T>
class OwnProducts {
 public:
  OwnProducts(const GpuExec& exec, const Problem& p, bool gradient);

  Products made() const { return {votes_, by_image_, by_weights_}; }
  bool StoresImage() const { return stores_image_; }
  int64_t Scratch(const Slab& slab) const;
  int64_t Sums(const Slab& slab) const;

  LaunchError PackWeights(const GpuExec& exec, const char* op, const Slab& slab,
                          const T* weights, T* packed) const;
  LaunchError MakeVotes(const GpuExec& exec, const char* op, const Slab& slab,
                        const T* input, const T* packed, T* votes) const;
  LaunchError AddImage(const GpuExec& exec, const char* op, const Slab& slab,
                       const T* grads, const T* weights, T* scratch,
                       T* grad_input) const;
  LaunchError SumWeights(const GpuExec& exec, const char* op, const Slab& slab,
                         bool first, const T* input, const T* grads, T* scratch,
                         float* sums) const;
  LaunchError FinishWeights(const GpuExec& exec, const char* op, const Slab& slab,
                            const float* sums, T* grad_weights) const;

 private:
  static constexpr bool kFloats = std::is_same_v<T, float>;

  WeightSums Sum(const Slab& slab) const;

  Problem p_;
  int processors_;
  bool votes_, by_image_, by_weights_, stores_image_;
};

// Whether each kernel can compute all slabs of a problem that meets the conditions
// common to all kernels (products.cu.cc).
bool MakesVotes(const Problem& p);
bool AddsImage(const Problem& p);
bool SumsWeights(const Problem& p, bool transposes);

// Whether the windows of the first phase cover the whole image. Then the slabs of this
// phase store the gradient, and later ones add to it.
bool StoresImage(const Problem& p);

// Floats of the halos of a slab, for AddImage.
int64_t ImageHalos(const Problem& p, const Slab& slab);

#define CAPSOPS_FOR_EACH_PRODUCT_TYPE(DO) DO(float) DO(Float16) DO(BFloat16)

}  // namespace capsops::capsule_conv_routing::slabs
