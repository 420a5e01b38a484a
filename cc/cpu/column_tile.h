// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Matrix products in register tiles whose lanes are columns of the product. A tile has
// a pointer to each row of the left operand, so rows may be anywhere in memory and need
// not be copied.
#pragma once

#include <cstdint>

#include "cc/cpu/simd.h"

namespace capsops::CAPSOPS_ISA {

// A tile has at most kTileRows rows, and one or two vectors of columns. Its sums and
// their operands fill the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 14;
#else
constexpr int kTileRows = 6;
#endif
// kTileRows, rounded up to whole vectors of pointers.
constexpr int kTileSlots =
    (kTileRows + kLanes<uint64_t> - 1) / kLanes<uint64_t> * kLanes<uint64_t>;

// The left operand of a tile. A row consists of runs of `length` elements: run r of row
// n begins `skip` elements after from[r * kTileSlots + n], and is multiplied by the
// weights from row at[r] on.
template <typename A>
struct RunRows {
  const A* const* from;
  const int64_t* at;
  int64_t runs, skip, length;
};

// Computes the products of P rows with V vectors of columns,
//   to[n][column + lane] = sum over runs r and k < length of
//     from[r * kTileSlots + n][skip + k] * weights[(at[r] + k) * V * kLanes + lane]
// and adds them to the previous `to` if `add` is true. Each term prefetches one
// address: `ahead`, then `step` elements further, and so on. Prefetching only some
// terms would need a branch in the inner loop, which would be mispredicted.
template <typename A, int V, int P>
void AddRows(const RunRows<A>& rows, const A* weights, const A* ahead, int64_t step,
             bool add, A* const* to, int64_t column) {
  Vector<A> sum[P][V] = {};
  for (int64_t r = 0; r < rows.runs; ++r) {
    const A* const* const from = rows.from + r * kTileSlots;
    const A* w = weights + rows.at[r] * V * kLanes<A>;
    const int64_t end = rows.skip + rows.length;
    for (int64_t k = rows.skip; k < end; ++k, w += V * kLanes<A>) {
      __builtin_prefetch(ahead);
      ahead += step;
      Vector<A> numbers[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) numbers[v] = Load(w + v * kLanes<A>);
#pragma GCC unroll 16
      for (int n = 0; n < P; ++n) {
        const A x = from[n][k];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[n][v] += x * numbers[v];
      }
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < P; ++n) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      A* const place = to[n] + column + v * kLanes<A>;
      Store(place, add ? Load(place) + sum[n][v] : sum[n][v]);
    }
  }
}

// Computes outer products of P scalars with V vectors,
//   to[n * stride + lane] = sum over i < count of
//     left[i][first_left + n] * right[i][first_right + lane]
// and adds them to the previous `to` if `add` is true. Prefetches the scalars that the
// next tile of rows reads.
template <typename A, int V, int P>
void AddOuter(const A* const* left, const A* const* right, int64_t first_left,
              int64_t first_right, int64_t count, bool add, A* to, int64_t stride) {
  Vector<A> sum[P][V] = {};
  for (int64_t i = 0; i < count; ++i) {
    const A* const x = left[i] + first_left;
    const A* const y = right[i] + first_right;
    __builtin_prefetch(x + 2 * P - 1);
    Vector<A> column[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) column[v] = Load(y + v * kLanes<A>);
#pragma GCC unroll 16
    for (int n = 0; n < P; ++n) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[n][v] += x[n] * column[v];
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < P; ++n, to += stride) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      A* const place = to + v * kLanes<A>;
      Store(place, add ? Load(place) + sum[n][v] : sum[n][v]);
    }
  }
}

template <typename A>
using AddRowsFunction = void (*)(const RunRows<A>&, const A*, const A*, int64_t, bool,
                                 A* const*, int64_t);
template <typename A>
using AddOuterFunction = void (*)(const A* const*, const A* const*, int64_t, int64_t,
                                  int64_t, bool, A*, int64_t);

// Return AddRows and AddOuter for V vectors and `rows` rows, from 1 to P.
template <typename A, int V, int P = kTileRows>
AddRowsFunction<A> AddRowsOf(int64_t rows) {
  if constexpr (P > 1) {
    if (rows < P) return AddRowsOf<A, V, P - 1>(rows);
  }
  return AddRows<A, V, P>;
}
template <typename A, int V, int P = kTileRows>
AddOuterFunction<A> AddOuterOf(int64_t rows) {
  if constexpr (P > 1) {
    if (rows < P) return AddOuterOf<A, V, P - 1>(rows);
  }
  return AddOuter<A, V, P>;
}

}  // namespace capsops::CAPSOPS_ISA
