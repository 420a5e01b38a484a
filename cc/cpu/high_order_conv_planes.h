// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies a row of pixels of a tensor, of any layout and type, to planes and back. Each
// channel (or tap) has a plane, in which neighboring pixels are contiguous, so that
// lanes are pixels.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/convert.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::high_order_conv::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// A row of neighboring pixels with some columns (channels or taps). Column c of pixel x
// is at data[c * column_stride + x * pixel_stride].
template <typename T>
struct PixelRow {
  T* data;
  int64_t column_stride, pixel_stride;
  T* end;  // end of the tensor: nothing is read from there on
};

// Returns how many pixels go through the staging buffer at a time: many if there are
// few `columns`, so that streaming stores are long and contiguous.
template <typename A>
int64_t StagedPixels(int64_t columns) {
  return Max(RoundUp(Min(64, 4096 / Max(columns, 1)), kLanes<A>), kLanes<A>);
}
// Returns a size of the staging buffer that suffices for up to `columns` columns. It
// has room for the pixels that StagedPixels adds when it rounds up, and for the vector
// that FromPlanes may write past the end.
template <typename A>
int64_t StagingSize(int64_t columns) {
  return Min(64 * columns, 4096) + kLanes<A> * (columns + 1);
}

// Transposes to[c * plane + lane] = from[lane * stride + c] for c < keep <= kMost, with
// zeros in the lanes from `rows` on. Reads whole vectors.
template <typename A, int kMost, bool kWhole>
CAPSOPS_INLINE void TileToPlanes(const A* from, int64_t stride, int64_t rows,
                                 int64_t keep, A* to, int64_t plane) {
  Vector<A> tile[kLanes<A>];
#pragma GCC unroll 16
  for (int n = 0; n < kLanes<A>; ++n) {
    tile[n] = kWhole || n < rows ? Load(from + n * stride) : Vector<A>{};
  }
  Transpose<A>(tile);
#pragma GCC unroll 16
  for (int n = 0; n < kMost; ++n) {
    if (n < keep) Store(to + n * plane, tile[n]);
  }
}

// TileToPlanes for any number of columns. The last tile of columns overlaps the one
// before if it would be incomplete.
template <typename A>
void ToPlanes(const A* from, int64_t stride, int64_t rows, int64_t columns, A* to,
              int64_t plane) {
  constexpr int kFew = kLanes<A> < 4 ? kLanes<A> : 4;
  if (columns < kLanes<A>) {
    if (columns <= kFew && rows == kLanes<A>) {
      return TileToPlanes<A, kFew, true>(from, stride, rows, columns, to, plane);
    }
    return TileToPlanes<A, kLanes<A>, false>(from, stride, rows, columns, to, plane);
  }
  for (int64_t column = 0;;) {
    if (rows == kLanes<A>) {
      TileToPlanes<A, kLanes<A>, true>(from + column, stride, rows, kLanes<A>,
                                       to + column * plane, plane);
    } else {
      TileToPlanes<A, kLanes<A>, false>(from + column, stride, rows, kLanes<A>,
                                        to + column * plane, plane);
    }
    if (column + kLanes<A> == columns) return;
    column = Min(column + kLanes<A>, columns - kLanes<A>);
  }
}

// Transposes to[lane * columns + c] = from[c * plane + lane] for all lanes. May write
// up to one vector past the last element.
template <typename A>
void FromPlanes(const A* from, int64_t plane, int64_t columns, A* to) {
  for (int64_t column = 0;;) {
    Vector<A> tile[kLanes<A>];
#pragma GCC unroll 16
    for (int n = 0; n < kLanes<A>; ++n) {
      tile[n] = column + n < columns ? Load(from + (column + n) * plane) : Vector<A>{};
    }
    Transpose<A>(tile);
#pragma GCC unroll 16
    for (int n = 0; n < kLanes<A>; ++n) Store(to + n * columns + column, tile[n]);
    if (column + kLanes<A> >= columns) return;
    column = Min(column + kLanes<A>, columns - kLanes<A>);
  }
}

// Copies elements to any alignment, with streaming stores if `stream` is true.
template <typename T, typename A>
void Copy(const A* from, int64_t count, bool stream, T* to) {
  if (count == 0) return;  // an empty tensor may have no address
  if constexpr (std::is_same_v<T, A>) {
    int64_t n = 0;
    if (stream) {
      const int64_t beyond = reinterpret_cast<uintptr_t>(to) % kVectorBytes / sizeof(A);
      if (beyond > 0) n = Min(kLanes<A> - beyond, count);
      std::memcpy(to, from, n * sizeof(A));
      for (; n + kLanes<A> <= count; n += kLanes<A>)
        StreamStore(to + n, Load(from + n));
    }
    std::memcpy(to + n, from + n, (count - n) * sizeof(A));
  } else {
    for (int64_t n = 0; n < count; ++n) Narrow(from[n], to + n);
  }
}

// Copies `pixels` pixels of `row` to planes, followed by zeros up to a whole vector.
template <typename T, typename A>
void FillPlanes(const PixelRow<const T>& row, int64_t columns, int64_t pixels, A* to,
                int64_t plane, A* staging) {
  if (row.pixel_stride == 1) {
    for (int64_t c = 0; c < columns; ++c) {
      const T* const from = row.data + c * row.column_stride;
      A* const line = to + c * plane;
      for (int64_t x = 0; x < pixels; ++x) line[x] = Widen(from[x]);
      for (int64_t x = pixels; x % kLanes<A> != 0; ++x) line[x] = 0;
    }
    return;
  }
  for (int64_t x = 0; x < pixels; x += kLanes<A>) {
    const int64_t rows = Min(kLanes<A>, pixels - x);
    const T* const from = row.data + x * row.pixel_stride;
    if constexpr (std::is_same_v<T, A>) {
      const int64_t last = (rows - 1) * row.pixel_stride + Max(columns, kLanes<A>);
      if (last <= row.end - from) {
        ToPlanes(from, row.pixel_stride, rows, columns, to + x, plane);
        continue;
      }
    }
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t c = 0; c < columns; ++c) {
        staging[n * columns + c] = Widen(from[n * row.pixel_stride + c]);
      }
    }
    ToPlanes<A>(staging, columns, rows, columns, to + x, plane);
  }
}

// Copies pixels from planes to `row`.
template <typename T, typename A>
void WritePlanes(const A* from, int64_t plane, int64_t columns, int64_t pixels,
                 bool stream, const PixelRow<T>& row, A* staging) {
  if (row.pixel_stride == 1) {
    for (int64_t c = 0; c < columns; ++c) {
      Copy(from + c * plane, pixels, stream, row.data + c * row.column_stride);
    }
    return;
  }
  const int64_t staged = StagedPixels<A>(columns);
  for (int64_t first = 0; first < pixels; first += staged) {
    const int64_t count = Min(staged, pixels - first);
    for (int64_t x = 0; x < count; x += kLanes<A>) {
      FromPlanes(from + first + x, plane, columns, staging + x * columns);
    }
    T* const to = row.data + first * row.pixel_stride;
    if (row.pixel_stride == columns) {
      Copy(staging, count * columns, stream, to);
      continue;
    }
    for (int64_t x = 0; x < count; ++x) {
      Copy(staging + x * columns, columns, false, to + x * row.pixel_stride);
    }
  }
}

// Clears all columns of some pixels.
template <typename T>
void ZeroPixels(const PixelRow<T>& row, int64_t columns, int64_t pixels) {
  const bool planes = row.pixel_stride == 1;
  const int64_t runs = planes ? columns : pixels, run = planes ? pixels : columns;
  const int64_t stride = planes ? row.column_stride : row.pixel_stride;
  for (int64_t n = 0; n < runs; ++n) {
    std::memset(row.data + n * stride, 0, run * sizeof(T));
  }
}

}  // namespace capsops::high_order_conv::CAPSOPS_ISA
