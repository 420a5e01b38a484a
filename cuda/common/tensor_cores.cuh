// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Warp-level products (mma.sync) with float accumulators, in the fragment layouts of
// the PTX manual: m16n8k4 and m16n8k8 in TF32, m16n8k16 in 16-bit types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cc/launch/exec.h"

namespace capsops {

// c += a b, m16n8k8 in TF32.
__device__ inline void Multiply(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c = a b, m16n8k8 in TF32.
__device__ inline void SetToProduct(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f));
}

// c += a b, m16n8k4 in TF32.
__device__ inline void Multiply(const uint32_t (&a)[2], const uint32_t (&b)[1],
                                float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// c += a b, m16n8k16 in float16 or bfloat16, two elements per register.
template <typename S>
__device__ void MultiplyPairs(const uint32_t (&a)[4], const uint32_t (&b)[2],
                              float (&c)[4]);
template <>
__device__ inline void MultiplyPairs<__half>(const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ inline void MultiplyPairs<__nv_bfloat16>(const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2],
                                                    float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The precision of TF32 products. The hardware reads 11 significant bits of a float.
// - kExact: operands are used as they are; 16-bit types lose nothing.
// - kRounded: operands are rounded to TF32.
// - kSplit: operands are split into a rounded part and a remainder. Three products
//   keep 22 of the 24 bits, an error below that of float summation.
// - kSplitLeft: only the left operand is split; the right one is exact.
enum class Tf32 { kExact, kRounded, kSplit, kSplitLeft };

// Calls `then` with the precision for products of T: for float, kRounded if TF32 is
// allowed, else kFull.
template <typename T, Tf32 kFull = Tf32::kSplit, typename Then>
auto WithPrecision(const GpuExec& exec, const Then& then) {
  if constexpr (!std::is_same_v<T, float>) {
    return then(std::integral_constant<Tf32, Tf32::kExact>());
  } else if (exec.tf32) {
    return then(std::integral_constant<Tf32, Tf32::kRounded>());
  } else {
    return then(std::integral_constant<Tf32, kFull>());
  }
}

// Returns then(precision), a plan, or a refusal for double.
template <typename Plan, typename T, Tf32 kFull = Tf32::kSplit, typename Then>
Plan PlanWithPrecision(const GpuExec& exec, const Then& then) {
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("it has no products of double");
  } else {
    return WithPrecision<T, kFull>(exec, then);
  }
}

// Scales a float so that the hardware's truncation to TF32 becomes rounding on average:
// it adds 0.35 to 0.71 units in the last place, depending on the mantissa, and leaves
// numbers that are already TF32 unchanged. This can be done once for many products.
template <Tf32 kTf32>
__device__ float Prepare(float x) {
  return kTf32 == Tf32::kRounded ? x * (1 + 0.71f * 0x1p-11f) : x;
}

// N elements of a fragment; `low` holds the remainders of split floats.
template <int N, Tf32 kTf32>
struct Operand {
  uint32_t high[N], low[kTf32 == Tf32::kSplit ? N : 1];

  __device__ void Set(int n, float x) { SetPrepared(n, Prepare<kTf32>(x)); }

  // Sets element n to a prepared number. If it is split, adding 0x1000 rounds the high
  // part to the nearest TF32. The high part of a NaN may become a number, but its low
  // part is NaN.
  __device__ void SetPrepared(int n, float x) {
    if constexpr (kTf32 == Tf32::kSplit) {
      high[n] = (__float_as_uint(x) + 0x1000) & 0xffffe000;
      low[n] = __float_as_uint(x - __uint_as_float(high[n]));
    } else {
      high[n] = __float_as_uint(x);
    }
  }

  // Like Set, but truncates numbers so large that they would round to infinity.
  __device__ void SetWithoutOverflow(int n, float x) {
    Set(n, x);
    if (kTf32 == Tf32::kSplit && isinf(__uint_as_float(high[n]))) {
      high[n] = __float_as_uint(x) & 0xffffe000;
      low[n] = __float_as_uint(x - __uint_as_float(high[n]));
    }
  }
};

// Sets element n to x, a result of Prepare(). If kTf32 is kSplit, x is instead a float
// to split, which may be too large for Set(). Its high part is rounded by a
// multiplication toward zero: it stays finite at no extra cost, but is off by up to
// 0.71 units instead of 0.5. An infinity becomes an infinity and a NaN.
template <Tf32 kTf32, int N, Tf32 kOf>
__device__ void SetFinite(int n, float x, Operand<N, kOf>* operand) {
  if constexpr (kTf32 == Tf32::kSplit) {
    const float rounded = __fmul_rz(x, 1 + 0.71f * 0x1p-11f);
    operand->high[n] = __float_as_uint(rounded) & 0xffffe000;
    operand->low[n] = __float_as_uint(x - __uint_as_float(operand->high[n]));
  } else {
    operand->SetPrepared(n, x);
  }
}

// The precision for values computed from kTf32 operands. They are inexact in TF32 even
// if the operands are exact.
template <Tf32 kTf32>
constexpr Tf32 kScaled = kTf32 == Tf32::kExact ? Tf32::kSplit : kTf32;

// c += a b at the precision of the operands. The product of two remainders is too small
// to matter.
template <Tf32 kA, Tf32 kB>
__device__ void Multiply(const Operand<4, kA>& a, const Operand<2, kB>& b,
                         float (&c)[4]) {
  if constexpr (kA == Tf32::kSplit) Multiply(a.low, b.high, c);
  if constexpr (kB == Tf32::kSplit) Multiply(a.high, b.low, c);
  Multiply(a.high, b.high, c);
}

// c += a b as one of many terms. Tensor cores truncate when they add, an error that
// accumulates, so at float precision the addition to c is done in float.
template <Tf32 kA, Tf32 kB>
__device__ void Accumulate(const Operand<4, kA>& a, const Operand<2, kB>& b,
                           float (&c)[4]) {
  if constexpr (kA == Tf32::kSplit) {
    float product[4] = {};
    Multiply(a, b, product);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += product[e];
  } else {
    Multiply(a, b, c);
  }
}

}  // namespace capsops
