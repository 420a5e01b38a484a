// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Planners of ops on codes share the powers of two, and the error for codes outside the
// code book.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/launch/exec.h"
#include "cc/launch/inq_decode.h"

namespace capsops {

// Returns 2^n as an A; it is infinity or zero if it is not a normal double.
template <typename A>
A PowerOfTwo(int64_t n) {
  const int64_t bits = inq_decode::PowerOfTwoBits(n);
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return static_cast<A>(power);
}

// Returns an error that names the first of the codes of shape `shape` that is outside
// the code book. There must be one.
inline LaunchError BadCode(const char* op, const std::vector<int64_t>& shape,
                           int64_t bits, const uint8_t* codes) {
  const int64_t last = int64_t{1} << (bits - 1);
  int64_t place = 0;
  while (codes[place] <= last) ++place;
  std::string index, code = std::to_string(codes[place]);
  for (size_t axis = shape.size(); axis-- > 0; place /= shape[axis]) {
    index = std::to_string(place % shape[axis]) + (index.empty() ? "" : ",") + index;
  }
  return {std::string(op) + ": codes[" + index + "] must be at most " +
              std::to_string(last) + " (bits " + std::to_string(bits) + "), got " +
              code,
          Fault::kInvalidArgument};
}

}  // namespace capsops
