// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The capsule convolutions of two papers, as schemes that a benchmark can name. They
// compute what cc/launch/capsule_conv.h says, in float32 and on a GPU only. Nothing but
// the benchmark uses them.
//   Vaidya, "Speeding up Capsules": B, I1, I2, I3; and, for its future work, a kernel
//   for images in five layouts (`input` and `output` are then in that layout).
//   Chen et al., "How to Accelerate Capsule Convolutions in Capsule Networks": the
//   columns of its Table 1, gemms ("GPU"), official, custom.
#ifndef CAPSOPS_CUDA_STUDIES_CAPSULE_CONV_H_
#define CAPSOPS_CUDA_STUDIES_CAPSULE_CONV_H_

#include <cstdint>
#include <string>

#include "cc/launch/capsule_conv.h"

namespace capsops::studies::capsule_conv {

using capsops::capsule_conv::Problem;

struct Scheme {
  const char* name;
  // Why a problem is not one of those the paper computes, or nothing.
  std::string (*unsupported)(const Problem& problem);
  int64_t (*forward_workspace)(const Problem& problem);
  LaunchError (*forward)(const GpuExec& exec, const Problem& problem,
                         const float* input, const float* weights, float* output,
                         void* workspace);
  // Both gradients; null where the paper has none.
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

#endif  // CAPSOPS_CUDA_STUDIES_CAPSULE_CONV_H_
