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

// Loads the 16 elements of one parent times `factor`, or zeros if the tensor is absent.
__device__ inline void LoadParent(const float* from, float factor, float (&to)[kSize]) {
  if (from != nullptr) {
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

// Computes a thread's vote - center. The operands, truncated to TF32 unless kSplit, are
// Q x 4 matrices in shared memory; columns of the left one become rows of the vote. In
// lane 4 g + t, `left` points to row t of left matrix g, and `right` to row t, column
// 2 (g % 2), of right matrix g / 2.
template <bool kSplit, int Q>
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
      const int first = 2 * i * kSide + j;
      const int at[] = {first, first + 2, first + kSide, first + kSide + 2};
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

// Multiplies vote gradients, one per thread, by the weights of the warp's four parents,
// Q x 4 matrices in shared memory, and adds to `sums`, the windows' pose gradients. The
// contraction is over the four threads of a group and the columns of the gradient.
// `right` points to row g of matrix t (of 4), which counts as zero unless `counts`.
// sums[i] are columns 2t and 2t + 1 of row 2i, and then of row 2i + 1, of group g's
// result.
template <bool kSplit>
__device__ void SumOverParents(const float (&gradient)[kSize], const float* right,
                               bool counts, float (&sums)[2][4]) {
  float matrix[kSide] = {};
  if (counts) LoadWords(right, matrix);
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
      a.SetPrepared(e, gradient[(2 * i + e % 2) * kSide + 2 * s + e / 2]);
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

// A lane's words of a matrix in shared memory that selects four of eight rows, the left
// operand {one, 0, 0, one}. An operand that is loaded as a whole needs no moves between
// registers, but 4 x 5 poses leave room for `one` alone.
template <int Q>
constexpr int kSelectionWords = Q == kFour ? 4 : 1;

template <int Q>
__device__ void StoreSelection(float one, float* to) {
  if constexpr (Q == kFour) {
    *reinterpret_cast<float4*>(to) = {one, 0, 0, one};
  } else {
    *to = one;
  }
}
template <int Q>
__device__ void LoadSelection(const float* from, uint32_t (&to)[4]) {
  float words[4] = {*from, 0, 0, *from};
  if constexpr (Q == kFour) LoadWords(from, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __float_as_uint(words[i]);
}

// Multiplies a child's vote gradients by the poses of the warp's eight windows, and
// sums over the windows: the weight gradients of the warp's four parents.
//
// The left operand needs windows as columns, but lane 4 g + t has the gradient of
// window g. So a first product with a 0/1 matrix transposes the gradients, which is
// exact. Its result has windows as columns, of which a thread has 2t and 2t + 1. The
// thread passes the even one as row g of the second product's left operand and the odd
// one as row g + 8. So rows g sum over even windows and rows g + 8 over odd ones, and
// each half needs its own poses as right operand: with Q = 4 these are the product's
// left and right four columns, with Q = 5 two products. The other half of each result
// is unused.
template <bool kSplit, int Q>
class WeightGradient {
 public:
  static constexpr int kParts = Q == kFour ? 1 : 2;  // products

  // The first window whose pose this thread multiplies, and the column of the pose.
  // With Q = 5, the second window follows.
  __device__ static int Window() {
    const int g = threadIdx.x % kLanes / kFour;
    return 2 * (threadIdx.x % kFour) + (Q == kFour ? g / kFour : 0);
  }
  __device__ static int Column() {
    const int g = threadIdx.x % kLanes / kFour;
    return Q == kFour ? g % kFour : min(g, Q - 1);
  }

  // Computes the products, once per object. `select` are the matrices that select
  // the first and the last four of eight rows.
  __device__ void Compute(const float (&gradient)[kSize],
                          const float (&poses)[kParts][kSide],
                          const uint32_t (&select)[2][4]) {
    float corrections[kParts][2][4] = {};
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Columns 2s and 2s + 1 of rows 2i and 2i + 1. Transposed, rows g are parent
        // g % 4 and column 2s + g / 4 of row 2i, and rows g + 8 the same of row 2i + 1.
        float high[4] = {}, low[4] = {};
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          OperandOf<kSplit, 2> column;
          column.SetPrepared(0, gradient[2 * i * kSide + 2 * s + c]);
          column.SetPrepared(1, gradient[(2 * i + 1) * kSide + 2 * s + c]);
          Multiply(select[c], column.high, high);
          if constexpr (kSplit) Multiply(select[c], column.low, low);
        }
        OperandOf<kSplit, 4> left;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          left.high[e] = __float_as_uint(high[e]);
          if constexpr (kSplit) left.low[e] = __float_as_uint(low[e]);
        }
#pragma unroll
        for (int n = 0; n < kParts; ++n) {
          OperandOf<kSplit, 2> right;
          right.SetPrepared(0, poses[n][2 * i]);
          right.SetPrepared(1, poses[n][2 * i + 1]);
          if constexpr (kSplit) {
            Multiply(left.low, right.high, corrections[n][s]);
            Multiply(left.high, right.low, corrections[n][s]);
          }
          Multiply(left.high, right.high, sums_[n][s]);
        }
      }
    }
#pragma unroll
    for (int e = 0; kSplit && e < kParts * 8; ++e) {
      sums_[e / 8][e / 4 % 2][e % 4] += corrections[e / 8][e / 4 % 2][e % 4];
    }
  }

  // Adds this and the next child's gradients to their vectors of WeightSums.
  __device__ void AddTo(const WeightGradient& next, float4* to) const {
    if constexpr (Q == kFour) {
      // Threads 2 and 3 have the odd windows' sums of what threads 0 and 1 have. They
      // keep those of the next child.
      const bool even = threadIdx.x % kFour < 2;
      float sum[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float odd = sums_[0][e / 2][2 + e % 2];
        const float next_even = next.sums_[0][e / 2][e % 2];
        sum[e] = even ? sums_[0][e / 2][e % 2] : next.sums_[0][e / 2][2 + e % 2];
        sum[e] += __shfl_xor_sync(~0u, even ? next_even : odd, 2);
      }
      Add(sum, to);
    } else {
      AddBoth(to);
      next.AddBoth(to + kLanes);
    }
  }

 private:
  __device__ static void Add(const float (&sum)[4], float4* to) {
    const float4 old = *to;
    *to = {old.x + sum[0], old.y + sum[1], old.z + sum[2], old.w + sum[3]};
  }
  // Adds the sums over even and odd windows.
  __device__ void AddBoth(float4* to) const {
    float sum[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sum[e] = sums_[0][e / 2][e % 2] + sums_[kParts - 1][e / 2][2 + e % 2];
    }
    Add(sum, to);
  }

  float sums_[kParts][2][4] = {};
};

}  // namespace capsops::capsule_moments::mma
