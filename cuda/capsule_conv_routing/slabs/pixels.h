// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The tiling of kernels that route pixels. A block routes tiles of `pixels` pixels, one
// after another, with a group of `lanes` lanes for each parent of a pixel. The numbers
// of a parent are the elements of its vector, `dim` of them.
//
// If `quads` is not 0, a lane loads its votes from global memory to registers once per
// pixel (lanes.cuh). Otherwise lanes handle `vector` numbers at a time, and each row of
// logits has a group of `row_lanes` lanes (tile.cuh). If `shared`, votes and all
// results of a pixel are in shared memory; else votes are read from global memory in
// each step, and results are in the workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/round.h"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kMostThreads = 256;
// Threads per block if votes are in registers.
constexpr int kLaneThreads = 128;
// A tile has at most 32 pixels. Shared memory begins with their places in the output.
constexpr int kMostPixels = 32;
constexpr int kPlaceBytes = kMostPixels * sizeof(int64_t);
constexpr int kMostSize = 1 << 28;  // the most types, parents or numbers of a parent

// Blocks per multiprocessor, for launch bounds: as many as registers allow if a lane
// has `types` types of `quads` quads.
constexpr int LaneBlocks(int types, int quads, bool gradient) {
  const int votes = types * quads;
  if (votes >= 16) return types == 16 || quads == 4 ? 3 : 4;
  return votes == 8 ? (gradient ? 4 : 6) : gradient ? 6 : 8;
}

// Kernel parameters. Sizes and offsets are in elements of A, the type of sums.
struct Tiling {
  int types, parents, dim, iterations;
  bool leaky;
  float epsilon;

  int lanes, pixels;  // lanes per parent of a pixel, pixels per tile
  int blocks;         // the most blocks of a launch

  // Votes in registers: quads and types of a lane, lanes of a pixel in a warp, and
  // whether the warps of a block share the types of a pixel.
  int quads, lane_types, group;
  bool divided;

  int vector, row_lanes, threads;
  // Votes in memory: offsets of a pixel's arrays.
  // - votes [types][parents][dim]
  // - sums, totals [parents][dim] and shares, share_grads [types][parents], in the
  //   gradient for each iteration
  // - output_grads [parents][dim]
  // - bias_sums, logits_sums: gradients that the block adds up over its tiles
  int64_t votes, sums, totals, shares, share_grads, output_grads, bias_sums,
      logits_sums;
  int64_t pixel;         // elements of a pixel
  int64_t first_shares;  // offset of the first iteration's shares, for all pixels
  int64_t block;         // elements of a block
  bool shared;           // whether these fit into shared memory, after the places

  constexpr int columns() const { return parents * dim; }
  // The blocks of a launch.
  int Blocks(int64_t all_pixels) const {
    return static_cast<int>(std::min<int64_t>(CeilDivide(all_pixels, pixels), blocks));
  }
  // Bytes of a block's shared memory if votes are in registers: for the exchange of
  // sums between warps, and for the results that the gradient keeps.
  int64_t ExchangedBytes() const {
    return divided ? int64_t{2} * 16 * kLaneThreads * quads : 0;
  }
  int64_t KeptBytes() const {
    const int64_t quads_of_types = CeilDivide(lane_types, 4);
    return 16 * kLaneThreads *
           (int64_t{iterations} * 2 * (quads + quads_of_types) + quads_of_types);
  }
};

// Route pixels, as `Route` and `RouteBackward` of capsule_conv_slabs_plan.h.
template <typename T>
LaunchError Route(const GpuExec& exec, const char* op, const Tiling& tiling,
                  const Places& places, const T* votes, const T* bias, const T* logits,
                  T* output, Accumulator<T>* space);
template <typename T>
LaunchError RouteBackward(const GpuExec& exec, const char* op, const Tiling& tiling,
                          const Places& places, const T* grad, const T* bias,
                          const T* logits, T* votes, Accumulator<T>* parts,
                          Accumulator<T>* space);

// Versions with votes in registers. T is not double.
template <typename T>
LaunchError RouteLanes(const GpuExec& exec, const char* op, const Tiling& tiling,
                       const Places& places, const T* votes, const T* bias,
                       const T* logits, T* output);
template <typename T>
LaunchError RouteLanesBackward(const GpuExec& exec, const char* op,
                               const Tiling& tiling, const Places& places,
                               const T* grad, const T* bias, const T* logits, T* votes,
                               float* parts);

}  // namespace capsops::capsule_conv_routing::slabs
