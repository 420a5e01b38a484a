// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/cpu/inq_conv.h"

#include "cc/cpu/convert.h"

namespace capsops::inq_conv::CAPSOPS_ISA {
namespace {

using capsops::CAPSOPS_ISA::BitCast;
using capsops::CAPSOPS_ISA::Narrow;
using capsops::CAPSOPS_ISA::Widen;

// 2^exponent, which is a normal number.
template <typename A>
A PowerOfTwo(int64_t exponent) {
  if constexpr (sizeof(A) == 8) {
    return BitCast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  } else {
    return BitCast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  }
}

int64_t FindBadCode(int64_t count, int bits, const uint8_t* codes) {
  const int last = 1 << (bits - 1);
  int64_t i = 0;
  while (i < count && codes[i] <= last) ++i;
  return i;
}

template <typename A>
void Decode(int64_t count, int top, const uint8_t* codes, A* weights) {
  A book[129] = {0};
  for (int k = 0; k < 64; ++k) {
    book[1 + 2 * k] = PowerOfTwo<A>(top - k);
    book[2 + 2 * k] = -book[1 + 2 * k];
  }
  for (int64_t i = 0; i < count; ++i) weights[i] = book[codes[i]];
}

template <typename T>
void WidenAll(int64_t count, const T* from, Real<T>* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = Widen(from[i]);
}

template <typename T>
void Scale(int64_t count, int64_t exponent, const Real<T>* from, T* to) {
  using A = Real<T>;
  // Three factors reach from the largest number past the smallest one and back. That
  // they are alike keeps results between them normal unless the last is far from it.
  constexpr int64_t kMost = sizeof(A) == 8 ? 2200 : 300;
  const int64_t all = exponent < -kMost ? -kMost : exponent > kMost ? kMost : exponent;
  const A first = PowerOfTwo<A>(all / 3);
  const A last = PowerOfTwo<A>(all - 2 * (all / 3));
  for (int64_t i = 0; i < count; ++i) Narrow(from[i] * first * first * last, to + i);
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {FindBadCode, Decode<Real<T>>, WidenAll<T>, Scale<T>};
}
template CpuKernels<float> Kernels();
template CpuKernels<double> Kernels();
template CpuKernels<Float16> Kernels();
template CpuKernels<BFloat16> Kernels();

}  // namespace capsops::inq_conv::CAPSOPS_ISA
