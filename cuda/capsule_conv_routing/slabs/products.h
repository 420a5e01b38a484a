// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Products of slabs with shared weights in TF32, with wgmma, as NoProducts of
// capsule_conv_slabs_products.h describes them. Two kernels make votes: "rows" reads
// the input itself, "windows" a padded copy.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/capsule_conv_slabs_products.h"

namespace capsops::capsule_conv_routing::slabs {

class OwnProducts {
 public:
  OwnProducts(const GpuExec& exec, const Problem& p, bool gradient);

  Products made() const { return {rows_ || windows_, by_image_, by_weights_}; }
  int64_t Scratch(const Slab& slab) const;
  int64_t Sums(const Slab& slab) const;

  LaunchError PackWeights(const GpuExec& exec, const char* op, const Slab& slab,
                          const float* weights, float* packed) const;
  LaunchError MakeVotes(const GpuExec& exec, const char* op, const Slab& slab,
                        const float* input, const float* packed, float* scratch,
                        float* votes) const;
  LaunchError AddImage(const GpuExec& exec, const char* op, const Slab& slab,
                       const float* grads, const float* weights, float* scratch,
                       float* grad_input) const;
  LaunchError SumWeights(const GpuExec& exec, const char* op, const Slab& slab,
                         bool first, const float* input, const float* grads,
                         float* scratch, float* sums) const;
  LaunchError FinishWeights(const GpuExec& exec, const char* op, const Slab& slab,
                            const float* sums, float* grad_weights) const;

 private:
  Problem p_;
  int processors_;
  bool rows_, windows_, by_image_, by_weights_;
};

// Whether these kernels serve all slabs of a problem, which meets the conditions of all
// of them.
bool ReadsRows(const Problem& p);
bool ReadsWindows(const Problem& p);
bool AddsImage(const Problem& p);
bool SumsWeights(const Problem& p);

// The elements of the padded copy, and of halos.
int64_t PaddedImage(const Problem& p, const Slab& slab);
int64_t ImageHalos(const Problem& p, const Slab& slab);

LaunchError MakeRowVotes(const GpuExec& exec, const char* op, const Problem& p,
                         const Slab& slab, const float* input, const float* packed,
                         float* votes);
LaunchError MakeWindowVotes(const GpuExec& exec, const char* op, const Problem& p,
                            const Slab& slab, const float* input, const float* packed,
                            float* padded, float* votes);
LaunchError AddImageGrad(const GpuExec& exec, const char* op, const Problem& p,
                         const Slab& slab, const float* grads, const float* weights,
                         float* halos, float* grad_input);

}  // namespace capsops::capsule_conv_routing::slabs
