// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Transposes rows in memory to vectors whose lanes are rows, and back: one row of
// elements per sample becomes one vector per element, with one sample per lane.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cc/cpu/convert.h"
#include "cc/cpu/simd.h"

namespace capsops::CAPSOPS_ISA {

// The unsigned integer type of kBytes bytes.
template <int kBytes>
using Unsigned = std::conditional_t<
    kBytes == 8, uint64_t,
    std::conditional_t<kBytes == 4, uint32_t,
                       std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>;

// The integer type as wide as A, which comparisons of Vector<A> return.
template <typename A>
using Integer = std::make_signed_t<Unsigned<sizeof(A)>>;

template <int... kIndex>
using Indices = std::integer_sequence<int, kIndex...>;
template <typename A>
constexpr std::make_integer_sequence<int, kLanes<A>> kEveryLane;

// Shuffles two vectors: lane n of the result is lane from[n] of a followed by b.
#if defined(__clang__)
#define CAPSOPS_SHUFFLE(A, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CAPSOPS_SHUFFLE(A, a, b, ...) \
  __builtin_shuffle(a, b, Vector<Integer<A>>{__VA_ARGS__})
#endif

// Returns the lower half of each pair of blocks of kBit lanes: lane n of a if n lacks
// the bit kBit, and lane n - kBit of b if n has it. Like TRN1 on Arm.
template <typename A, int kBit, int... kLane>
CAPSOPS_INLINE Vector<A> TransposeLow(Vector<A> a, Vector<A> b, Indices<kLane...>) {
  return CAPSOPS_SHUFFLE(A, a, b, (kLane & kBit ? kLane - kBit + kLanes<A> : kLane)...);
}

// Returns the upper half of each pair of blocks of kBit lanes: lane n + kBit of a if n
// lacks the bit kBit, and lane n of b if n has it. Like TRN2 on Arm.
template <typename A, int kBit, int... kLane>
CAPSOPS_INLINE Vector<A> TransposeHigh(Vector<A> a, Vector<A> b, Indices<kLane...>) {
  return CAPSOPS_SHUFFLE(A, a, b, (kLane & kBit ? kLane + kLanes<A> : kLane + kBit)...);
}

// Returns lanes 0, 2, 4, ... of a and then of b, or lanes 1, 3, 5, ... if kOdd is 1.
template <typename A, int kOdd, int... kLane>
CAPSOPS_INLINE Vector<A> Deinterleave(Vector<A> a, Vector<A> b, Indices<kLane...>) {
  return CAPSOPS_SHUFFLE(A, a, b, (2 * kLane + kOdd)...);
}

// Interleaves the first halves of a and b, or the second halves if kHigh is 1, within
// each block of kBlock lanes.
template <typename A, int kHigh, int kBlock = kLanes<A>, int... kLane>
CAPSOPS_INLINE Vector<A> Interleave(Vector<A> a, Vector<A> b, Indices<kLane...>) {
  return CAPSOPS_SHUFFLE(A, a, b,
                         (kLane / kBlock * kBlock + kLane % kBlock / 2 +
                          kHigh * kBlock / 2 + kLane % 2 * kLanes<A>)...);
}

// Deals the lanes to blocks of kBlock lanes, one lane to each block in turn.
template <typename A, int kBlock, int... kLane>
CAPSOPS_INLINE Vector<A> Deal(Vector<A> v, Indices<kLane...>) {
  return CAPSOPS_SHUFFLE(A, v, v,
                         (kLane % kBlock * (kLanes<A> / kBlock) + kLane / kBlock)...);
}
#undef CAPSOPS_SHUFFLE

// Returns the sum of each group of kCount adjacent elements of kCount vectors.
template <typename A, int kCount>
CAPSOPS_INLINE Vector<A> SumAdjacent(const Vector<A> (&v)[kCount]) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    Vector<A> half[kCount / 2];
    for (int n = 0; n < kCount / 2; ++n) {
      half[n] = Deinterleave<A, 0>(v[2 * n], v[2 * n + 1], kEveryLane<A>) +
                Deinterleave<A, 1>(v[2 * n], v[2 * n + 1], kEveryLane<A>);
    }
    return SumAdjacent<A>(half);
  }
}

// Replaces v[0] by kCount vectors in which each of its lanes is repeated kCount times.
template <typename A, int kCount, int kFrom = 1>
CAPSOPS_INLINE void RepeatLanes(Vector<A> (&v)[kCount]) {
  if constexpr (kFrom < kCount) {
    for (int n = kFrom - 1; n >= 0; --n) {
      const Vector<A> a = v[n];
      v[2 * n] = Interleave<A, 0>(a, a, kEveryLane<A>);
      v[2 * n + 1] = Interleave<A, 1>(a, a, kEveryLane<A>);
    }
    RepeatLanes<A, kCount, 2 * kFrom>(v);
  }
}

// Transposes a square of vectors: lane n of row m becomes lane m of row n.
template <typename A, int kBit = kLanes<A> / 2>
CAPSOPS_INLINE void Transpose(Vector<A> (&rows)[kLanes<A>]) {
  for (int row = 0; row < kLanes<A>; ++row) {
    if (row & kBit) continue;
    const Vector<A> a = rows[row], b = rows[row + kBit];
    rows[row] = TransposeLow<A, kBit>(a, b, kEveryLane<A>);
    rows[row + kBit] = TransposeHigh<A, kBit>(a, b, kEveryLane<A>);
  }
  if constexpr (kBit > 1) Transpose<A, kBit / 2>(rows);
}

// Replaces vectors that hold consecutive rows of kCount elements by the kCount columns.
// kCount is a power of two, and at most the number of lanes.
template <typename A, int kCount>
CAPSOPS_INLINE void RowsToColumns(Vector<A> (&v)[kCount]) {
  if constexpr (kCount == kLanes<A>) {
    Transpose<A>(v);
  } else if constexpr (kCount > 1) {
    Vector<A> even[kCount / 2], odd[kCount / 2];
    for (int n = 0; n < kCount / 2; ++n) {
      even[n] = Deinterleave<A, 0>(v[2 * n], v[2 * n + 1], kEveryLane<A>);
      odd[n] = Deinterleave<A, 1>(v[2 * n], v[2 * n + 1], kEveryLane<A>);
    }
    RowsToColumns<A>(even);
    RowsToColumns<A>(odd);
    for (int n = 0; n < kCount / 2; ++n) v[2 * n] = even[n], v[2 * n + 1] = odd[n];
  }
}

// Replaces kCount columns by vectors of consecutive rows.
template <typename A, int kCount>
CAPSOPS_INLINE void ColumnsToRows(Vector<A> (&v)[kCount]) {
  if constexpr (kCount == kLanes<A>) {
    Transpose<A>(v);
  } else if constexpr (kCount > 1) {
    Vector<A> even[kCount / 2], odd[kCount / 2];
    for (int n = 0; n < kCount / 2; ++n) even[n] = v[2 * n], odd[n] = v[2 * n + 1];
    ColumnsToRows<A>(even);
    ColumnsToRows<A>(odd);
    for (int n = 0; n < kCount / 2; ++n) {
      v[2 * n] = Interleave<A, 0>(even[n], odd[n], kEveryLane<A>);
      v[2 * n + 1] = Interleave<A, 1>(even[n], odd[n], kEveryLane<A>);
    }
  }
}

// Returns the sum of the lanes of rows[n] in lane n, and overwrites the rows. Additions
// have a fixed order.
template <typename A, int kBit = kLanes<A> / 2>
CAPSOPS_INLINE Vector<A> SumLanes(Vector<A> (&rows)[kLanes<A>]) {
  for (int row = 0; row < kBit; ++row) {
    const Vector<A> a = rows[row], b = rows[row + kBit];
    rows[row] = TransposeLow<A, kBit>(a, b, kEveryLane<A>) +
                TransposeHigh<A, kBit>(a, b, kEveryLane<A>);
  }
  if constexpr (kBit > 1) {
    return SumLanes<A, kBit / 2>(rows);
  } else {
    return rows[0];
  }
}

// Return the largest lane, or the sum of the lanes (added in a fixed order), in every
// lane of the result.
template <typename A, int kBit = kLanes<A> / 2>
CAPSOPS_INLINE Vector<A> LargestLane(Vector<A> v) {
  const Vector<A> a = TransposeLow<A, kBit>(v, v, kEveryLane<A>),
                  b = TransposeHigh<A, kBit>(v, v, kEveryLane<A>);
  const Vector<A> larger = a > b ? a : b;
  if constexpr (kBit > 1) {
    return LargestLane<A, kBit / 2>(larger);
  } else {
    return larger;
  }
}
template <typename A, int kBit = kLanes<A> / 2>
CAPSOPS_INLINE Vector<A> SumOfLanes(Vector<A> v) {
  const Vector<A> sum = TransposeLow<A, kBit>(v, v, kEveryLane<A>) +
                        TransposeHigh<A, kBit>(v, v, kEveryLane<A>);
  if constexpr (kBit > 1) {
    return SumOfLanes<A, kBit / 2>(sum);
  } else {
    return sum;
  }
}

// Returns v in the first `count` lanes and zero in the others, even where v is NaN.
template <typename A, int... kLane>
CAPSOPS_INLINE Vector<A> KeepLanes(int64_t count, Vector<A> v, Indices<kLane...>) {
  const auto used = static_cast<Integer<A>>(Min(count, kLanes<A>));
  const auto kept = Vector<Integer<A>>{kLane...} < Vector<Integer<A>>{} + used;
  return (Vector<A>)((Vector<Integer<A>>)v & kept);
}
template <typename A>
inline Vector<A> KeepLanes(int64_t count, Vector<A> v) {
  return KeepLanes<A>(count, v, kEveryLane<A>);
}

// Load and store a vector of elements of type T, which are converted to and from A.
template <typename A, typename T>
inline Vector<A> LoadWide(const T* from) {
  if constexpr (std::is_same_v<T, A>) {
    return Load(from);
  } else {
    A wide[kLanes<A>];
    for (int lane = 0; lane < kLanes<A>; ++lane) wide[lane] = Widen(from[lane]);
    return Load(wide);
  }
}

template <typename A, typename T>
inline void StoreNarrow(T* to, Vector<A> v) {
  if constexpr (std::is_same_v<T, A>) {
    Store(to, v);
  } else {
    A wide[kLanes<A>];
    Store(wide, v);
    for (int lane = 0; lane < kLanes<A>; ++lane) Narrow(wide[lane], to + lane);
  }
}

// Returns the distance between the vectors of a tile of kLanes rows of kColumns
// elements, where rows are `stride` elements apart, or 0 if the tile does not consist
// of whole vectors.
template <typename A, int kColumns>
inline int64_t VectorStride(int64_t stride, int64_t rows) {
  if (rows < kLanes<A>) return 0;
  return kColumns == kLanes<A> ? stride : stride == kColumns ? kLanes<A> : 0;
}

// Transposes to[column * to_stride + lane] = from[lane * stride + column] for `columns`
// columns and the first `rows` lanes, with zeros in the other lanes. Takes kColumns
// columns at a time, then half as many at a time of the remainder, and so on.
template <int kColumns, typename T, typename A>
inline void ToLanes(const T* from, int64_t stride, int64_t rows, int64_t columns, A* to,
                    int64_t to_stride) {
  const int64_t vectors = VectorStride<A, kColumns>(stride, rows);
  for (; columns >= kColumns; columns -= kColumns) {
    Vector<A> v[kColumns];
    if (vectors > 0) {
      for (int n = 0; n < kColumns; ++n) v[n] = LoadWide<A>(from + n * vectors);
    } else {
      A numbers[kColumns * kLanes<A>] = {};
      for (int64_t row = 0; row < rows; ++row) {
        for (int n = 0; n < kColumns; ++n) {
          numbers[row * kColumns + n] = Widen(from[row * stride + n]);
        }
      }
      for (int n = 0; n < kColumns; ++n) v[n] = Load(numbers + n * kLanes<A>);
    }
    RowsToColumns<A>(v);
    for (int n = 0; n < kColumns; ++n) Store(to + n * to_stride, v[n]);
    from += kColumns;
    to += kColumns * to_stride;
  }
  if constexpr (kColumns > 1) {
    ToLanes<kColumns / 2>(from, stride, rows, columns, to, to_stride);
  }
}
template <typename T, typename A>
inline void ToLanes(const T* from, int64_t stride, int64_t rows, int64_t columns, A* to,
                    int64_t to_stride = kLanes<A>) {
  ToLanes<kLanes<A>>(from, stride, rows, columns, to, to_stride);
}

// Transposes to[lane * stride + column] = from[column * from_stride + lane] for
// `columns` columns and the first `rows` lanes.
template <int kColumns, typename T, typename A>
inline void FromLanes(const A* from, int64_t columns, int64_t rows, int64_t stride,
                      T* to, int64_t from_stride) {
  const int64_t vectors = VectorStride<A, kColumns>(stride, rows);
  for (; columns >= kColumns; columns -= kColumns) {
    Vector<A> v[kColumns];
    for (int n = 0; n < kColumns; ++n) v[n] = Load(from + n * from_stride);
    ColumnsToRows<A>(v);
    if (vectors > 0) {
      for (int n = 0; n < kColumns; ++n) StoreNarrow<A>(to + n * vectors, v[n]);
    } else {
      A numbers[kColumns * kLanes<A>];
      for (int n = 0; n < kColumns; ++n) Store(numbers + n * kLanes<A>, v[n]);
      for (int64_t row = 0; row < rows; ++row) {
        for (int n = 0; n < kColumns; ++n) {
          Narrow(numbers[row * kColumns + n], to + row * stride + n);
        }
      }
    }
    from += kColumns * from_stride;
    to += kColumns;
  }
  if constexpr (kColumns > 1) {
    FromLanes<kColumns / 2>(from, columns, rows, stride, to, from_stride);
  }
}
template <typename T, typename A>
inline void FromLanes(const A* from, int64_t columns, int64_t rows, int64_t stride,
                      T* to, int64_t from_stride = kLanes<A>) {
  FromLanes<kLanes<A>>(from, columns, rows, stride, to, from_stride);
}

}  // namespace capsops::CAPSOPS_ISA
