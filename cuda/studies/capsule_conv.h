// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The capsule convolutions of two papers, as schemes that the benchmark selects by
// name. They compute what cc/launch/capsule_conv.h defines, in float32 and on a GPU
// only, and are used by the benchmark only.
//   Vaidya, "Speeding up Capsules": B, I1, I2, I3; and, for its future work, a kernel
//   for images in five layouts (of both `input` and `output`).
//   Chen et al., "How to Accelerate Capsule Convolutions in Capsule Networks": the
//   columns of its Table 1, gemms ("GPU"), official, custom.
#pragma once

#include <cstdint>
#include <string>

#include "cc/launch/capsule_conv.h"

namespace capsops::studies::capsule_conv {

using capsops::capsule_conv::Problem;

struct Scheme {
  const char* name;
  // Returns why the paper does not cover a problem, or "".
  std::string (*unsupported)(const Problem& problem);
  int64_t (*forward_workspace)(const Problem& problem);
  LaunchError (*forward)(const GpuExec& exec, const Problem& problem,
                         const float* input, const float* weights, float* output,
                         void* workspace);
  // Both gradients, or null if the paper has none.
  int64_t (*backward_workspace)(const Problem& problem) = nullptr;
  LaunchError (*backward)(const GpuExec& exec, const Problem& problem,
                          const float* grad, const float* input, const float* weights,
                          float* grad_input, float* grad_weights,
                          void* workspace) = nullptr;
};

extern const Scheme kVaidyaB, kVaidyaI1, kVaidyaI2, kVaidyaI3;
extern const Scheme kLayoutPcrk, kLayoutPrkc, kLayoutCrkp, kLayoutRpck, kLayoutRckp;
extern const Scheme kChenGemms, kChenOfficial, kChenCustom;

}  // namespace capsops::studies::capsule_conv
