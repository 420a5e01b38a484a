// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routes pixels, with their votes in shared or global memory. A block routes tiles of
// pixels, one after another; tile.cuh has the steps and the tasks of its threads.
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/launch.cuh"
#include "cuda/capsule_conv_routing/slabs/pixels.h"
#include "cuda/capsule_conv_routing/slabs/tile.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Routes the block's tiles of pixels, and stores their parents to `output`.
template <typename S, int kPack, bool kShared, typename A>
__global__ void __launch_bounds__(kMostThreads)
    RouteKernel(const Tiling z, const Places places, const S* votes, const S* bias,
                const S* logits, S* output, A* space) {
  using Tile = slabs::Tile<S, kPack, kShared>;
  using Numbers = typename Tile::Numbers;
  Tile tile(z, BlockState<kShared>(z, space), TilePlaces());
  tile.SetFirstShares(logits);
  ForTiles(z, places.pixels, [&](int64_t first) {
    tile.Move(first, places, votes);
    for (int r = 0;; ++r) {
      const bool last = r == z.iterations - 1;
      tile.ForParents([&](int pixel, int parent) {
        A* const own = tile.Pixel(pixel);
        A *const sums = own + z.sums, *const totals = own + z.totals;
        A* const shares = own + z.shares;
        const auto squash =
            tile.Sum(pixel, parent, bias, r == 0 ? tile.FirstShares() : shares, sums);
        tile.ForNumbers([&](int d) {
          const auto at = tile.Column(parent) + d;
          Numbers v = *reinterpret_cast<const Numbers*>(sums + at);
#pragma unroll
          for (int e = 0; e < kPack; ++e) {
            v.at[e] = squash.factor * squash.Along(v.at[e]);
            if (r > 0 && !last) v.at[e] += totals[at + e];
          }
          if (!last) {
            *reinterpret_cast<Numbers*>(totals + at) = v;
          } else if (pixel < tile.valid) {
            StorePack<kPack>(v.at, output + tile.Output(pixel) + at);
          }
        });
        if (last) return;
        tile.Dots(pixel, parent, totals, [&](int type, A dot) {
          const auto pair = typename Tile::Index{type} * z.parents + parent;
          if (tile.lane == 0) shares[pair] = Widen(logits[pair]) + dot;
        });
      });
      if (last) break;
      tile.SoftmaxRows(z.shares);
    }
  });
}

template <typename T>
LaunchError Route(const GpuExec& exec, const char* op, const Tiling& tiling,
                  const Places& places, const T* votes, const T* bias, const T* logits,
                  T* output, Accumulator<T>* space) {
  using S = CudaType<T>;
  using A = Accumulator<T>;
  return WithTiling<A>(tiling, [&](auto pack, auto shared) {
    constexpr auto kKernel = RouteKernel<S, pack.value, shared.value, A>;
    return LaunchTiles<kKernel, A>(exec, op, tiling, places, votes, bias, logits,
                                   output, space);
  });
}

#define CAPSOPS_INSTANTIATE(T)                                                   \
  template LaunchError Route<T>(const GpuExec&, const char*, const Tiling&,      \
                                const Places&, const T*, const T*, const T*, T*, \
                                Accumulator<T>*);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
