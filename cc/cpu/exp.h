// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The exponential of a vector, to about one unit in the last place.
#pragma once

#include <cstdint>

#include "cc/cpu/simd.h"

namespace capsops::CAPSOPS_ISA {

// Adding kRound to a number rounds it to an integer, which is then in the low bits of
// the sum; subtracting kRound again leaves the integer. ln 2 is split into two parts;
// the first has so few bits that its products with small integers are exact. For x
// below kLeast, e^x is smaller than the smallest normal number.
template <typename A>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Bits = uint32_t;
  static constexpr int kMantissaBits = 23, kBias = 127, kDegree = 7;
  static constexpr float kRound = 0x1.8p23f, kLeast = -0x1.5d589ep6f;
  static constexpr float kLn2High = 0x1.63p-1f, kLn2Low = -0x1.bd0106p-13f;
};
template <>
struct ExpConstants<double> {
  using Bits = uint64_t;
  static constexpr int kMantissaBits = 52, kBias = 1023, kDegree = 13;
  static constexpr double kRound = 0x1.8p52, kLeast = -0x1.6232bdd7abcd2p9;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
};

// Returns e^x for x <= 0, as 2^n e^r with |r| <= ln 2 / 2 and e^r from its Taylor
// series. NaN stays NaN; a result that would be subnormal is 0.
template <typename A>
CAPSOPS_INLINE Vector<A> Exp(Vector<A> x) {
  using Constants = ExpConstants<A>;
  using Bits = Vector<typename Constants::Bits>;
  constexpr A kLog2E = 0x1.71547652b82fep0;
  constexpr A kInverseFactorials[] = {1.,
                                      1.,
                                      1. / 2,
                                      1. / 6,
                                      1. / 24,
                                      1. / 120,
                                      1. / 720,
                                      1. / 5040,
                                      1. / 40320,
                                      1. / 362880,
                                      1. / 3628800,
                                      1. / 39916800,
                                      1. / 479001600,
                                      1. / 6227020800};
  const Vector<A> rounded = x * kLog2E + Constants::kRound;
  const Vector<A> n = rounded - Constants::kRound;
  const Vector<A> r = x - n * Constants::kLn2High - n * Constants::kLn2Low;
  Vector<A> series = Vector<A>{} + kInverseFactorials[Constants::kDegree];
  for (int term = Constants::kDegree - 1; term >= 0; --term) {
    series = series * r + kInverseFactorials[term];
  }
  const Bits power = ((Bits)rounded + Constants::kBias) << Constants::kMantissaBits;
  return x < Constants::kLeast ? Vector<A>{} : series * (Vector<A>)power;
}

}  // namespace capsops::CAPSOPS_ISA
