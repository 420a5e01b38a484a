// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Vectors as wide as this translation unit's instruction set allows, in the vector
// extensions of GCC and Clang. Everything is in the instruction set's own namespace:
// the linker would merge copies of an inline function with the same name, and an older
// processor could run the wrong one.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "cc/launch/round.h"

namespace capsops::CAPSOPS_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kRows = 4;  // rows per register tile: 4 x 4 sums in 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
constexpr int kRows = 2;  // 2 x 4 sums in 16 registers
#else
constexpr int kVectorBytes = 16;
constexpr int kRows = 2;
#endif

// Forces inlining of functions on register tiles, which are arrays of vectors.
// Otherwise tiles would go through memory.
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

// Stores without going through the caches, for results too large to stay there. The
// processor then need not read the cache lines first. `to` must be aligned to
// kVectorBytes.
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

// Makes streaming stores visible before the task completes.
inline void StreamFence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Returns the sum of the lanes, added in a fixed order by repeated halving.
template <typename A>
inline A Sum(Vector<A> v) {
  A lanes[kLanes<A>];
  std::memcpy(lanes, &v, sizeof(v));
  for (int width = kLanes<A> / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Returns the square root of each lane. This needs intrinsics: GCC has no vector
// builtin, and does not vectorize a loop over sqrt, because sqrt may set errno.
template <typename A>
inline Vector<A> SquareRoot(Vector<A> v) {
#if defined(__AVX512F__)
  // Masks that select all lanes avoid false warnings of GCC 12 about _mm512_sqrt_ps.
  if constexpr (sizeof(A) == 4) return (Vector<A>)_mm512_maskz_sqrt_ps(-1, (__m512)v);
  if constexpr (sizeof(A) == 8) return (Vector<A>)_mm512_maskz_sqrt_pd(-1, (__m512d)v);
#elif defined(__AVX__)
  if constexpr (sizeof(A) == 4) return (Vector<A>)_mm256_sqrt_ps((__m256)v);
  if constexpr (sizeof(A) == 8) return (Vector<A>)_mm256_sqrt_pd((__m256d)v);
#elif defined(__SSE2__)
  if constexpr (sizeof(A) == 4) return (Vector<A>)_mm_sqrt_ps((__m128)v);
  if constexpr (sizeof(A) == 8) return (Vector<A>)_mm_sqrt_pd((__m128d)v);
#else
  for (int lane = 0; lane < kLanes<A>; ++lane) {
    if constexpr (sizeof(A) == 4) v[lane] = __builtin_sqrtf(v[lane]);
    if constexpr (sizeof(A) == 8) v[lane] = __builtin_sqrt(v[lane]);
  }
  return v;
#endif
}

// Returns table[n % 16] for each byte n that is less than 128, and 0 for other bytes.
// Every block of 16 bytes must hold the same table.
inline Vector<uint8_t> LookUp(Vector<uint8_t> table, Vector<uint8_t> n) {
#if defined(__AVX512F__)
  return (Vector<uint8_t>)_mm512_shuffle_epi8((__m512i)table, (__m512i)n);
#elif defined(__AVX__)
  return (Vector<uint8_t>)_mm256_shuffle_epi8((__m256i)table, (__m256i)n);
#elif defined(__SSSE3__)
  return (Vector<uint8_t>)_mm_shuffle_epi8((__m128i)table, (__m128i)n);
#else
  for (int lane = 0; lane < kVectorBytes; ++lane) {
    n[lane] = n[lane] < 128 ? table[n[lane] % 16] : 0;
  }
  return n;
#endif
}

// Whether a comparison of vectors, such as `a > b`, holds for any lane.
template <typename Mask>
inline bool AnyLane(Mask mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX__)
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)mask) != 0;
#else
  bool any = false;
  for (size_t lane = 0; lane < sizeof(mask) / sizeof(mask[0]); ++lane) {
    any |= mask[lane] != 0;
  }
  return any;
#endif
}

// An integer constant as a type, which a generic lambda can take as an argument.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace capsops::CAPSOPS_ISA
