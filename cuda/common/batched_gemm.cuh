// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Batched matrix product c[i] = a[i] b[i] in FMA over shared-memory tiles, for any
// layout and size. It serves the sizes that no specialized kernel takes.
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops {

// Matrices with arbitrary strides: element (row, column) of matrix i is at i * batch +
// row * row_step + column * column_step.
template <typename S>
struct MatrixBatch {
  S* data;
  int64_t batch, row_step, column_step;

  __device__ S* at(int64_t i, int64_t row, int64_t column) const {
    return data + i * batch + row * row_step + column * column_step;
  }
};

namespace gemm {
constexpr int kTile = 64;   // rows and columns of c per block
constexpr int kDepth = 16;  // terms of the contraction per tile
constexpr int kThreads = 256;
constexpr int kEach = 4;  // rows and columns of c per thread

// Copies tile [kTile, kDepth] of m to to[depth][row], with zeros outside of m. Loads
// are coalesced in either layout.
template <typename S, typename A>
__device__ void LoadTile(const MatrixBatch<const S>& m, int64_t i, int64_t row0,
                         int64_t rows, int64_t depth0, int64_t depth,
                         A (*to)[kTile + 1]) {
  const bool rows_adjacent = m.row_step < m.column_step;
  for (int e = threadIdx.x; e < kTile * kDepth; e += kThreads) {
    const int row = rows_adjacent ? e % kTile : e / kDepth;
    const int k = rows_adjacent ? e / kTile : e % kDepth;
    const bool inside = row0 + row < rows && depth0 + k < depth;
    to[k][row] = inside ? Widen(*m.at(i, row0 + row, depth0 + k)) : A{0};
  }
}

template <typename S, typename A>
__global__ void __launch_bounds__(kThreads)
    Kernel(int64_t rows, int64_t columns, int64_t depth, int64_t row_tiles,
           int64_t column_tiles, MatrixBatch<const S> a, MatrixBatch<const S> b,
           MatrixBatch<S> c) {
  __shared__ A a_tile[kDepth][kTile + 1];
  __shared__ A b_tile[kDepth][kTile + 1];
  const int64_t tile = blockIdx.x / column_tiles;
  const int64_t column0 = blockIdx.x % column_tiles * kTile;
  const int64_t row0 = tile % row_tiles * kTile;
  const int64_t i = tile / row_tiles;
  const int thread_row = threadIdx.x / (kTile / kEach);
  const int thread_column = threadIdx.x % (kTile / kEach);
  const MatrixBatch<const S> b_transposed{b.data, b.batch, b.column_step, b.row_step};
  A sum[kEach][kEach] = {};
  for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
    LoadTile(a, i, row0, rows, k0, depth, a_tile);
    LoadTile(b_transposed, i, column0, columns, k0, depth, b_tile);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      A x[kEach], y[kEach];
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        x[e] = a_tile[k][thread_row + e * (kTile / kEach)];
        y[e] = b_tile[k][thread_column + e * (kTile / kEach)];
      }
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) sum[r][e] += x[r] * y[e];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int64_t row = row0 + thread_row + r * (kTile / kEach);
      const int64_t column = column0 + thread_column + e * (kTile / kEach);
      if (row < rows && column < columns) Narrow(sum[r][e], c.at(i, row, column));
    }
  }
}
}  // namespace gemm

// The number of blocks that BatchedGemm launches.
inline int64_t GemmBlocks(int64_t count, int64_t rows, int64_t columns) {
  return count * CeilDivide(rows, gemm::kTile) * CeilDivide(columns, gemm::kTile);
}

// Multiplies `count` matrices: a is [rows, depth], b [depth, columns] and c [rows,
// columns]. GemmBlocks() must fit in a grid.
template <typename T>
LaunchError BatchedGemm(const GpuExec& exec, const char* name, int64_t count,
                        int64_t rows, int64_t columns, int64_t depth,
                        const MatrixBatch<const CudaType<T>>& a,
                        const MatrixBatch<const CudaType<T>>& b,
                        const MatrixBatch<CudaType<T>>& c) {
  const int64_t row_tiles = CeilDivide(rows, gemm::kTile);
  const int64_t column_tiles = CeilDivide(columns, gemm::kTile);
  const int64_t blocks = GemmBlocks(count, rows, columns);
  if (blocks == 0) return {};
  return Launch(name, gemm::Kernel<CudaType<T>, Accumulator<T>>, blocks, gemm::kThreads,
                0, exec, rows, columns, depth, row_tiles, column_tiles, a, b, c);
}

}  // namespace capsops
