// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs the operands of the products that compute votes.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

// Copies the rows that a slab reads, of `frames` input frames from `first_frame` on, to
// [frame][row][type][padded pixel][dim]. A row has `padded` pixels, which are zeros
// outside of the image. `units` is dim in units of 16 bytes.
LaunchError PadImage(const GpuExec& exec, const char* op, const Problem& p,
                     const Slab& slab, int64_t padded, int64_t first_frame,
                     int64_t frames, int64_t units, const void* input, void* copy);

// Packs weights, [y][x][z][dim][columns], as [z][y][columns][x][dim].
template <typename S>
LaunchError PackWeights(const GpuExec& exec, const char* op, int64_t y_taps,
                        int64_t x_taps, int64_t z_taps, int64_t dim, int64_t columns,
                        const S* weights, S* packed);

}  // namespace capsops::capsule_conv_routing::slabs
