// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What the kernels of 4 x Q poses and Q x 4 weights share. A warp has the votes of 32
// pairs of a window and a parent, and each thread one of them, whole: four products of
// 16 x Q by Q x 8 matrices, of which one operand's rows are the thread's group of four,
// and the other's columns its number in the group. Everything is float in shared
// memory; 16-bit elements are widened on their way there.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_TILE_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_TILE_CUH_

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_moments/inputs.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_moments::mma {

constexpr int kWarps = kThreads / kLanes;
constexpr int kEight = 8, kFour = 4;  // pairs of a warp: of these, by those

// Calls visit(N{}) for the elements' type N.
template <typename Visit>
__device__ void WithElements(Element element, const Visit& visit) {
  if (element == Element::kFloat) {
    visit(0.0f);
  } else if (element == Element::kHalf) {
    visit(__half{});
  } else {
    visit(__nv_bfloat16{});
  }
}

// Numbers of a parent's tensor times `factor`, zeros where it is absent, which it is
// not where kThere.
template <bool kThere>
__device__ void LoadParent(const float* from, float factor, float (&to)[kSize]) {
  if (kThere || from != nullptr) {
    LoadWords(from, to);
#pragma unroll
    for (float& x : to) x *= factor;
  } else {
#pragma unroll
    for (float& x : to) x = 0;
  }
}

// Begins to copy a row of elements to words of shared memory kStep apart. 16-bit
// elements are there at once.
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

// What the tensor cores see of a number.
__device__ inline float CutOff(float x) {
  return __uint_as_float(__float_as_uint(x) & 0xffffe000);
}

// Calls visit(i) for i = 0 to 3 on groups of four of this thread's rows, of which each
// is kThreads further on; a visit for rows that do not exist is left out. `next` goes
// on to the next four.
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

// Begins to copy rows of weights, this thread each kThreads-th.
template <typename N>
__device__ void StageWeights(const N* from, int rows, float* to) {
  constexpr int kStep = kThreads * kSide;
  from += threadIdx.x * kSide, to += threadIdx.x * kSide;
  ForRows(
      rows, [&](int i) { Stage<kSide, 1>(from + i * kStep, to + i * kStep); },
      [&] { from += 4 * kStep, to += 4 * kStep; });
}

// Makes rows zeros, from `first` on, this thread each kStep-th.
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

// The same for rows that this thread has staged, once they are there.
__device__ inline void PrepareWeights(int rows, float* weights) {
  constexpr int kStep = kThreads * kSide;
  weights += threadIdx.x * kSide;
  ForRows(
      rows, [&](int i) { PrepareRow(weights + i * kStep); },
      [&] { weights += 4 * kStep; });
}

// Stages row `row` of the pose of a child, which may not exist. In shared memory a pose
// is transposed, Q x 4.
template <int Q, typename N>
__device__ void StagePoseRow(const N* poses, int capsule, int row, float* to) {
  if (capsule >= 0) {
    Stage<Q, kSide>(poses + (int64_t{capsule} * kSide + row) * Q, to + row);
  } else {
#pragma unroll
    for (int q = 0; q < Q; ++q) to[row + q * kSide] = 0;
  }
}
template <int Q>
__device__ void PreparePoseRow(int row, float* pose) {
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    pose[row + q * kSide] = Prepare<Tf32::kRounded>(pose[row + q * kSide]);
  }
}

// sum = c + a b in TF32, which leaves c where it is.
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

// Where number (row, column) of a product's tiles is in a vote.
template <bool kTransposed>
constexpr int Place(int row, int column) {
  return kTransposed ? column * kSide + row : row * kSide + column;
}

// A thread's vote - center, from {-center}. Its operands are Q x 4 matrices in shared
// memory, of which the left one's columns become rows of the vote, or columns where
// kTransposed: `left` is at row `t` of the matrix of pair g, `right` at row t, column
// 2 (g % 2), of that of pair g / 2, where g is the thread's group of four in its warp,
// and t its number there. What the operands have beyond TF32 is cut off.
template <bool kTransposed, int Q>
__device__ void MakeVote(const float* left, const float* right,
                         const float (&minus_center)[kSize], float (&u)[kSize]) {
  constexpr int kSteps = (Q + 3) / 4;
  uint32_t a[2][2 * kSteps], b[2][kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const bool any = s == 0 || threadIdx.x % kFour + 4 * s < Q;
    float4 rows{0, 0, 0, 0};
    float2 columns{0, 0};
    if (any) {
      rows = *reinterpret_cast<const float4*>(left + 4 * s * kSide);
      columns = *reinterpret_cast<const float2*>(right + 4 * s * kSide);
    }
    a[0][2 * s] = __float_as_uint(rows.x), a[0][2 * s + 1] = __float_as_uint(rows.y);
    a[1][2 * s] = __float_as_uint(rows.z), a[1][2 * s + 1] = __float_as_uint(rows.w);
    b[0][s] = __float_as_uint(columns.x), b[1][s] = __float_as_uint(columns.y);
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
      MultiplyTo(a[i], b[j], c, sum);
#pragma unroll
      for (int e = 0; e < 4; ++e) u[at[e]] = sum[e];
    }
  }
}

// sums += the gradient of votes, of which each thread has one, times Q x 4 matrices in
// shared memory: the sum is over the four pairs of a group and the columns of the
// gradient, or its rows where kTransposed. `right` is at row g of the matrix of pair t,
// which counts `factor` times, or not at all.
// sums[i] are {row 2i; column 2t, 2t + 1}, {row 2i + 1; the same}, for pair g.
template <bool kTransposed>
__device__ void Contract(const float (&gradient)[kSize], const float* right,
                         bool counts, float factor, float (&sums)[2][4]) {
  float matrix[kSide] = {};
  if (counts) LoadWords(right, matrix);
#pragma unroll
  for (float& x : matrix) x *= factor;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const uint32_t b[] = {__float_as_uint(matrix[2 * s]),
                          __float_as_uint(matrix[2 * s + 1])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t a[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        a[e] =
            __float_as_uint(gradient[Place<kTransposed>(2 * i + e % 2, 2 * s + e / 2)]);
      }
      Multiply(a, b, sums[i]);
    }
  }
}

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_TILE_CUH_
