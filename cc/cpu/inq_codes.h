// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Decodes weights in vectors: integer arithmetic on codes gives the bits of floats
// (cc/launch/inq_conv.h defines the code book).
#pragma once

#include <cstdint>

#include "cc/cpu/convert.h"
#include "cc/cpu/lanes.h"

namespace capsops::CAPSOPS_ISA {

// Returns whether all codes are in the code book.
CAPSOPS_INLINE bool Fit(int64_t count, int bits, const uint8_t* codes) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = codes[i] > largest ? codes[i] : largest;
  }
  return largest <= 1 << (bits - 1);
}

// The unsigned integer type as wide as A.
template <typename A>
using Bits = Unsigned<sizeof(A)>;

// Returns the bits of the weight that a code stands for, where `top` is the top
// exponent. N is Bits<A> or a vector of these.
template <typename A, typename N>
CAPSOPS_INLINE N WeightBits(int top, N code) {
  constexpr int kMantissa = sizeof(A) == 8 ? 52 : 23;
  constexpr int kSign = 8 * sizeof(A) - 1;
  const Bits<A> exponent = top + (sizeof(A) == 8 ? 1023 : 127);
  const N size = (exponent - ((code - 1) >> 1)) << kMantissa;
  const N weight = size | (~code & 1) << kSign;
  return code == 0 ? code : weight;
}

template <typename A>
CAPSOPS_INLINE Vector<A> DecodeVector(int top, const uint8_t* codes) {
  Bits<A> wide[kLanes<A>];
  for (int lane = 0; lane < kLanes<A>; ++lane) wide[lane] = codes[lane];
  return (Vector<A>)WeightBits<A>(top, Load(wide));
}

template <typename A>
void Decode(int64_t count, int top, const uint8_t* codes, A* weights) {
  int64_t i = 0;
  for (; i + kLanes<A> <= count; i += kLanes<A>) {
    Store(weights + i, DecodeVector<A>(top, codes + i));
  }
  for (; i < count; ++i) weights[i] = BitCast<A>(WeightBits<A, Bits<A>>(top, codes[i]));
}

}  // namespace capsops::CAPSOPS_ISA
