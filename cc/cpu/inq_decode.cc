// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Decodes weights that are zero or powers of two, a vector of neighboring codes at a
// time.
#include "cc/cpu/inq_decode.h"

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

// Decodes codes of one column.
template <typename T>
void DecodeColumn(int64_t count, const uint8_t* codes, Accumulator<T> scale,
                  T* weights) {
  using A = Accumulator<T>;
  int64_t i = 0;
  for (; i + kLanes<A> <= count; i += kLanes<A>) {
    StoreNarrow<A>(weights + i, Scaled<A>(codes + i, Vector<A>{} + scale));
  }
  for (; i < count; ++i) Narrow(Scaled<A>(codes[i], scale), weights + i);
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
    DecodeColumn(end - begin, codes + begin, scales[0], weights + begin);
  } else {
    for (int64_t n = begin; n < end;) {
      const int64_t column = n % p.columns, count = Min(p.columns - column, end - n);
      DecodeRow(count, codes + n, scales + column, weights + n);
      n += count;
    }
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
