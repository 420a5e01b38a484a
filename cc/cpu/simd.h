// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Vectors as wide as the instruction set of this translation unit allows, in GCC's and
// Clang's vector extensions. Everything is inside the instruction set's own namespace:
// the linker would merge two copies of an inline function of the same name, and the
// wrong one could run on an older processor.
#ifndef CAPSOPS_CC_CPU_SIMD_H_
#define CAPSOPS_CC_CPU_SIMD_H_

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "cc/launch/round.h"

namespace capsops::CAPSOPS_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kRows = 4;  // rows of a register tile: 4 x 4 of 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
constexpr int kRows = 2;  // 2 x 4 of 16 registers
#else
constexpr int kVectorBytes = 16;
constexpr int kRows = 2;
#endif

// Inlines functions of register tiles, which are arrays of vectors. A tile would go
// through memory if the compiler did not inline them.
#define CAPSOPS_INLINE inline __attribute__((always_inline))

template <typename A>
struct VectorOf {
  typedef A type __attribute__((vector_size(kVectorBytes)));
};
template <typename A>
using Vector = typename VectorOf<A>::type;
template <typename A>
constexpr int kLanes = kVectorBytes / sizeof(A);

template <typename A>
inline Vector<A> Load(const A* from) {
  Vector<A> v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <typename A>
inline void Store(A* to, Vector<A> v) {
  std::memcpy(to, &v, sizeof(v));
}

// Stores past the caches, for results too large to stay there, so that the processor
// need not read their cache lines first. `to` must be aligned to kVectorBytes.
template <typename A>
inline void StreamStore(A* to, Vector<A> v) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)v);
#elif defined(__AVX__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)v);
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)v);
#else
  Store(to, v);
#endif
}

// Makes streamed stores visible before the caller reports that it is done.
inline void StreamFence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Returns the sum of the lanes, in a fixed order: halves are added until one is left.
template <typename A>
inline A Sum(Vector<A> v) {
  A lanes[kLanes<A>];
  std::memcpy(lanes, &v, sizeof(v));
  for (int width = kLanes<A> / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace capsops::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_SIMD_H_
