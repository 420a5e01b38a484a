// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The error for codes outside the code book.
#pragma once

#include <cstdint>
#include <string>

#include "cc/launch/exec.h"
#include "cc/launch/inq_conv.h"

namespace capsops::inq_conv {

// Returns an error that names the first code outside the code book. There must be one.
inline LaunchError BadCode(const char* op, const Problem& p, const uint8_t* codes) {
  int64_t place = 0;
  while (codes[place] <= 1 << (p.bits - 1)) ++place;
  const int64_t o = place % p.out_channels, in = place / p.out_channels;
  const int64_t c = in % p.in_channels, tap = in / p.in_channels;
  return {std::string(op) + ": codes[" + std::to_string(tap / p.kernel_width) + "," +
              std::to_string(tap % p.kernel_width) + "," + std::to_string(c) + "," +
              std::to_string(o) + "] must be at most " +
              std::to_string(1 << (p.bits - 1)) + " (bits " + std::to_string(p.bits) +
              "), got " + std::to_string(codes[place]),
          Fault::kInvalidArgument};
}

}  // namespace capsops::inq_conv
