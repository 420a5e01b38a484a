// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans VotesKernel.
#include <algorithm>
#include <cstdint>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/capsule_conv_routing/slabs/votes.cuh"

namespace capsops::capsule_conv_routing::slabs {

VoteStage::VoteStage(const Problem& p, const AxisPhase& x, int element)
    : rows(2 * x.out.count * p.types > kTilePositions ? 1 : 2),
      types(static_cast<int>(x.stride == 1 ? 1 : p.types)),
      pixels(kTilePositions / rows / types),
      stride(static_cast<int>(x.stride)),
      first_pixel(static_cast<int>(-x.pad * (p.types / types))),
      x_taps(static_cast<int>(x.taps)) {
  const int dilation = static_cast<int>(x.dilation * (p.types / types));
  const int reach = (x_taps - 1) * dilation, all = pixels + reach / stride;
  boxes = std::min(stride, reach + 1);
  const int bytes = static_cast<int>(p.in_dim) * element;
  // Chooses the widest line whose bytes divide those of in_dim and of which three
  // stages fit, or else 32 bytes. Splits a box into as few loads as TMA allows: a load
  // spans at most 256 pixels, with those that it skips.
  for (line = 128;; line /= 2) {
    const int unit = std::max(1024 / line, types);
    for (loads = 1;; ++loads) {
      load_lines = static_cast<int>(RoundUp(CeilDivide(all, loads) * types, unit));
      if (load_lines / types * stride <= 256) break;
    }
    row_bytes = boxes * loads * load_lines * line;
    tap_bytes = kTileColumns * line;
    count = std::min(kMostStages,
                     (kRingBytes - kStoreBytes<char> * element) / this->bytes());
    if (line == 32 || (count > 2 && bytes % line == 0)) break;
  }
  chunks = CeilDivideInt(bytes, line);
  for (int tap = 0; tap < std::min(x_taps, kMostTaps); ++tap) {
    const int at = tap * dilation;
    shifts[tap] =
        static_cast<uint16_t>(at % stride * loads * load_lines + at / stride * types);
  }
}

VoteTiles::VoteTiles(const Problem& p, const Slab& slab, int element)
    : z(p, slab),
      y(slab),
      stage(p, slab.phase.x, element),
      positions(static_cast<int>(slab.phase.x.out.count * p.types)),
      columns(static_cast<int>(Columns(p))),
      across(CeilDivideInt(positions, kTilePositions)),
      column_tiles(CeilDivideInt(columns, kTileColumns)) {}

// Requires shifts that fit in 16 bits, a stride that TMA can skip, whole pixels in a
// tile if there is a stride, and room for two stages. A plan for float also answers for
// 16-bit types, because narrower lines never leave room for fewer stages.
bool MakesVotes(const Problem& p) {
  return AllPhases(p, [&](const Phase& phase) {
    const AxisPhase& x = phase.x;
    const int64_t types = x.stride == 1 ? p.types : 1;
    return x.taps == 0 ||
           (x.taps <= kMostTaps && x.taps * phase.y.taps * phase.depth.taps < 65536 &&
            x.taps * x.dilation * types <= 1024 && x.stride <= 8 &&
            (x.stride == 1 || kTilePositions / 2 % p.types == 0) &&
            VoteStage(p, x, sizeof(float)).count >= 2);
  });
}

}  // namespace capsops::capsule_conv_routing::slabs
