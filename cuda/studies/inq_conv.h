// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The CUDA kernels of Khandwawala, "Weight Sharing on CNN", for convolution with
// weights from the INQ code book. They compute what cc/launch/inq_conv.h defines, in
// float32, with VALID padding, for one image, and with output [1, out_channels,
// out_height, out_width]. They use the code book's first `powers` powers of two, and
// larger codes read as zero. Used by the benchmark only.
#pragma once

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
  // Returns why the program does not cover a problem, or "". Accepts unknown sizes, -1.
  std::string (*unsupported)(const Problem& problem);
  // Bytes of `workspace`, which holds the kernel matrix in the program's form.
  int64_t (*workspace)(const Problem& problem);
  // Requires 1 to kMostPowers powers, and normal numbers from 2^(top_exponent - powers
  // + 1) to 2^top_exponent.
  LaunchError (*forward)(const GpuExec& exec, const Problem& problem, int powers,
                         const float* input, const uint8_t* codes, int32_t top_exponent,
                         float* output, void* workspace);
};

// Output stationary: basic; versions 3, 5 and 6; and basic without the multiplication,
// which adds up pixels whatever the weights are, and leaves each weight either unread
// or loaded but unused. Input stationary: basic; versions 1 and 2.
extern const Scheme kOutputBasic, kOutput3, kOutput5, kOutput6;
extern const Scheme kOutputUnread, kOutputUnused;
extern const Scheme kInputBasic, kInput1, kInput2;

}  // namespace capsops::studies::inq_conv
