// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Stream-K division of a product. A tile has 128 rows and up to 256 columns; a step
// contracts 128 bytes of each row. The steps of all tiles form one list, which is
// divided evenly into a range per block. A tile belongs to the block whose range has
// the tile's first step. If that range ends within the tile, the blocks of the
// following ranges write partial tiles, and the tile's block waits for these and adds
// them in order. To balance the load, storing a tile counts as kStoreSteps steps.
#pragma once

#include <cstdint>

#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv::tma {

constexpr int kRows = 128;  // rows per tile
constexpr int kGroups = 2;  // consumer warpgroups, 64 rows each
constexpr int kConsumerWarps = 4 * kGroups;
// One more warpgroup has the producer thread.
constexpr int kThreads = 128 * (kGroups + 1);
// Registers per thread at launch and, after setmaxnreg, per consumer and per producer
// thread.
constexpr int kRegisters = 168, kMany = 232, kFew = 40;
static_assert(kGroups * kMany + kFew <= (kGroups + 1) * kRegisters);

// The left operand of a step in shared memory: K-major (kTerms); MN-major, as is the
// right operand (kRows); or loaded to registers first (kRegisters).
enum class Left { kTerms, kRows, kRegisters };

// The cost of storing a tile, in steps. They follow the steps that multiply.
constexpr int kStoreSteps = 8;

// The ranges of `steps` steps for `blocks` blocks, at most one block per step.
struct StreamKRanges {
  int steps, blocks;

  __host__ __device__ int Begin(int block) const {
    return static_cast<int>(int64_t{steps} * block / blocks);
  }
  // The block whose range includes the step.
  __host__ __device__ int Owner(int step) const {
    return static_cast<int>(((step + int64_t{1}) * blocks - 1) / steps);
  }
};

// The steps of a tile: `count` steps that multiply, from `first` on, then kStoreSteps.
struct TileSteps {
  int first, count;

  __device__ int MultiplyEnd() const { return first + count; }
  __device__ int End() const { return first + count + kStoreSteps; }
};

constexpr int kPartThreads = 128 * kGroups;  // consumer threads

// Maps a column of the product to its offset in a row of the target.
struct Columns {
  int count;
  int outer;         // elements from an output channel to the next
  Divisor by_inner;  // pose columns
  // The stride from a column to the 32nd after it, if it is constant and columns 4 n to
  // 4 n + 3 are 4 aligned elements; else 0.
  int apart;

  __device__ int64_t Place(int column) const {
    int inner;
    const int out = by_inner.Split(column, &inner);
    return int64_t{out} * outer + inner;
  }
};

}  // namespace capsops::capsule_conv::tma
