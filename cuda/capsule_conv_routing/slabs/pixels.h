// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The tiling of kernels that route pixels. A block takes tiles of `pixels` pixels, one
// after another. Each parent of a pixel has a group of `lanes` lanes, which hold
// `vector` numbers at a time, and each row of logits a group of `row_lanes` lanes.
//
// Votes and all that routing keeps of a pixel are in shared memory or, if that is too
// small, votes are read from global memory and the rest is in the workspace.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kMostThreads = 256;
// A tile has at most 32 pixels. Their places are at the beginning of shared memory.
constexpr int kMostPixels = 32;
constexpr int kPlaceBytes = kMostPixels * sizeof(int64_t);
constexpr int kMostSize = 1 << 28;  // the most types, parents or numbers of a parent

// Sizes in elements of the type A of sums.
struct Tiling {
  int types, parents, dim, iterations;
  bool leaky;
  float epsilon;

  int vector, lanes, row_lanes, pixels, threads;
  // The offsets of the arrays of a pixel: votes [types][parents][dim]; the following
  // for each iteration in the gradient: sums and totals [parents][dim], shares and
  // their gradients [types][parents]; and what a block adds up of its pixels.
  int64_t votes, sums, totals, shares, share_grads, output_grads, bias_sums,
      logits_sums;
  int64_t pixel;         // elements of a pixel
  int64_t first_shares;  // the offset of those of the first iteration, of all pixels
  int64_t block;         // elements of a block
  bool shared;           // whether these fit into shared memory, after the places
  int blocks;            // the most blocks of a launch

  int columns() const { return parents * dim; }
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

}  // namespace capsops::capsule_conv_routing::slabs
