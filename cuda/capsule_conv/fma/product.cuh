// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The FMA kernel of capsule convolution, which computes the product of fma/axes.cuh. A
// block computes a tile of kTileRows x kColumns results, or with split-K one part of
// their sums, and a thread kEachRows x kEachColumns of them. Both operands pass through
// registers to shared memory, kDepth terms per step, double-buffered: a step's loads
// are issued before the previous step is multiplied.
#pragma once

#include "cuda/capsule_conv/fma/axes.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv::fma {

constexpr int kThreads = 128;
constexpr int kEachRows = 8, kEachColumns = 4;  // results per thread
constexpr int kLoaders = kThreads / kDepth;     // threads that load one term
// Resident blocks per multiprocessor, as the accumulators' registers allow.
template <typename A>
constexpr int kResident = sizeof(A) == sizeof(float) ? 4 : 3;
// Float products are summed in runs of this many steps before they are added to the
// total, to limit rounding errors.
constexpr int kBlockedSteps = 32;

template <int kColumns>
constexpr int kTileRows = kThreads * kEachRows * kEachColumns / kColumns;

// A step of an operand in shared memory, padded against bank conflicts of its stores.
template <typename A, int N>
struct alignas(16) Operand {
  static constexpr int kPitch = N + 16 / sizeof(A);
  A at[kDepth][kPitch];
};

// The positions of a tile's rows in `left` and `out`, shared by all threads.
template <int N>
struct RowTable {
  struct alignas(16) Source {
    int64_t left;
    int y, x;
  };
  Source source[N];
  int64_t out[N];
};

// A block's coordinates in the grid. Blocks that read the same pixels are neighbors.
struct BlockCoord {
  int64_t column_tile, row_tile;
  int depth, phase, part;

  __device__ void Set(const Product& z) {
    int64_t block = blockIdx.x;
    const auto take = [&](int64_t count) {
      const int64_t rest = Divide(block, count);
      const int64_t digit = block - rest * count;
      block = rest;
      return digit;
    };
    column_tile = take(z.column_tiles);
    depth = take(z.depth);
    phase = z.vertical.count > 0 ? take(z.vertical.count * z.horizontal.count) : 0;
    row_tile = take(z.row_tiles);
    part = block;
  }
};

// Returns the axes of a block's phase.
__device__ inline void SelectPhase(const Product& z, int phase, Axis* rows,
                                   Axis* terms) {
  *rows = z.rows;
  *terms = z.terms;
  if (z.vertical.count == 0) return;
  const int64_t x = phase % z.horizontal.count, y = phase / z.horizontal.count;
  z.vertical.Select(y, rows, &rows->digits[1], terms, &terms->digits[0]);
  z.horizontal.Select(x, rows, &rows->digits[2], terms, &terms->digits[1]);
  rows->origin.other += y * z.vertical.out_step + x * z.horizontal.out_step;
}

__device__ inline int Saturate(int64_t value) {
  return static_cast<int>(max(int64_t{INT32_MIN}, min(int64_t{INT32_MAX}, value)));
}

// Epilogue: stores a thread's sums. A thread's rows are two runs of 4, N / 2 apart, so
// that the vectors which neighboring threads load from shared memory are adjacent.
template <typename A, typename To, int N>
__device__ void StoreTile(const Product& z, const RowTable<N>& table, int64_t rows,
                          int row, int64_t column,
                          const A (&sum)[kEachRows][kEachColumns], To* to) {
  int64_t at[kEachColumns];
#pragma unroll
  for (int c = 0; c < kEachColumns; ++c) {
    const int64_t outer = Divide(column + c, z.column_inner);
    at[c] = outer * z.out_outer + column + c - outer * z.column_inner;
  }
#pragma unroll
  for (int r = 0; r < kEachRows; ++r) {
    const int i = row + r % 4 + r / 4 * (N / 2);
    if (i >= rows || column >= z.columns) continue;
    To* const line = to + table.out[i];
    if (z.vector) {
      StorePack<kEachColumns>(sum[r], line + at[0]);
    } else {
#pragma unroll
      for (int c = 0; c < kEachColumns; ++c) {
        if (column + c < z.columns) Narrow(sum[r][c], line + at[c]);
      }
    }
  }
}

// Computes a block's tile and stores it in `out` or, with split-K, in partial[part]. A
// thread loads one term of several rows and columns. Neighboring threads load
// neighboring terms, then neighboring rows, which are contiguous in memory (c, p, q).
// Past the last row or column, the last one is loaded again and not stored.
template <typename S, typename A, int kColumns>
__global__ void __launch_bounds__(kThreads, kResident<A>)
    ProductKernel(const __grid_constant__ Product z, const S* __restrict__ left,
                  const S* __restrict__ right, S* __restrict__ out,
                  A* __restrict__ partial) {
  constexpr int kRows = kTileRows<kColumns>;
  constexpr int kLoadRows = kRows / kLoaders, kLoadColumns = kColumns / kLoaders;
  constexpr bool kBlocked = sizeof(A) == sizeof(float);
  __shared__ Operand<A, kRows> left_tiles[2];
  __shared__ Operand<A, kColumns> right_tiles[2];
  __shared__ RowTable<kRows> table;
  __shared__ Axis rows, terms;
  __shared__ Stride stride;
  __shared__ BlockCoord place;

  if (threadIdx.x == 0) {
    place.Set(z);
    SelectPhase(z, place.phase, &rows, &terms);
    if (terms.size() > 0) stride.Set(terms);
  }
  __syncthreads();
  const int64_t rows_left = rows.size() - place.row_tile * kRows;
  if (rows_left <= 0) return;  // A phase may be smaller than the first.
  for (int i = threadIdx.x; i < kRows; i += kThreads) {
    int digits[4];
    const int64_t row = place.row_tile * kRows + min(int64_t{i}, rows_left - 1);
    const Place at = Locate(rows, row, digits);
    table.source[i] = {at.left + place.depth * z.left_depth, Saturate(at.y),
                       Saturate(at.x)};
    table.out[i] = at.other;
  }

  const int term = threadIdx.x % kDepth, loader = threadIdx.x / kDepth;
  int64_t columns[kLoadColumns];
#pragma unroll
  for (int e = 0; e < kLoadColumns; ++e) {
    const int64_t column =
        min(place.column_tile * kColumns + loader + e * kLoaders, z.columns - 1);
    const int64_t outer = Divide(column, z.column_inner);
    columns[e] = place.depth * z.right_depth + outer * z.right_outer +
                 (column - outer * z.column_inner) * z.right_inner;
  }
  const int64_t steps = (terms.size() + kDepth - 1) / kDepth;
  const int64_t begin = Divide(place.part * steps, z.parts);
  const int64_t end = Divide((place.part + 1) * steps, z.parts);
  A sum[kEachRows][kEachColumns] = {};
  const int thread_row = threadIdx.x / (kColumns / kEachColumns) * 4;
  const int thread_column = threadIdx.x % (kColumns / kEachColumns) * kEachColumns;
  __syncthreads();

  if (begin < end) {
    TermIterator iterator(terms, begin * kDepth + term);
    S from_left[kLoadRows], from_right[kLoadColumns];
    const auto load = [&] {
      const bool valid = !iterator.PastEnd(stride);
#pragma unroll
      for (int e = 0; e < kLoadRows; ++e) {
        const auto row = table.source[loader + e * kLoaders];
        const bool inside = valid &&
                            uint32_t(row.y + iterator.at.y) < uint32_t(z.height) &&
                            uint32_t(row.x + iterator.at.x) < uint32_t(z.width);
        from_left[e] = inside ? left[row.left + iterator.at.left] : S(0.f);
      }
#pragma unroll
      for (int e = 0; e < kLoadColumns; ++e) {
        from_right[e] = valid ? right[columns[e] + iterator.at.other] : S(0.f);
      }
      iterator.Advance(stride);
    };
    const auto stage = [&](int buffer) {
#pragma unroll
      for (int e = 0; e < kLoadRows; ++e) {
        left_tiles[buffer].at[term][loader + e * kLoaders] = Widen(from_left[e]);
      }
#pragma unroll
      for (int e = 0; e < kLoadColumns; ++e) {
        right_tiles[buffer].at[term][loader + e * kLoaders] = Widen(from_right[e]);
      }
    };
    A block_sum[kEachRows][kEachColumns] = {};
    auto& now = kBlocked ? block_sum : sum;
    load();
    stage((end - begin) % 2);
    __syncthreads();
    for (auto steps_left = static_cast<uint32_t>(end - begin); steps_left > 0;
         --steps_left) {
      const int buffer = steps_left % 2;
      const bool more = steps_left > 1;
      if (more) load();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        const A* const l = &left_tiles[buffer].at[k][thread_row];
        const auto low = *reinterpret_cast<const Pack<A, 4>*>(l);
        const auto high = *reinterpret_cast<const Pack<A, 4>*>(l + kRows / 2);
        const auto r = *reinterpret_cast<const Pack<A, kEachColumns>*>(
            &right_tiles[buffer].at[k][thread_column]);
#pragma unroll
        for (int e = 0; e < kEachRows; ++e) {
#pragma unroll
          for (int c = 0; c < kEachColumns; ++c) {
            now[e][c] += (e < 4 ? low.at[e % 4] : high.at[e % 4]) * r.at[c];
          }
        }
      }
      if (more) stage(1 - buffer);
      __syncthreads();
      if (kBlocked && steps_left % kBlockedSteps == 1) {
#pragma unroll
        for (int e = 0; e < kEachRows; ++e) {
#pragma unroll
          for (int c = 0; c < kEachColumns; ++c) {
            sum[e][c] += block_sum[e][c];
            block_sum[e][c] = 0;
          }
        }
      }
    }
  }
  const int64_t column = place.column_tile * kColumns + thread_column;
  const int64_t offset = place.depth * z.out_depth;
  if (z.parts > 1) {
    StoreTile(z, table, rows_left, thread_row, column, sum,
              partial + place.part * z.elements + offset);
  } else {
    StoreTile(z, table, rows_left, thread_row, column, sum, out + offset);
  }
}

}  // namespace capsops::capsule_conv::fma
