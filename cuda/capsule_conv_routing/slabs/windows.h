// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Votes in TF32 with wgmma. In a padded copy of the image, with types before pixels, the
// taps across of a pixel are neighbors: a tensor map of overlapping windows reads them.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

bool ReadsWindows(const GpuExec& exec, const Problem& p);
// The elements of the padded copy.
int64_t PaddedImage(const Problem& p, const Slab& slab);
LaunchError PackWindows(const GpuExec& exec, const char* op, const Problem& p,
                        const Slab& slab, const float* weights, float* packed);
LaunchError MakeWindowVotes(const GpuExec& exec, const char* op, const Problem& p,
                            const Slab& slab, const float* input, const float* packed,
                            float* padded, float* votes);

}  // namespace capsops::capsule_conv_routing::slabs
