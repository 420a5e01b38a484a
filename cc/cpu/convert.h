// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Conversions between storage types and compute types, in loops that compilers
// vectorize. They round to nearest even and preserve subnormals, infinities and NaN,
// even if the thread flushes float32 subnormals to zero.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/launch/exec.h"

namespace capsops::CAPSOPS_ISA {

template <typename To, typename From>
inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float Widen(float x) { return x; }
inline double Widen(double x) { return x; }
inline float Widen(BFloat16 x) {
  return BitCast<float>(static_cast<uint32_t>(x.bits) << 16);
}
// Computes the subnormal, the normal and the special result, and selects one, so that
// loops have no branches.
inline float Widen(Float16 x) {
  constexpr uint32_t kMinNormal = 0x38800000;  // 2^-14 as float bits
  constexpr uint32_t kInfinity = 0x7f800000;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  // A subnormal equals its mantissa with an implicit 1, minus that 1.
  const float subnormal =
      BitCast<float>(magnitude + kMinNormal) - BitCast<float>(kMinNormal);
  const uint32_t normal = magnitude + 0x38000000;  // exponent bias 15 to 127
  const uint32_t special = magnitude | kInfinity;
  const uint32_t bits = magnitude < 0x00800000   ? BitCast<uint32_t>(subnormal)
                        : magnitude < 0x0f800000 ? normal
                                                 : special;
  return BitCast<float>(sign | bits);
}

inline void Narrow(float x, float* to) { *to = x; }
inline void Narrow(double x, double* to) { *to = x; }
inline void Narrow(float x, BFloat16* to) {
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  to->bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}
inline void Narrow(float x, Float16* to) {
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Adding 0.5 leaves the mantissa in units of 2^-24, the smallest subnormal.
  const uint32_t subnormal =
      BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t normal =
      (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  const uint32_t half = magnitude > 0x7f800000    ? 0x7e00     // NaN
                        : magnitude >= 0x477ff000 ? 0x7c00     // 65520 and up
                        : magnitude < 0x38800000  ? subnormal  // under 2^-14
                                                  : normal;
  to->bits = static_cast<uint16_t>(sign | half);
}

// Returns the elements as type A: in place if T is A, else converted to `copy`.
template <typename T, typename A>
const A* Widened(const T* from, int64_t count, A* copy) {
  if constexpr (std::is_same_v<T, A>) {
    return from;
  } else {
    for (int64_t n = 0; n < count; ++n) copy[n] = Widen(from[n]);
    return copy;
  }
}

}  // namespace capsops::CAPSOPS_ISA
