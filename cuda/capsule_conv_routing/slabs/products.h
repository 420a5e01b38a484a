// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// wgmma kernels for the products of slabs with shared weights, in TF32 or 16-bit types.
// NoProducts of capsule_conv_slabs_products.h describes their interface. Two kernels
// compute votes: "rows" reads the input itself, "windows" a padded copy.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

  Products made() const { return {rows_ || windows_, by_image_, by_weights_}; }
  int64_t Scratch(const Slab& slab) const;
  int64_t Sums(const Slab& slab) const;

  LaunchError PackWeights(const GpuExec& exec, const char* op, const Slab& slab,
                          const T* weights, T* packed) const;
  LaunchError MakeVotes(const GpuExec& exec, const char* op, const Slab& slab,
                        const T* input, const T* packed, T* scratch, T* votes) const;
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
  bool rows_, windows_, by_image_, by_weights_;
};

// Whether each kernel can compute all slabs of a problem that meets the conditions
// common to all kernels (products.cu.cc).
bool ReadsRows(const Problem& p);
bool ReadsWindows(const Problem& p);
bool AddsImage(const Problem& p);
bool SumsWeights(const Problem& p, bool transposes);

// Workspace of a slab: elements of the padded copy, and floats of the halos.
int64_t PaddedImage(const Problem& p, const Slab& slab);
int64_t ImageHalos(const Problem& p, const Slab& slab);

// S is one of these types.
#define CAPSOPS_FOR_EACH_PRODUCT_TYPE(DO) DO(float) DO(__half) DO(__nv_bfloat16)
template <typename S>
LaunchError MakeRowVotes(const GpuExec& exec, const char* op, const Problem& p,
                         const Slab& slab, const S* input, const S* packed, S* votes);
template <typename S>
LaunchError MakeWindowVotes(const GpuExec& exec, const char* op, const Problem& p,
                            const Slab& slab, const S* input, const S* packed,
                            S* padded, S* votes);
template <typename S>
LaunchError AddImageGrad(const GpuExec& exec, const char* op, const Problem& p,
                         const Slab& slab, const S* grads, const S* weights,
                         float* halos, S* grad_input);

}  // namespace capsops::capsule_conv_routing::slabs
