// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradient of an unfolded image in TF32, with wgmma: for each image row,
//   grad_image[position, (tap across, channel)] = sum over taps down and columns of
//       votes_grad[position of the row that reads by this tap, column] *
//           weights[tap down, (tap across, channel), column]
// Positions are (pixel of the slab, type), as in the unfolded copy.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

// Whether GradImage serves all slabs of the problem.
bool GradsImage(const GpuExec& exec, const Problem& p);

// `weights` are those of the slab's convolution, `grads` the gradients of its votes.
LaunchError GradImage(const GpuExec& exec, const char* op, const Problem& p,
                      const Slab& slab, const float* grads, const float* weights,
                      float* grad_image);

// The votes of a slab likewise, without a copy: whether MakeVotes serves all slabs, and
// the weights of a phase as it reads them.
bool MakesVotes(const GpuExec& exec, const Problem& p);
LaunchError PackVotes(const GpuExec& exec, const char* op, const Problem& p,
                      const Slab& slab, const float* weights, float* packed);
LaunchError MakeVotes(const GpuExec& exec, const char* op, const Problem& p,
                      const Slab& slab, const float* image, const float* packed,
                      float* votes);

}  // namespace capsops::capsule_conv_routing::slabs
