// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CUDA's own types for the launchers' element types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cc/launch/exec.h"

namespace capsops {

template <typename T>
struct CudaTypeOf {
  using type = T;
};
template <>
struct CudaTypeOf<Float16> {
  using type = __half;
};
template <>
struct CudaTypeOf<BFloat16> {
  using type = __nv_bfloat16;
};
// T is float, double, Float16 or BFloat16.
template <typename T>
using CudaType = typename CudaTypeOf<T>::type;

// Casts a launcher's pointer to CUDA's own type.
template <typename T>
__host__ const CudaType<T>* Native(const T* pointer) {
  return reinterpret_cast<const CudaType<T>*>(pointer);
}
template <typename T>
__host__ CudaType<T>* Native(T* pointer) {
  return reinterpret_cast<CudaType<T>*>(pointer);
}

// Converts an element to its accumulator type.
__device__ inline float Widen(float x) { return x; }
__device__ inline double Widen(double x) { return x; }
__device__ inline float Widen(__half x) { return __half2float(x); }
__device__ inline float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }

// Converts back, rounding to nearest.
__device__ inline void Narrow(float x, float* to) { *to = x; }
__device__ inline void Narrow(double x, double* to) { *to = x; }
__device__ inline void Narrow(float x, __half* to) { *to = __float2half_rn(x); }
__device__ inline void Narrow(float x, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(x);
}

// N consecutive elements, aligned for vector loads and stores of up to 16 bytes.
template <typename S, int N>
struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) Pack {
  S at[N];
};

// Narrows two numbers to a Pack.
template <typename S>
__device__ inline Pack<S, 2> NarrowPair(float first, float second) {
  Pack<S, 2> pair;
  Narrow(first, &pair.at[0]);
  Narrow(second, &pair.at[1]);
  return pair;
}

// Loads N elements as one Pack and widens them.
template <int N, typename S, typename A>
__device__ void LoadPack(const S* from, A* to) {
  const auto pack = *reinterpret_cast<const Pack<S, N>*>(from);
#pragma unroll
  for (int n = 0; n < N; ++n) to[n] = Widen(pack.at[n]);
}

// Narrows N elements and stores them as one Pack.
template <int N, typename S, typename A>
__device__ void StorePack(const A* from, S* to) {
  Pack<S, N> pack;
#pragma unroll
  for (int n = 0; n < N; ++n) Narrow(from[n], &pack.at[n]);
  *reinterpret_cast<Pack<S, N>*>(to) = pack;
}

}  // namespace capsops
