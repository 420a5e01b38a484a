// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Matrix products over planes in register tiles, for the family `planes` of
// capsule_conv.h. A plane holds, side by side in lanes, all elements of an operand or
// result with the same contraction or column index. Lanes are rows of the product, over
// several pixels and samples, so that neither few pose rows nor few columns leave lanes
// idle.
#pragma once

#include <cstdint>

#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::CAPSOPS_ISA {

// A tile of `Accumulate` has kColumns columns and up to kVectors vectors of lanes, or
// kFewColumns and up to kFewVectors. Its sums and their operands fill the registers.
#if defined(__AVX512F__)
constexpr int kColumns = 8, kVectors = 3;
constexpr int kFewColumns = 4, kFewVectors = 6;
#elif defined(__AVX__)
constexpr int kColumns = 4, kVectors = 3;
constexpr int kFewColumns = 4, kFewVectors = 3;
#else
constexpr int kColumns = 4, kVectors = 2;
constexpr int kFewColumns = 4, kFewVectors = 2;
#endif

// The planes that one tap reads, which are contiguous, and the weights that multiply
// them.
struct Run {
  int64_t planes;      // offset of its first plane in elements
  int64_t weights;     // first row in the panel of weights
  int64_t begin, end;  // lanes inside the image; planes are zero in the others
};

// Computes, for C columns and V vectors of lanes,
//   sums[c * sums_stride + lane] = sum over runs, and over the `length` planes k of
//   each, of
//     planes[run.planes + k * stride + lane] * weights[(run.weights + k) * C + c]
// and adds it to the previous `sums` if `add` is true.
template <typename A, int V, int C>
void Accumulate(const A* planes, int64_t stride, const A* weights, const Run* runs,
                int64_t count, int64_t length, bool add, A* sums, int64_t sums_stride) {
  Vector<A> sum[C][V] = {};
  for (const Run* run = runs; run < runs + count; ++run) {
    const A* from = planes + run->planes;
    const A* w = weights + run->weights * C;
#pragma GCC unroll 4
    for (int64_t k = 0; k < length; ++k, from += stride, w += C) {
      Vector<A> x[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) x[v] = Load(from + v * kLanes<A>);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[c][v] += w[c] * x[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c, sums += sums_stride) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      A* const to = sums + v * kLanes<A>;
      Store(to, add ? Load(to) + sum[c][v] : sum[c][v]);
    }
  }
}

// Accumulate for weights that may be infinite or NaN: their products with the zeros
// outside the image would be NaN. Computes `lanes` lanes from first_lane on, and adds
// only the lanes from `begin` to `end` of each run. It is slower, but gives the same
// bits if weights are finite.
template <typename A>
void AccumulateInside(const A* planes, int64_t stride, const A* weights,
                      int64_t columns, const Run* runs, int64_t count, int64_t length,
                      bool add, int64_t first_lane, int64_t lanes, A* sums,
                      int64_t sums_stride) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t lane = 0; lane < lanes; lane += kLanes<A>) {
      Vector<A> sum = {};
      for (const Run* run = runs; run < runs + count; ++run) {
        Integer<A> inside[kLanes<A>];
        for (int n = 0; n < kLanes<A>; ++n) {
          const int64_t at = first_lane + lane + n;
          inside[n] = at >= run->begin && at < run->end ? -1 : 0;
        }
        const Vector<Integer<A>> mask = Load(inside);
        const A* from = planes + run->planes + lane;
        const A* w = weights + run->weights * columns + c;
        for (int64_t k = 0; k < length; ++k, from += stride, w += columns) {
          const Vector<A> next = sum + *w * Load(from);
          sum = (Vector<A>)(((Vector<Integer<A>>)next & mask) |
                            ((Vector<Integer<A>>)sum & ~mask));
        }
      }
      A* const to = sums + c * sums_stride + lane;
      Store(to, add ? Load(to) + sum : sum);
    }
  }
}

template <typename A>
using AccumulateFunction = void (*)(const A*, int64_t, const A*, const Run*, int64_t,
                                    int64_t, bool, A*, int64_t);

// Returns Accumulate for `vectors` vectors: at most kFewVectors if kC is kFewColumns,
// and otherwise at most kVectors.
template <typename A, int kC>
AccumulateFunction<A> AccumulateOf(int64_t vectors) {
#if defined(__AVX512F__)
  if constexpr (kC == kFewColumns) {
    if (vectors == 6) return Accumulate<A, 6, kC>;
    if (vectors == 5) return Accumulate<A, 5, kC>;
    if (vectors == 4) return Accumulate<A, 4, kC>;
  }
#endif
#if defined(__AVX__)
  if (vectors == 3) return Accumulate<A, 3, kC>;
#endif
  return vectors == 2 ? Accumulate<A, 2, kC> : Accumulate<A, 1, kC>;
}

// A tile of `InnerProducts` multiplies kInnerRows planes by kInnerColumns planes.
constexpr int kInnerRows = 4;
#if defined(__AVX512F__)
constexpr int kInnerColumns = 4;
#else
constexpr int kInnerColumns = 2;
#endif
constexpr int kInnerTile = kInnerRows * kInnerColumns;

// Planes whose lanes form rows.
template <typename A>
struct Planes {
  const A* first;
  int64_t stride;  // elements from one plane to the next
  int64_t row;     // elements from one row to the next
};

// Adds one vector of terms to each inner product of a tile. With kMask, lanes of x
// outside the mask count as zero.
template <typename A, bool kMask>
CAPSOPS_INLINE void AddProducts(const A* x, int64_t x_stride, const A* y,
                                int64_t y_stride, Vector<Integer<A>> mask,
                                Vector<A> (&sum)[kInnerTile]) {
  Vector<A> columns[kInnerColumns];
#pragma GCC unroll 4
  for (int n = 0; n < kInnerColumns; ++n) columns[n] = Load(y + n * y_stride);
#pragma GCC unroll 4
  for (int k = 0; k < kInnerRows; ++k) {
    Vector<A> row = Load(x + k * x_stride);
    if constexpr (kMask) row = (Vector<A>)((Vector<Integer<A>>)row & mask);
#pragma GCC unroll 4
    for (int n = 0; n < kInnerColumns; ++n) {
      sum[k * kInnerColumns + n] += row * columns[n];
    }
  }
}

// Adds the inner product of plane k of x and plane n of y, over `rows` rows and the
// first `lanes` lanes of each, to sums[k * kInnerColumns + n]. Planes of y must hold
// zeros in the lanes after these, up to a whole vector; planes of x may hold anything.
template <typename A>
void InnerProducts(const Planes<A>& x, const Planes<A>& y, int64_t rows, int64_t lanes,
                   A* sums) {
  Vector<A> sum[kInnerTile] = {};
  const int64_t whole = lanes / kLanes<A> * kLanes<A>;
  const Vector<Integer<A>> all = ~Vector<Integer<A>>{};
  const Vector<Integer<A>> mask =
      (Vector<Integer<A>>)KeepLanes<A>(lanes - whole, (Vector<A>)all);
  for (int64_t row = 0; row < rows; ++row) {
    const A* const x_row = x.first + row * x.row;
    const A* const y_row = y.first + row * y.row;
    for (int64_t lane = 0; lane < whole; lane += kLanes<A>) {
      AddProducts<A, false>(x_row + lane, x.stride, y_row + lane, y.stride, mask, sum);
    }
    if (whole < lanes) {
      AddProducts<A, true>(x_row + whole, x.stride, y_row + whole, y.stride, mask, sum);
    }
  }
#pragma GCC unroll 8
  for (int first = 0; first < kInnerTile; first += kLanes<A>) {
    Vector<A> part[kLanes<A>];
#pragma GCC unroll 16
    for (int n = 0; n < kLanes<A>; ++n) part[n] = sum[first + n];
    Store(sums + first, Load(sums + first) + SumLanes<A>(part));
  }
}

}  // namespace capsops::CAPSOPS_ISA
