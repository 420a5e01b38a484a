// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolution with weights from the INQ code book as the CUDA kernels of Khandwawala,
// "Weight Sharing on CNN", compute it: what cc/launch/inq_conv.h says, in float32, with
// VALID padding, for one image, and with planes as output: [1, out_channels,
// out_height, out_width]. Of the code book the first `powers` powers of two are used;
// larger codes read as zero. Nothing but the benchmark uses it.
#ifndef CAPSOPS_CUDA_STUDIES_INQ_CONV_H_
#define CAPSOPS_CUDA_STUDIES_INQ_CONV_H_

#include <cstdint>
#include <string>

#include "cc/launch/inq_conv.h"

namespace capsops::studies::inq_conv {

using capsops::inq_conv::Problem;

constexpr int kMostPowers = 4;

// The weight of a code: sign * 2^(top_exponent - power).
struct Weight {
  int sign, power;
};

#ifdef __CUDACC__
__host__ __device__
#endif
    inline Weight WeightOf(uint8_t code, int powers) {
  if (code == 0 || code > 2 * powers) return {0, 0};
  return {code % 2 != 0 ? 1 : -1, (code - 1) / 2};
}

struct Scheme {
  const char* name;
  // Why a problem is not one of those the program computes, or nothing. A dimension
  // that is not known yet, -1, is no reason.
  std::string (*unsupported)(const Problem& problem);
  // Bytes at `workspace`, for the kernel matrix in the form the program wants it.
  int64_t (*workspace)(const Problem& problem);
  // Powers are 1 to kMostPowers, and 2^(top_exponent - powers + 1) to 2^top_exponent
  // normal numbers.
  LaunchError (*forward)(const GpuExec& exec, const Problem& problem, int powers,
                         const float* input, const uint8_t* codes, int32_t top_exponent,
                         float* output, void* workspace);
};

// Output stationary: basic, versions 3, 5 and 6, and basic without the multiplication,
// which adds pixels up whatever the weights are: with each weight unread, and with it
// loaded but unused. Input stationary: basic, versions 1 and 2.
extern const Scheme kOutputBasic, kOutput3, kOutput5, kOutput6;
extern const Scheme kOutputUnread, kOutputUnused;
extern const Scheme kInputBasic, kInput1, kInput2;

}  // namespace capsops::studies::inq_conv

#endif  // CAPSOPS_CUDA_STUDIES_INQ_CONV_H_
