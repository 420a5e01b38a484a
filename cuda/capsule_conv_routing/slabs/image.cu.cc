// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradient of a slab's image, as rows of votes times weights.
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/capsule_conv_routing/slabs/rows.cuh"

namespace capsops::capsule_conv_routing::slabs {

// The numbers of a position of the unfolded image.
inline int64_t ImageColumns(const Problem& p, const Phase& phase) {
  return phase.x.taps * phase.depth.taps * p.in_dim;
}

bool GradsImage(const Problem& p) {
  constexpr int64_t kMost = 1 << 20;
  if (Columns(p) > kMost || p.out_width * p.types > kMost || p.in_height > kMost) {
    return false;
  }
  return AllPhases(p, [&](const Phase& phase) {
    return ImageColumns(p, phase) <= 4096 && phase.y.pad < kMost &&
           phase.y.dilation < kMost && phase.y.stride < kMost;
  });
}

LaunchError GradImage(const GpuExec& exec, const char* op, const Problem& p,
                      const Slab& slab, const float* grads, const float* weights,
                      float* grad_image) {
  const RowProduct w(p, slab, Columns(p), ImageColumns(p, slab.phase));
  return WithProducts<8, 16, 21, 24, 28, 32>(w.wide(), [&](auto products) {
    return LaunchRowProduct<products.value, false>(exec, op, w, w.positions,
                                                   w.frames * w.rows, w.y_taps, grads,
                                                   weights, grad_image);
  });
}

}  // namespace capsops::capsule_conv_routing::slabs
