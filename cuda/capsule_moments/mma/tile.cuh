// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Products and copies of the mma kernels. A warp computes the votes of 32 pairs of a
// window and a parent as four products of 16 x Q and Q x 8 matrices. The 16 rows are
// two rows of each of eight left matrices, and the 8 columns two columns of each of
// four right matrices. So lane 4 g + t gets the whole vote of left matrix g and right
// matrix t. Everything in shared memory is float; 16-bit elements are widened when they
// are copied there.
//
// With kSplit the kernels are as exact as float: each operand is split into two TF32
// numbers, which takes three products, and products are added to sums in float, because
// tensor cores truncate sums. Without kSplit, operands are TF32: rounded floats, or
// 16-bit elements, which are exact.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_moments/mma/inputs.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_moments::mma {

constexpr int kWarps = kThreads / kLanes;
constexpr int kEight = 8, kFour = 4;  // a warp's 32 pairs are 8 x 4

// Loads the 16 elements of one parent times `factor`. Absent tensors load as zeros;
// kPresent skips that check.
template <bool kPresent>
__device__ void LoadParent(const float* from, float factor, float (&to)[kSize]) {
  if (kPresent || from != nullptr) {
    LoadWords(from, to);
#pragma unroll
    for (float& x : to) x *= factor;
  } else {
#pragma unroll
    for (float& x : to) x = 0;
  }
}

// Starts the copy of kCount elements to words of shared memory kStep apart. 16-bit
// elements are widened in registers, and so copied synchronously.
template <int kCount, int kStep>
__device__ void Stage(const float* from, float* to) {
  constexpr int kWide = kCount % 4 == 0 && kStep == 1 ? 4 : 1;
#pragma unroll
  for (int n = 0; n < kCount; n += kWide) {
    __pipeline_memcpy_async(to + n * kStep, from + n, kWide * sizeof(float));
  }
}
template <int kCount, int kStep, typename N>
__device__ void Stage(const N* from, float* to) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) to[n * kStep] = Widen(from[n]);
}

// Truncates to TF32, as tensor cores do.
__device__ inline float TruncateToTf32(float x) {
  return __uint_as_float(__float_as_uint(x) & 0xffffe000);
}

// Calls visit(i) for this thread's rows, which are kThreads apart, four at a time (i =
// 0 to 3), and next() after each four. Rows that do not exist are skipped.
template <typename Visit, typename Next>
__device__ void ForRows(int rows, const Visit& visit, const Next& next) {
#pragma unroll 1
  for (int row = threadIdx.x; row < rows; row += 4 * kThreads, next()) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + i * kThreads < rows) visit(i);
    }
  }
}

// Starts the copies of weight rows, strided over the threads.
template <typename N>
__device__ void StageWeights(const N* from, int rows, float* to) {
  constexpr int kStep = kThreads * kSide;
  from += threadIdx.x * kSide, to += threadIdx.x * kSide;
  ForRows(
      rows, [&](int i) { Stage<kSide, 1>(from + i * kStep, to + i * kStep); },
      [&] { from += 4 * kStep, to += 4 * kStep; });
}

// Clears rows [first, end), strided over the threads.
template <int kStep, typename At>
__device__ void ClearRows(int first, int end, const At& at) {
#pragma unroll 1
  for (int row = first + threadIdx.x; row < end; row += kStep) {
    *reinterpret_cast<float4*>(at(row)) = {0, 0, 0, 0};
  }
}

// Rounds a row of weights to TF32.
__device__ inline void PrepareRow(float* row) {
  float words[kSide];
  LoadWords(row, words);
#pragma unroll
  for (float& x : words) x = Prepare<Tf32::kRounded>(x);
  StoreWords(words, row);
}

// Rounds the rows that this thread staged, after they have arrived.
__device__ inline void PrepareWeights(int rows, float* weights) {
  constexpr int kStep = kThreads * kSide;
  weights += threadIdx.x * kSide;
  ForRows(
      rows, [&](int i) { PrepareRow(weights + i * kStep); },
      [&] { weights += 4 * kStep; });
}

// Stages row `row` of a child's pose, transposed to Q x 4, or zeros for capsule -1.
template <int Q, typename N>
__device__ void StagePoseRow(const N* poses, int capsule, int row, float* to) {
  if (capsule >= 0) {
    Stage<Q, kSide>(poses + (int64_t{capsule} * kSide + row) * Q, to + row);
  } else {
#pragma unroll
    for (int q = 0; q < Q; ++q) to[row + q * kSide] = 0;
  }
}
// Rounds a row of a transposed pose to TF32.
template <int Q>
__device__ void PreparePoseRow(int row, float* pose) {
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    pose[row + q * kSide] = Prepare<Tf32::kRounded>(pose[row + q * kSide]);
  }
}

template <bool kSplit, int N>
using OperandOf = Operand<N, kSplit ? Tf32::kSplit : Tf32::kExact>;

// c += a0 b0 + a1 b1, for contractions over four elements, as one product over eight,
// or over eight elements.
__device__ inline void MultiplyTwo(const uint32_t (&a0)[2], const uint32_t (&b0)[1],
                                   const uint32_t (&a1)[2], const uint32_t (&b1)[1],
                                   float (&c)[4]) {
  const uint32_t a[] = {a0[0], a0[1], a1[0], a1[1]}, b[] = {b0[0], b1[0]};
  Multiply(a, b, c);
}
__device__ inline void MultiplyTwo(const uint32_t (&a0)[4], const uint32_t (&b0)[2],
                                   const uint32_t (&a1)[4], const uint32_t (&b1)[2],
                                   float (&c)[4]) {
  Multiply(a0, b0, c);
  Multiply(a1, b1, c);
}

// sum = c + a b in TF32, with c unchanged.
__device__ inline void MultiplyTo(const uint32_t (&a)[2], const uint32_t (&b)[1],
                                  const float (&c)[4], float (&sum)[4]) {
  asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ inline void MultiplyTo(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                  const float (&c)[4], float (&sum)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]),
        "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// Index in a vote of the product of columns `row` of the left matrix and `column` of
// the right one.
template <bool kTransposed>
constexpr int Place(int row, int column) {
  return kTransposed ? column * kSide + row : row * kSide + column;
}

// Computes a thread's vote - center. The operands, truncated to TF32 unless kSplit, are
// Q x 4 matrices in shared memory; columns of the left one become rows of the vote, or
// columns if kTransposed. In lane 4 g + t, `left` points to row t of left matrix g, and
// `right` to row t, column 2 (g % 2), of right matrix g / 2.
template <bool kTransposed, bool kSplit, int Q>
__device__ void MakeVote(const float* left, const float* right,
                         const float (&minus_center)[kSize], float (&u)[kSize]) {
  constexpr int kSteps = (Q + 3) / 4;
  OperandOf<kSplit, 2 * kSteps> a[2];
  OperandOf<kSplit, kSteps> b[2];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const bool any = s == 0 || threadIdx.x % kFour + 4 * s < Q;
    float4 rows{0, 0, 0, 0};
    float2 columns{0, 0};
    if (any) {
      rows = *reinterpret_cast<const float4*>(left + 4 * s * kSide);
      columns = *reinterpret_cast<const float2*>(right + 4 * s * kSide);
    }
    a[0].SetPrepared(2 * s, rows.x), a[0].SetPrepared(2 * s + 1, rows.y);
    a[1].SetPrepared(2 * s, rows.z), a[1].SetPrepared(2 * s + 1, rows.w);
    b[0].SetPrepared(s, columns.x), b[1].SetPrepared(s, columns.y);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at[] = {Place<kTransposed>(2 * i, j), Place<kTransposed>(2 * i, 2 + j),
                        Place<kTransposed>(2 * i + 1, j),
                        Place<kTransposed>(2 * i + 1, 2 + j)};
      float c[4], sum[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) c[e] = minus_center[at[e]];
      if constexpr (kSplit) {
        float product[4] = {};
        MultiplyTwo(a[i].high, b[j].low, a[i].low, b[j].high, product);
        Multiply(a[i].high, b[j].high, product);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] = product[e] + c[e];
      } else {
        MultiplyTo(a[i].high, b[j].high, c, sum);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) u[at[e]] = sum[e];
    }
  }
}

// Multiplies vote gradients, one per thread, by Q x 4 matrices in shared memory, and
// adds to `sums`. The contraction is over the four threads of a group and the columns
// of the gradient, or its rows if kTransposed. `right` points to row g of matrix t (of
// 4), which is scaled by `factor`, and counts as zero unless `counts`. sums[i] are
// columns 2t and 2t + 1 of row 2i, and then of row 2i + 1, of group g's result.
template <bool kTransposed, bool kSplit>
__device__ void Contract(const float (&gradient)[kSize], const float* right,
                         bool counts, float factor, float (&sums)[2][4]) {
  float matrix[kSide] = {};
  if (counts) LoadWords(right, matrix);
#pragma unroll
  for (float& x : matrix) x *= factor;
  OperandOf<kSplit, 2> b[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    b[s].SetPrepared(0, matrix[2 * s]);
    b[s].SetPrepared(1, matrix[2 * s + 1]);
  }
  const auto left = [&](int i, int s) {
    OperandOf<kSplit, 4> a;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      a.SetPrepared(e, gradient[Place<kTransposed>(2 * i + e % 2, 2 * s + e / 2)]);
    }
    return a;
  };
  if constexpr (kSplit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const OperandOf<kSplit, 4> a[] = {left(i, 0), left(i, 1)};
      float product[4] = {};
      // Adds the small terms first, so that less of them is truncated.
      Multiply(a[0].low, b[0].high, product);
      Multiply(a[1].low, b[1].high, product);
      Multiply(a[0].high, b[0].low, product);
      Multiply(a[1].high, b[1].low, product);
      Multiply(a[0].high, b[0].high, product);
      Multiply(a[1].high, b[1].high, product);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] += product[e];
    }
  } else {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) Multiply(left(i, s).high, b[s].high, sums[i]);
    }
  }
}

}  // namespace capsops::capsule_moments::mma
