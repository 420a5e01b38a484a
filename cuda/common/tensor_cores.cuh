// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Products of small matrices on tensor cores, accumulated in float: m16n8k4 and m16n8k8
// of TF32, m16n8k16 of the 16-bit types.
#ifndef CAPSOPS_CUDA_COMMON_TENSOR_CORES_CUH_
#define CAPSOPS_CUDA_COMMON_TENSOR_CORES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cc/launch/exec.h"

namespace capsops {

// c += a b in TF32, accumulated in float.
__device__ inline void Multiply(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c = a b.
__device__ inline void SetToProduct(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.f));
}

// c += a b of half as many columns of a.
__device__ inline void Multiply(const uint32_t (&a)[2], const uint32_t (&b)[1],
                                float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// The same in float16 and bfloat16, whose operands hold pairs.
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

// How floats become TF32 operands, of which the hardware reads 11 significant bits:
// as they are, which is exact for the 16-bit types; rounded; or split into a rounded
// number and what remains, whose products hold 22 of a float's 24 bits: less is lost
// than in adding them up. kSplitLeft is of products whose left operand is split, and
// whose right one is exact.
enum class Tf32 { kExact, kRounded, kSplit, kSplitLeft };

// Calls `then` with the precision that products of T have; `kFull` is that of float
// where TF32 is not allowed.
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

// Plans by `then` likewise, and refuses products of double.
template <typename Plan, typename T, Tf32 kFull = Tf32::kSplit, typename Then>
Plan PlanWithPrecision(const GpuExec& exec, const Then& then) {
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("it has no products of double");
  } else {
    return WithPrecision<T, kFull>(exec, then);
  }
}

// What of an operand's making can be done once for many products. The hardware cuts
// off: 0.35 to 0.71 units in the last place more, by mantissa, make that right on
// average, and leave what is TF32 already as it is.
template <Tf32 kTf32>
__device__ float Prepare(float x) {
  return kTf32 == Tf32::kRounded ? x * (1 + 0.71f * 0x1p-11f) : x;
}

template <int N, Tf32 kTf32>
struct Operand {
  uint32_t high[N], low[kTf32 == Tf32::kSplit ? N : 1];

  __device__ void Set(int n, float x) { SetPrepared(n, Prepare<kTf32>(x)); }

  // No NaN is lost, whatever its bits.
  __device__ void SetPrepared(int n, float x) {
    if constexpr (kTf32 == Tf32::kSplit) {
      high[n] = (__float_as_uint(x) + 0x1000) & 0xffffe000;
      low[n] = __float_as_uint(x - __uint_as_float(high[n]));
    } else {
      high[n] = __float_as_uint(x);
    }
  }

  // The same for numbers that may be the largest there are: those are cut off, for they
  // would be rounded to infinity.
  __device__ void SetLarge(int n, float x) {
    Set(n, x);
    if (kTf32 == Tf32::kSplit && isinf(__uint_as_float(high[n]))) {
      high[n] = __float_as_uint(x) & 0xffffe000;
      low[n] = __float_as_uint(x - __uint_as_float(high[n]));
    }
  }
};

// Sets element n of an operand to x, which Prepare() made. Where numbers are split
// floats, kTf32 is kSplit: then x may be so large that Set() would round it to
// infinity. Here the high part is rounded as Prepare() does it, but by a product that
// rounds toward zero, so it stays finite, without an instruction more. It is up to 0.71
// instead of 0.5 units off. An infinity is split into an infinity and a NaN.
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

// For what is computed from numbers that have kTf32: exactness is lost.
template <Tf32 kTf32>
constexpr Tf32 kScaled = kTf32 == Tf32::kExact ? Tf32::kSplit : kTf32;

// c += a b, to the precision of the operands.
template <Tf32 kA, Tf32 kB>
__device__ void Multiply(const Operand<4, kA>& a, const Operand<2, kB>& b,
                         float (&c)[4]) {
  if constexpr (kA == Tf32::kSplit) Multiply(a.low, b.high, c);
  if constexpr (kB == Tf32::kSplit) Multiply(a.high, b.low, c);
  Multiply(a.high, b.high, c);
}

// The same for a sum of many products. Tensor cores cut sums off instead of rounding
// them, which adds up; what is to have float's precision is added in float.
template <Tf32 kA, Tf32 kB>
__device__ void AddUp(const Operand<4, kA>& a, const Operand<2, kB>& b, float (&c)[4]) {
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

#endif  // CAPSOPS_CUDA_COMMON_TENSOR_CORES_CUH_
