// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Small matrix products in register tiles whose lanes are parents.
#pragma once

#include <cstdint>

#include "cc/cpu/simd.h"

namespace capsops::capsule_moments::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Calls `run` for tiles of M rows, as wide as the registers allow.
template <int M, typename Run>
CAPSOPS_INLINE void ForColumns(int64_t row, int64_t columns, const Run& run) {
  int64_t column = 0;
  if constexpr (M == 1 && kRows == 4) {
    for (; column + 8 <= columns; column += 8) {
      run(Constant<M>(), Constant<8>(), row, column);
    }
  }
  for (; column + 4 <= columns; column += 4) {
    run(Constant<M>(), Constant<4>(), row, column);
  }
  for (; column + 2 <= columns; column += 2) {
    run(Constant<M>(), Constant<2>(), row, column);
  }
  for (; column < columns; ++column) run(Constant<M>(), Constant<1>(), row, column);
}

// Calls run(Constant<M>(), Constant<N>(), row, column) for tiles of M rows and N
// columns that cover a matrix and fit into registers.
template <typename Run>
CAPSOPS_INLINE void ForTiles(int64_t rows, int64_t columns, const Run& run) {
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) ForColumns<kRows>(row, columns, run);
  if constexpr (kRows > 2) {
    for (; row + 2 <= rows; row += 2) ForColumns<2>(row, columns, run);
  }
  for (; row < rows; ++row) ForColumns<1>(row, columns, run);
}

// A matrix of scalars or of vectors in memory; strides are in scalars.
template <typename A>
struct Matrix {
  const A* first;
  int64_t row, column;
};

// tile += x @ y. y is a matrix of vectors. x has `depth` columns, and is a matrix of
// scalars that all lanes share or, with kVectors, also of vectors.
template <bool kVectors, typename A, int M, int N>
CAPSOPS_INLINE void AddProduct(int64_t depth, const Matrix<A>& x, const Matrix<A>& y,
                               Vector<A> (&tile)[M][N]) {
  const A* left = x.first;
  const A* right = y.first;
  for (int64_t k = 0; k < depth; ++k, left += x.column, right += y.row) {
    Vector<A> columns[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) columns[n] = Load(right + n * y.column);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      Vector<A> factor;
      if constexpr (kVectors) {
        factor = Load(left + m * x.row);
      } else {
        factor = Vector<A>{} + left[m * x.row];
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) tile[m][n] += factor * columns[n];
    }
  }
}

}  // namespace capsops::capsule_moments::CAPSOPS_ISA
