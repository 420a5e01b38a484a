// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How the work of a product is divided. A tile is 128 rows and up to 256 columns; a
// step, the contraction over 128 bytes. The steps of all tiles form one list, of which
// blocks take equal stretches. Where a stretch ends within a tile, its block waits for
// those that follow, each of which begins with its part of that tile, and adds up the
// parts. Storing a tile counts as steps, too.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_TMA_STEPS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_TMA_STEPS_CUH_

#include <cstdint>

#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv::tma {

constexpr int kRows = 128;                 // of a tile
constexpr int kGroups = 2;                 // warpgroups that multiply, 64 rows each
constexpr int kMultipliers = 4 * kGroups;  // warps
// A warpgroup more, of which one thread brings operands. It gives up registers that the
// others take.
constexpr int kThreads = 128 * (kGroups + 1);
constexpr int kRegisters = 168, kMany = 232, kFew = 40;
static_assert(kGroups * kMany + kFew <= (kGroups + 1) * kRegisters);

// How the left operand of a step lies in shared memory: as rows of terms; as terms of
// rows, and the right one alike; or such that warps take it to registers.
enum class Left { kTerms, kRows, kRegisters };

// What storing a tile costs, in steps: nothing is done in these, the last of the tile.
constexpr int kStoreSteps = 8;

// Stretches of `steps` steps for `blocks` blocks, no more than there are steps.
struct Stretches {
  int steps, blocks;

  __host__ __device__ int Begin(int block) const {
    return static_cast<int>(int64_t{steps} * block / blocks);
  }
  // The block that makes a step.
  __host__ __device__ int Owner(int step) const {
    return static_cast<int>(((step + int64_t{1}) * blocks - 1) / steps);
  }
};

// The steps of a tile: from `first` on, `count` that multiply and those of storing.
struct TileSteps {
  int first, count;

  __device__ int Multiplied() const { return first + count; }
  __device__ int End() const { return first + count + kStoreSteps; }
};

constexpr int kPartThreads = 128 * kGroups;  // that write and read parts

// Where the columns of an output go: o * columns + r for output channel o.
struct Columns {
  int count;
  int outer;         // elements from one o to the next
  Divisor by_inner;  // columns of a pose
  // Elements from one column to the 32nd after it, if that is the same everywhere and
  // columns 4 n to 4 n + 3 are 4 aligned elements. Else 0.
  int apart;

  __device__ int64_t Place(int column) const {
    int inner;
    const int out = by_inner.Split(column, &inner);
    return int64_t{out} * outer + inner;
  }
};

}  // namespace capsops::capsule_conv::tma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_TMA_STEPS_CUH_
