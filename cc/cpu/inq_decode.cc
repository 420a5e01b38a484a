// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Decodes weights that are zero or powers of two, a vector of neighboring codes at a
// time.
#include "cc/cpu/inq_decode.h"

#include <cstring>

#include "cc/cpu/convert.h"
#include "cc/cpu/inq_codes.h"
#include "cc/cpu/lanes.h"

namespace capsops::inq_decode::CAPSOPS_ISA {
namespace {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Return scale * weight(code), which is zero for code 0 even if the scale is infinite.
template <typename A>
CAPSOPS_INLINE A Scaled(uint8_t code, A scale) {
  return code == 0 ? A{0} : BitCast<A>(WeightBits<A, Bits<A>>(0, code)) * scale;
}
template <typename A>
CAPSOPS_INLINE Vector<A> Scaled(const uint8_t* codes, Vector<A> scale) {
  const Vector<A> weight = DecodeVector<A>(0, codes);
  return weight == 0 ? weight : weight * scale;
}

using Bytes = Vector<uint8_t>;

// A code book in tables for LookUp. Byte n of each 16-byte block is for code n + 1:
// code 0 is past the tables, and so gives 0.
struct Tables {
  Bytes low, high;  // the two upper bytes of a weight
};

// Returns whether the code book fits in tables: it has at most 16 codes besides 0, and
// the bits of weights below the upper 16 are zero, as they are if no weight is
// subnormal.
template <typename T>
bool FillTables(int bits, Accumulator<T> scale, Tables* tables) {
  const int last = 1 << (bits - 1);
  if (last > 16) return false;
  for (int lane = 0; lane < kVectorBytes; ++lane) {
    T weight;
    Narrow(Scaled<Accumulator<T>>(lane % last + 1, scale), &weight);
    constexpr int kLower = 8 * sizeof(T) - 16;
    const auto weight_bits = BitCast<Unsigned<sizeof(T)>>(weight);
    if (weight_bits >> kLower << kLower != weight_bits) return false;
    tables->low[lane] = weight_bits >> kLower;
    tables->high[lane] = weight_bits >> (kLower + 8);
  }
  return true;
}

// Joins parts to the upper bits of numbers whose other bits are zero, and stores these.
// Parts are in the order that Deal returns.
template <typename Part, typename T>
CAPSOPS_INLINE void StoreUpper(T* to, Vector<Part> low, Vector<Part> high) {
  using Whole = Unsigned<2 * sizeof(Part)>;
  constexpr int kBlock = 16 / sizeof(Part);
  const Vector<Whole> wholes[] = {
      (Vector<Whole>)Interleave<Part, 0, kBlock>(low, high, kEveryLane<Part>),
      (Vector<Whole>)Interleave<Part, 1, kBlock>(low, high, kEveryLane<Part>)};
  for (const Vector<Whole>& whole : wholes) {
    if constexpr (sizeof(Whole) == sizeof(T)) {
      std::memcpy(to, &whole, sizeof(whole));
    } else {
      StoreUpper<Whole>(to, Vector<Whole>{}, whole);
    }
    to += kLanes<Whole>;
  }
}

// Decodes codes of one column. Returns whether all of them are in the code book.
template <typename T>
bool DecodeColumn(int64_t count, int bits, const uint8_t* codes, Accumulator<T> scale,
                  T* weights) {
  using A = Accumulator<T>;
  // As many codes as a 16-byte block has weights. StoreUpper works within such blocks.
  using Group = Unsigned<16 / sizeof(T)>;
  int64_t i = 0;
  Bytes largest = {};
  Tables tables;
  if (count >= kVectorBytes && FillTables<T>(bits, scale, &tables)) {
    for (; i + kVectorBytes <= count; i += kVectorBytes) {
      const Bytes code = Load(codes + i);
      largest = code > largest ? code : largest;
      const Bytes n =
          (Bytes)Deal<Group, sizeof(T)>((Vector<Group>)code, kEveryLane<Group>) - 1;
      StoreUpper<uint8_t>(weights + i, LookUp(tables.low, n), LookUp(tables.high, n));
    }
  }
  const bool fit = Fit(count - i, bits, codes + i);
  for (; i + kLanes<A> <= count; i += kLanes<A>) {
    StoreNarrow<A>(weights + i, Scaled<A>(codes + i, Vector<A>{} + scale));
  }
  for (; i < count; ++i) Narrow(Scaled<A>(codes[i], scale), weights + i);
  uint8_t bytes[kVectorBytes];
  Store(bytes, largest);
  return fit && Fit(kVectorBytes, bits, bytes);
}

// Decodes one code of each column.
template <typename T>
void DecodeRow(int64_t count, const uint8_t* codes, const Accumulator<T>* scales,
               T* weights) {
  using A = Accumulator<T>;
  int64_t i = 0;
  for (; i + kLanes<A> <= count; i += kLanes<A>) {
    StoreNarrow<A>(weights + i, Scaled<A>(codes + i, Load(scales + i)));
  }
  for (; i < count; ++i) Narrow(Scaled<A>(codes[i], scales[i]), weights + i);
}

template <typename T>
bool Decode(const Problem& p, int64_t begin, int64_t end, const uint8_t* codes,
            const Accumulator<T>* scales, T* weights) {
  if (p.columns == 1) {
    return DecodeColumn(end - begin, p.bits, codes + begin, scales[0], weights + begin);
  }
  int64_t column = begin % p.columns;
  for (int64_t n = begin; n < end;) {
    const int64_t count = Min(p.columns - column, end - n);
    DecodeRow(count, codes + n, scales + column, weights + n);
    n += count;
    column = 0;
  }
  return Fit(end - begin, p.bits, codes + begin);
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {Decode<T>};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::inq_decode::CAPSOPS_ISA
