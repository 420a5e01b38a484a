// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Integer products of 32-bit lanes that hold several terms, and the packing of weights
// into such lanes. The packed weights of a block of terms and a panel of output
// channels begin with the sum of each channel's weights. Steps follow, which have one
// 32-bit lane per channel and hold two terms of 16 bits, or four of 8 bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/inq_conv_int8.h"
#include "cc/cpu/simd.h"

namespace capsops::inq_conv_int8::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Sums are unsigned, because partial ones may wrap around; whole ones fit in int32.
using Sums = Vector<uint32_t>;
constexpr int64_t kPanelLanes = 2 * kLanes<uint32_t>;

CAPSOPS_INLINE Sums LoadSums(const char* from) {
  Sums v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

constexpr int64_t TermBytes(Product product) {
  return product == Product::kDotBytes ? 1 : 2;
}

// Returns the sums plus the products of the terms of each lane. Terms of 8 bits are
// unsigned, and their weights are signed. VNNI is not part of x86-64-v4, so compilers
// offer no intrinsics for it here.
template <Product kProduct>
CAPSOPS_INLINE Sums MultiplyAdd(Sums sums, Sums terms, Sums weights) {
#if defined(__AVX512BW__)
  if constexpr (kProduct == Product::kDotBytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(terms), "v"(weights));
    return sums;
  } else if constexpr (kProduct == Product::kDotWords) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(terms), "v"(weights));
    return sums;
  }
  return sums + (Sums)_mm512_madd_epi16((__m512i)terms, (__m512i)weights);
#elif defined(__AVX2__)
  return sums + (Sums)_mm256_madd_epi16((__m256i)terms, (__m256i)weights);
#elif defined(__SSE2__)
  return sums + (Sums)_mm_madd_epi16((__m128i)terms, (__m128i)weights);
#else
  using Signed = Vector<int32_t>;
  const Signed low = ((Signed)(terms << 16) >> 16) * ((Signed)(weights << 16) >> 16);
  const Signed high = ((Signed)terms >> 16) * ((Signed)weights >> 16);
  return sums + (Sums)low + (Sums)high;
#endif
}

// Decodes the weights of terms. Codes outside the code book give arbitrary numbers.
template <Product kProduct>
class Decoder {
 public:
  explicit Decoder(int64_t bits) {
    const int levels = 1 << (bits - 2);
    for (int i = 0; i < kVectorBytes; ++i) {
      const int code = i % 16;
      if (code == 0 || code > 2 * levels) continue;
      const int size = 1 << (levels - 1 - (code - 1) / 2);
      const bool is_negative = TermBytes(kProduct) == 1 && code % 2 == 0;
      table_[i] = static_cast<uint8_t>(is_negative ? -size : size);
    }
  }

  CAPSOPS_INLINE Sums operator()(Sums codes) const {
    const Sums bytes = (Sums)LookUp(table_, (Vector<uint8_t>)codes);
    if constexpr (TermBytes(kProduct) == 1) return bytes;
    // Code 16, the last one of 5 bits, means -1 but lies beyond the table, which gives
    // 0 for it. The shift supplies its magnitude.
    using Words = Vector<int16_t>;
    const Words words = (Words)codes;
    const Words size = (Words)bytes | words >> 4;
    const Words sign = (words & 1) - 1;
    return (Sums)((size ^ sign) - sign);
  }

 private:
  // The weight of 8 bits, or the magnitude of the weight of 16 bits, of each code.
  Vector<uint8_t> table_ = {};
};

// Loads the codes of kTerms terms, packed into one lane for each channel. Only the
// first `terms` terms and `channels` channels exist; the codes of others are zero.
template <int64_t kTerms>
CAPSOPS_INLINE Sums LoadCodes(const uint8_t* codes, int64_t stride, int64_t terms,
                              int64_t channels) {
  uint8_t few[kTerms][kLanes<uint32_t>];
  if (terms < kTerms || channels < kLanes<uint32_t>) {
    for (int64_t t = 0; t < kTerms; ++t) {
      for (int64_t i = 0; i < kLanes<uint32_t>; ++i) {
        few[t][i] = t < terms && i < channels ? codes[t * stride + i] : 0;
      }
    }
    codes = few[0];
    stride = kLanes<uint32_t>;
  }
  Sums lanes = {};
#pragma GCC unroll 4
  for (int64_t t = 0; t < kTerms; ++t, codes += stride) {
    uint32_t wide[kLanes<uint32_t>];
    for (int lane = 0; lane < kLanes<uint32_t>; ++lane) wide[lane] = codes[lane];
    lanes |= Load(wide) << t * 32 / kTerms;
  }
  return lanes;
}

// Packs block task / panels of panel task % panels. Returns whether all of its codes
// are in the code book.
template <Product kProduct>
bool PackPanel(const Problem& p, const Division& d, int64_t task, const uint8_t* codes,
               char* packed) {
  constexpr int64_t kTerms = 4 / TermBytes(kProduct);  // per step
  constexpr uint32_t kOnes = kTerms == 4 ? 0x01010101 : 0x00010001;
  const Decoder<kProduct> decode(p.bits);
  const int64_t block = task / d.panels * d.depth;
  const int64_t channel = task % d.panels * kPanelLanes;
  packed += task * d.panel;
  Vector<uint8_t> largest = {};
  Sums sums[2] = {};
  char* to = packed + 2 * kVectorBytes;
  for (int64_t step = 0; step < d.depth; step += kTerms) {
    const int64_t term = block + step;
    const int64_t terms = Min(Terms(p) - term, kTerms);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v, to += kVectorBytes) {
      const int64_t first = channel + v * kLanes<uint32_t>;
      const Sums lanes =
          LoadCodes<kTerms>(codes + term * p.out_channels + first, p.out_channels,
                            terms, p.out_channels - first);
      largest = (Vector<uint8_t>)lanes > largest ? (Vector<uint8_t>)lanes : largest;
      const Sums weights = decode(lanes);
      sums[v] = MultiplyAdd<kProduct>(sums[v], Sums{} + kOnes, weights);
      std::memcpy(to, &weights, sizeof(weights));
    }
  }
  std::memcpy(packed, sums, sizeof(sums));
  bool fit = true;
  for (int i = 0; i < kVectorBytes; ++i) fit &= largest[i] <= 1 << (p.bits - 1);
  return fit;
}

}  // namespace capsops::inq_conv_int8::CAPSOPS_ISA
