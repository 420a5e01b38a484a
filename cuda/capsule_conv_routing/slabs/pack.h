// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs the operands of votes.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

// Copies the rows that a slab reads of `frames` frames of the input, with zeros at both
// ends of a row, to [frame][row][type][padded pixel][dim]. `units` is the number of
// 16-byte units in the dim numbers of a pixel and type.
LaunchError PadImage(const GpuExec& exec, const char* op, const Problem& p,
                     const Slab& slab, int64_t padded, int64_t first_frame,
                     int64_t frames, int64_t units, const void* input, void* copy);

// Packs weights, [y][x][z][dim][columns], as [z][y][columns][x][dim].
template <typename S>
LaunchError PackWeights(const GpuExec& exec, const char* op, int64_t y_taps,
                        int64_t x_taps, int64_t z_taps, int64_t dim, int64_t columns,
                        const S* weights, S* packed);

}  // namespace capsops::capsule_conv_routing::slabs
