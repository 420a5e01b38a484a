// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Operands of the weight gradient: mma.sync fragments from the planes of two patches,
// whose rows (pixels and pose rows) are the contraction. The quads of a plane may be
// assigned to rows and columns of a product in any order, until results are stored. The
// order here lets a lane load adjacent words of a plane, and leaves it with 4 adjacent
// elements of the result. From a group of quads, lanes with g = lane / 4 load
//   float (m16n8k8, groups of 4 quads): elements g % 2 * 2 and the next of quad g / 2,
//   16-bit types (m16n8k16, groups of 8 quads): all 4 elements of quad g.
// In the left operand, two elements are rows g and g + 8 of a tile. In the right one,
// each element is column g of a separate product.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/mma/pack.cuh"
#include "cuda/capsule_conv/mma/product.cuh"
#include "cuda/capsule_conv/patch.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv::mma {

// A lane's share of a group of quads for a step: words of both halves of the
// contraction, which are the two halves of an mma.sync fragment.
template <typename S>
struct QuadFragment {
  static constexpr bool kFloat = std::is_same_v<S, float>;
  static constexpr int kQuads = kFloat ? 4 : 8;
  static constexpr int kElements = kFloat ? 2 : 4;  // words per lane and half
  static constexpr int kRows = kFloat ? 8 : 16;     // contraction rows per step
  static constexpr int kStep = 128;                 // bytes from one step to the next
  uint32_t words[2][kElements];

  // The quad of a group that this lane loads, and the byte offset in a step.
  __device__ static int Quad() {
    const int g = threadIdx.x % kLanes / 4;
    return kFloat ? g / 2 : g;
  }
  __device__ static int Byte() {
    const int lane = threadIdx.x % kLanes;
    return lane % 4 * 16 + (kFloat ? lane / 4 % 2 * 8 : 0);
  }

  // Loads from shared memory. With an odd number of pose rows, pairs of 16-bit rows are
  // not aligned to 16 bytes. Volatile, so that the compiler does not delay the loads.
  template <bool kEvenRows>
  __device__ void Load(uint32_t from) {
#pragma unroll
    for (int half = 0; half < 2; ++half, from += kStep / 2) {
      uint32_t (&to)[kElements] = words[half];
      if constexpr (kEvenRows && !kFloat) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
      } else {
#pragma unroll
        for (int w = 0; w < kElements; w += 2) {
          asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                       : "=r"(to[w]), "=r"(to[w + 1])
                       : "r"(from + 4 * w)
                       : "memory");
        }
      }
    }
  }

  // Zeroes all but the first `rows` rows of the step.
  __device__ void MaskRows(int rows) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int w = 0; w < kElements; ++w) {
        const int row = half * (kRows / 2) + (kFloat ? t : 2 * t + w / 2);
        if (row >= rows) words[half][w] = 0;
      }
    }
  }

  // Converts element e of a half of the contraction to an operand register. A 16-bit
  // register pairs the element in two rows, which are in different words.
  template <Tf32 kTf32>
  __device__ void Get(int e, int half, uint32_t (&high)[1], uint32_t (&low)[1]) const {
    if constexpr (kFloat && kTf32 == Tf32::kSplit) {
      // Like Operand::SetWithoutOverflow(), but with fewer registers here.
      const float x = __uint_as_float(words[half][e]);
      const uint32_t round_up = fabsf(x) < 0x1.ffep127f ? 0x1000 : 0;
      high[0] = (words[half][e] + round_up) & 0xffffe000;
      low[0] = __float_as_uint(x - __uint_as_float(high[0]));
    } else if constexpr (kFloat) {
      Operand<1, kTf32> operand;
      operand.Set(0, __uint_as_float(words[half][e]));
      high[0] = operand.high[0];
    } else {
      high[0] = __byte_perm(words[half][e / 2], words[half][2 + e / 2],
                            e % 2 == 0 ? 0x5410 : 0x7632);
    }
  }
};

// The lines of a patch that are contracted: `height` lines of `length` rows.
struct Lines {
  int height, length;
  int left, right;  // bytes between lines in the two patches

  template <typename S>
  __device__ int steps() const {
    return height * ((length + QuadFragment<S>::kRows - 1) / QuadFragment<S>::kRows);
  }
};

// sums += left^T right over the rows of a lattice tile. `left_at` and `right_at` are
// the byte offsets of this lane's quads in the patches.
template <typename S, Tf32 kTf32, bool kEvenRows, int kLefts, int kRights>
__device__ void MultiplyTile(uint32_t left, uint32_t right, const Lines& lines,
                             const int (&left_at)[kLefts],
                             const int (&right_at)[kRights],
                             float (&sums)[kLefts * QuadFragment<S>::kElements / 2]
                                          [kRights * QuadFragment<S>::kElements][4]) {
  using G = QuadFragment<S>;
  constexpr int kTiles = G::kElements / 2, kProducts = kRights * G::kElements;
  struct Operands {
    G left[kLefts], right[kRights];
  };
  const auto load_left = [&](Operands& operands, int m) {
    operands.left[m].template Load<kEvenRows>(left + left_at[m]);
  };
  const auto load_right = [&](Operands& operands, int n) {
    operands.right[n].template Load<kEvenRows>(right + right_at[n]);
  };
  const auto load = [&](Operands& operands) {
#pragma unroll
    for (int m = 0; m < kLefts; ++m) load_left(operands, m);
#pragma unroll
    for (int n = 0; n < kRights; ++n) load_right(operands, n);
  };
  // Multiplies one step; if `ahead`, loads the next operands as registers become free.
  const auto multiply = [&](Operands& operands, auto ahead) {
    RowFragment<S, kTf32> a[kLefts * kTiles];
#pragma unroll
    for (int m = 0; m < kLefts * kTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        uint32_t high[1], low[1];
        operands.left[m / kTiles].template Get<kTf32>(m % kTiles * 2 + e % 2, e / 2,
                                                      high, low);
        a[m].part[0][e] = high[0];
        if constexpr (kTf32 == Tf32::kSplit) a[m].part[1][e] = low[0];
      }
    }
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
      uint32_t b[kParts<kTf32>][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t high[1], low[1];
        operands.right[n / G::kElements].template Get<kTf32>(n % G::kElements, half,
                                                             high, low);
        b[0][half] = high[0];
        if constexpr (kTf32 == Tf32::kSplit) b[1][half] = low[0];
      }
      if constexpr (ahead) {
#pragma unroll
        for (int m = n * kLefts / kProducts; m < (n + 1) * kLefts / kProducts; ++m) {
          load_left(operands, m);
        }
        if ((n + 1) % G::kElements == 0) load_right(operands, n / G::kElements);
      }
#pragma unroll
      for (int m = 0; m < kLefts * kTiles; ++m) {
        MultiplyAdd<S, kTf32>(a[m], b, sums[m][n]);
      }
    }
  };

  const int line_steps = lines.length / G::kRows;  // full steps per line
  if (line_steps > 0) {
    const int left_jump = lines.left - (line_steps - 1) * G::kStep;
    const int right_jump = lines.right - (line_steps - 1) * G::kStep;
    int steps = lines.height * line_steps, to_line_end = line_steps;
    const uint32_t left_begin = left, right_begin = right;
    Operands operands;
    load(operands);
#pragma unroll 1
    while (--steps > 0) {
      const bool line_ends = --to_line_end == 0;
      left += line_ends ? left_jump : G::kStep;
      right += line_ends ? right_jump : G::kStep;
      if (line_ends) to_line_end = line_steps;
      multiply(operands, std::true_type());
    }
    multiply(operands, std::false_type());
    left = left_begin + line_steps * G::kStep;
    right = right_begin + line_steps * G::kStep;
  }
  // The last, partial step of each line: the rows past its end must not count.
  const int rest = lines.length - line_steps * G::kRows;
#pragma unroll 1
  for (int line = rest > 0 ? lines.height : 0; line > 0; --line) {
    Operands operands;
    load(operands);
#pragma unroll
    for (int m = 0; m < kLefts; ++m) operands.left[m].MaskRows(rest);
#pragma unroll
    for (int n = 0; n < kRights; ++n) operands.right[n].MaskRows(rest);
    multiply(operands, std::false_type());
    left += lines.left;
    right += lines.right;
  }
}

// Calls `then` for each group of 4 neighboring results of this lane: element `q` of
// row quad `quad`, and all elements of a column quad.
template <typename S, int kTiles, int kProducts, typename Then>
__device__ void ForEachResult(const float (&sums)[kTiles][kProducts][4],
                              const Then& then) {
  const int g = threadIdx.x % kLanes / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (std::is_same_v<S, float>) {
#pragma unroll
        for (int n = 0; n < kProducts; n += 2) {
          const auto& one = sums[m][n];
          const auto& other = sums[m][n + 1];
          then(m * 4 + g / 2, g % 2 * 2 + h, n * 2 + t,
               float4{one[2 * h], other[2 * h], one[2 * h + 1], other[2 * h + 1]});
        }
      } else {
#pragma unroll
        for (int n = 0; n < kProducts; n += 4) {
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            const int e = 2 * h + v;
            then(m / 2 * 8 + g, m % 2 * 2 + h, n * 2 + 2 * t + v,
                 float4{sums[m][n][e], sums[m][n + 1][e], sums[m][n + 2][e],
                        sums[m][n + 3][e]});
          }
        }
      }
    }
  }
}

}  // namespace capsops::capsule_conv::mma
