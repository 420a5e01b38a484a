// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Work splits of the `phases` kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/obstacles.cuh"
#include "cuda/capsule_routing/phases/gradients.cuh"
#include "cuda/capsule_routing/phases/pass.cuh"

namespace capsops::capsule_routing::phases {

// Limit of the workspace for partial sums in bytes. More blocks need more of it.
constexpr int64_t kBlocksBytes = int64_t{64} << 20;
// Limit for sums of the gradient of weights if S cannot hold them, unless one input
// capsule per multiprocessor needs more.
constexpr int64_t kSumsBytes = int64_t{48} << 20;
// Limit for stored moments of softmaxes. If there are more, softmaxes are computed
// twice.
constexpr int64_t kMomentsBytes = int64_t{16} << 20;

constexpr int64_t kFewIterations = 3;
// Whether operands are split because TF32 does not suffice: if it is not allowed, or
// after many iterations, which make its errors visible in 16-bit results.
template <typename T>
bool NeedsSplit(const GpuExec& exec, const Problem& p) {
  if (sizeof(T) == 2) return p.iterations > kFewIterations;
  return std::is_same_v<T, float> && !exec.tf32;
}

// Requires every dimension to be positive and to fit in 32 bits.
inline Sizes SizesOf(const Problem& p, bool split) {
  Sizes z{};
  z.batch = p.batch;
  z.in_caps = p.in_caps;
  z.tiles = CeilDivide(p.batch, kTileSamples);
  z.out_caps = static_cast<int>(p.out_caps);
  z.out_dim = static_cast<int>(p.out_dim);
  z.in_dim = static_cast<int>(p.in_dim);
  z.blocks = CeilDivideInt(p.out_dim, kBlockD);
  z.steps = CeilDivideInt(p.in_dim, kStepK);
  z.pitch = (z.steps | 1) * kStepK;  // avoids bank conflicts between two samples
  z.pairs = p.in_dim % 2 == 0;
  z.words = p.in_dim % 4 == 0;
  z.split = split;
  for (z.finish_wide = 2; z.finish_wide < std::min(2 * z.blocks, kFinishWarps);) {
    z.finish_wide *= 2;
  }
  z.epsilon = p.epsilon();
  z.matrix = p.out_dim * p.in_dim;
  z.matrices = p.out_caps * z.matrix;
  z.length = z.tiles * kTileSamples * p.out_caps * z.blocks * kBlockD;
  return z;
}

// Returns the fraction of time for which `warps` warps are busy with `items` equal
// items.
inline double Utilization(int64_t items, int warps) {
  return static_cast<double>(items) / RoundUp(items, warps);
}

// Returns into how many groups warps split the runs of input capsules in phase A.
// Minimizes the estimated time, in which starting a group costs half a run.
inline int Groups(const Sizes& z, int tile_caps, int warps) {
  const int64_t runs = CeilDivide(tile_caps, kRun);
  int64_t best = INT64_MAX;
  int groups = 1;
  for (int64_t g = 1; g <= std::min<int64_t>(runs, warps); ++g) {
    const int64_t time =
        CeilDivide(z.out_caps * g, warps) * (2 * CeilDivide(runs, g) + 1);
    if (time < best) {
      best = time;
      groups = static_cast<int>(g);
    }
  }
  return groups;
}

// Work split of a pass into blocks of kPassWarps warps, one per multiprocessor.
template <typename A>
struct PassTiling {
  static constexpr int kRows = kPassTiles * kTileSamples;
  static constexpr int64_t kMinCaps = 2;  // input capsules per slice

  Sizes z;
  Cut cut;
  int64_t groups, slices;
  int64_t part_sums;  // elements of the sums of all parts
  int64_t elements;   // elements of the rest of a block's working set
  bool spills;        // whether `elements` are in the workspace

  PassTiling(const GpuDevice& device, const Problem& p, bool gradient, bool split)
      : z(SizesOf(p, split)) {
    groups = CeilDivide(z.tiles, kPassTiles);
    slices = std::clamp<int64_t>(device.processors / groups, 1,
                                 CeilDivide(z.in_caps, kMinCaps));
    slices = std::clamp<int64_t>(
        kBlocksBytes / std::max<int64_t>(1, z.length * sizeof(A)), 1, slices);
    cut.caps = {0, z.in_caps};
    cut.each = z.tiles > 1 && Utilization(z.items(), kPassWarps) > 0.8 ? kPassTiles : 1;
    cut.parts = 1;
    if (cut.each == 1) {
      const int64_t tiles = std::min<int64_t>(z.tiles, kPassTiles);
      const int64_t items = int64_t{z.items()} * tiles;
      for (int parts = 2; parts <= std::min<int64_t>(kPassWarps, z.in_caps / slices);
           ++parts) {
        if (parts * PartSums() * static_cast<int64_t>(sizeof(A)) > device.shared / 2) {
          break;
        }
        if (Utilization(items * parts, kPassWarps) >
            Utilization(items * cut.parts, kPassWarps) + 0.05) {
          cut.parts = parts;
        }
      }
    }
    part_sums = cut.parts > 1 ? cut.parts * PartSums() : 0;
    // Minimizes the number of tiles of input capsules.
    const int64_t caps = CeilDivide(z.in_caps, slices);
    const int64_t shares =
        (gradient ? 2 : 1) * (int64_t{z.out_caps} * kRows + Shares::kPad);
    const int64_t each = kRows * int64_t{z.pitch} + shares;
    const int64_t fits =
        (device.shared / static_cast<int64_t>(sizeof(A)) - part_sums) / each;
    spills = fits < 1;
    cut.tile_caps = static_cast<int>(
        spills ? std::min<int64_t>(caps, kRun)
               : CeilDivide(caps, CeilDivide(caps, std::min<int64_t>(fits, 4096))));
    if (!spills && cut.tile_caps > kRun && cut.tile_caps < caps &&
        RoundUp(cut.tile_caps, kRun) <= fits) {
      cut.tile_caps = static_cast<int>(RoundUp(cut.tile_caps, kRun));
    }
    elements = cut.tile_caps * (spills ? shares : each);
    cut.groups = Groups(z, cut.tile_caps, kPassWarps);
    if (spills) {
      slices = std::clamp<int64_t>(
          kBlocksBytes / (elements * static_cast<int64_t>(sizeof(A))) / groups, 1,
          slices);
    }
  }

  // Returns why the kernel cannot do this, or "".
  std::string Obstacle() const {
    return TooLarge({{"what a block works on, in numbers,", elements},
                     {"the blocks of a grid", cells()}});
  }
  int64_t cells() const { return z.tiles * z.out_caps; }  // blocks between passes
  int shared() const { return (part_sums + (spills ? 0 : elements)) * sizeof(A); }
  int64_t scratch() const { return spills ? slices * groups * elements : 0; }

 private:
  // Numbers in the sums of one part.
  int64_t PartSums() const { return kPassTiles * int64_t{z.items()} * (8 * kLanes); }
};

// Work split of GradientsKernel.
template <typename S, typename A>
struct GradientsTiling {
  static constexpr int kThreads = kGradientWarps * kLanes;
  static constexpr int64_t kOwn = kGradientWarps * sizeof(WarpMemory<A>);

  Sizes z;
  GradientsLayout layout;
  bool spills;
  int64_t blocks;
  int64_t held;  // input capsules whose moments fit in the workspace

  GradientsTiling(const GpuDevice& device, const Problem& p, bool split)
      : z(SizesOf(p, split)) {
    const auto with = [&](int64_t caps) {
      // Minimizes the estimated time, in which starting a run costs half an input
      // capsule. Takes fewer parts only if clearly faster, since they have more adders,
      // each with its own sums of grad_input.
      double best = INFINITY;
      int parts = 1;
      for (const int of_warps : {12, 6, 4, 3, 2, 1}) {
        const int64_t each = CeilDivide(caps, of_warps);
        const double time =
            static_cast<double>(CeilDivide(z.out_caps, kGradientWarps / of_warps)) *
            (each + 0.5 * CeilDivide(each, kRun));
        if (of_warps > caps || time > 0.9 * best) continue;
        best = time;
        parts = of_warps;
      }
      // Splits the tiles evenly into the fewest groups that fit.
      const auto of = [&](int64_t tiles) {
        layout = GradientsLayout(z, static_cast<int>(caps), static_cast<int>(tiles),
                                 p.iterations, parts, kPerStep<A>);
        return layout.size * static_cast<int64_t>(sizeof(A)) + kOwn <= device.shared;
      };
      for (int64_t groups = 1; groups < z.tiles; ++groups) {
        if (of(CeilDivide(z.tiles, groups))) return true;
      }
      return of(1);
    };
    // Uses the fewest waves of blocks that fit, of about equal size.
    const int64_t maximum = CeilDivide(z.in_caps, device.processors);
    const int64_t sums = weights_scratch_each() * sizeof(A) * device.processors;
    const int64_t caps =
        std::clamp<int64_t>(kSumsBytes / std::max<int64_t>(1, sums), 1, maximum);
    spills = true;
    for (int64_t waves = CeilDivide(maximum, caps); spills && waves <= maximum;
         ++waves) {
      if (with(CeilDivide(z.in_caps, device.processors * waves))) spills = false;
    }
    if (spills) with(std::min<int64_t>(maximum, kRun));
    blocks = CeilDivide(z.in_caps, layout.tile_caps);
    if (block_scratch() > 0) {
      const int64_t affordable =
          kBlocksBytes / (block_scratch() * static_cast<int64_t>(sizeof(A)));
      blocks = std::min(blocks, std::clamp<int64_t>(affordable, 1, device.processors));
    }
    // At least out_caps x D, whose moments take less memory than V and ds.
    const int64_t bytes = moments() * sizeof(Moments<A>);
    held = std::max(kMomentsBytes / std::max<int64_t>(1, bytes),
                    int64_t{z.items()} * kBlockD);
    held = bytes == 0 ? z.in_caps : std::min(held, z.in_caps);
  }

  // Returns why the kernel cannot do this, or "".
  std::string Obstacle() const {
    return TooLarge({{"what a block works on, in numbers,", layout.size},
                     {"the blocks of a grid", blocks}});
  }
  // Sums of the gradient of weights, per input capsule and per block.
  int64_t weights_scratch_each() const { return kHoldsSums<S, A> ? 0 : z.matrices; }
  int64_t weights_scratch() const { return layout.tile_caps * weights_scratch_each(); }
  int64_t block_scratch() const {
    return (spills ? layout.size : 0) + weights_scratch();
  }
  // Softmaxes of an input capsule in all iterations but the first.
  int64_t moments() const { return (layout.iterations - 1) * z.tiles * kTileSamples; }
  int shared() const { return kOwn + (spills ? 0 : layout.size * sizeof(A)); }
};

}  // namespace capsops::capsule_routing::phases
