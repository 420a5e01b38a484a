// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Replaces the votes of pixels by their gradients, with the votes in shared or global
// memory. A block handles tiles of pixels, one after another (tile.cuh). It first
// routes the pixels, and keeps the results of all iterations; then it goes back through
// the iterations. cc/launch/capsule_conv_routing.h has the formulas.
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/launch.cuh"
#include "cuda/capsule_conv_routing/slabs/pixels.h"
#include "cuda/capsule_conv_routing/slabs/tile.cuh"

namespace capsops::capsule_conv_routing::slabs {

// The kept results of a pixel, for iterations r counted from 0: sums s, totals V,
// shares c, and the gradients of shares or logits. totals(r) gives the shares of
// iteration r + 1.
template <typename Tile>
struct Kept {
  using A = typename Tile::A;
  using Index = typename Tile::Index;

  __device__ Kept(const Tile& tile, int pixel) : tile(tile), own(tile.Pixel(pixel)) {}
  __device__ A* sums(int r) const {
    return own + Index(tile.z.sums) + r * tile.columns;
  }
  __device__ A* totals(int r) const {
    return own + Index(tile.z.totals) + r * tile.columns;
  }
  __device__ A* shares(int r) const {
    return r == 0 ? tile.FirstShares()
                  : own + Index(tile.z.shares) + (r - 1) * tile.pairs;
  }
  __device__ A* share_grads(int r) const {
    return own + Index(tile.z.share_grads) + r * tile.pairs;
  }

  const Tile& tile;
  A* const own;
};

// Routes as in forward.cu.cc, and keeps the results of all iterations.
template <typename Tile, typename S>
__device__ void RouteTile(Tile& tile, const S* bias, const S* logits) {
  using A = typename Tile::A;
  using Numbers = typename Tile::Numbers;
  const Tiling& z = tile.z;
  for (int r = 0; r < z.iterations; ++r) {
    const bool last = r == z.iterations - 1;
    tile.ForParents([&](int pixel, int parent) {
      const Kept<Tile> kept(tile, pixel);
      A* const sums = kept.sums(r);
      const auto squash = tile.Sum(pixel, parent, bias, kept.shares(r), sums);
      if (last) return;
      A* const totals = kept.totals(r);
      tile.ForNumbers([&](int d) {
        const auto at = tile.Column(parent) + d;
        Numbers v = *reinterpret_cast<const Numbers*>(sums + at);
#pragma unroll
        for (int e = 0; e < Tile::kNumbers; ++e) {
          v.at[e] = squash.factor * squash.Along(v.at[e]);
          if (r > 0) v.at[e] += totals[at + e - tile.columns];
        }
        *reinterpret_cast<Numbers*>(totals + at) = v;
      });
      tile.Dots(pixel, parent, totals, [&](int type, A dot) {
        const auto pair = typename Tile::Index{type} * z.parents + parent;
        if (tile.lane == 0) kept.shares(r + 1)[pair] = Widen(logits[pair]) + dot;
      });
    });
    if (!last) tile.SoftmaxRows(z.shares + int64_t{r} * tile.pairs);
  }
}

// Replaces the sums of iteration r by their gradients, and computes the gradients of
// shares.
template <typename Tile>
__device__ void SumGrads(Tile& tile, int r) {
  using A = typename Tile::A;
  using Numbers = typename Tile::Numbers;
  const Tiling& z = tile.z;
  tile.ForParents([&](int pixel, int parent) {
    const Kept<Tile> kept(tile, pixel);
    A *const sums = kept.sums(r), *const grads = kept.own + z.output_grads;
    const auto squash = tile.SquashOf(
        GroupSum(tile.Product(parent, sums, sums, A{1}), z.lanes), parent, sums);
    const A product = GroupSum(tile.Product(parent, sums, grads, A{1}), z.lanes);
    A small_product = 0;
    if (__any_sync(~0u, squash.huge)) {
      small_product = GroupSum(
          tile.Product(parent, sums, grads, capsule_routing::kShrink<A>), z.lanes);
    }
    const A slope = squash.Slope(product, small_product);
    tile.ForNumbers([&](int d) {
      const auto at = tile.Column(parent) + d;
      Numbers ds = *reinterpret_cast<const Numbers*>(sums + at);
#pragma unroll
      for (int e = 0; e < Tile::kNumbers; ++e) {
        ds.at[e] = squash.gain * grads[at + e] + slope * squash.Along(ds.at[e]);
        if (pixel < tile.valid) kept.own[z.bias_sums + at + e] += ds.at[e];
      }
      *reinterpret_cast<Numbers*>(sums + at) = ds;
    });
    tile.Dots(pixel, parent, sums, [&](int type, A dot) {
      const auto pair = typename Tile::Index{type} * z.parents + parent;
      if (tile.lane == 0) kept.share_grads(r)[pair] = dot;
    });
  });
}

// Replaces the gradients of shares by the gradients of logits.
template <typename Tile>
__device__ void LogitGrads(Tile& tile, int r) {
  using A = typename Tile::A;
  const Tiling& z = tile.z;
  __syncthreads();
  tile.ForRows([&](int pixel, int type) {
    const Kept<Tile> kept(tile, pixel);
    const auto row = typename Tile::Index{type} * z.parents;
    const A* const shares = kept.shares(r) + row;
    A* const grads = kept.share_grads(r) + row;
    A mean = 0;
    for (int j = tile.lane; j < z.parents; j += z.row_lanes) {
      mean += shares[j] * grads[j];
    }
    mean = GroupSum(mean, z.row_lanes);
    for (int j = tile.lane; j < z.parents; j += z.row_lanes) {
      grads[j] = shares[j] * (grads[j] - mean);
      if (pixel < tile.valid) kept.own[z.logits_sums + row + j] += grads[j];
    }
  });
  __syncthreads();
}

// Replaces the tile's votes, in the slab's array, by their gradients.
template <typename Tile, typename S>
__device__ void StoreVoteGrads(Tile& tile, S* votes) {
  using Numbers = typename Tile::Numbers;
  const Tiling& z = tile.z;
  tile.ForParents([&](int pixel, int parent) {
    if (pixel >= tile.valid) return;
    const Kept<Tile> kept(tile, pixel);
    tile.ForNumbers([&](int d) {
      const auto at = tile.Column(parent) + d;
      for (int i = 0; i < z.types; ++i) {
        const auto pair = typename Tile::Index{i} * z.parents + parent;
        Numbers sum{};
        for (int r = 0; r < z.iterations; ++r) {
          const auto share = kept.shares(r)[pair];
          const auto ds = *reinterpret_cast<const Numbers*>(kept.sums(r) + at);
#pragma unroll
          for (int e = 0; e < Tile::kNumbers; ++e) sum.at[e] += share * ds.at[e];
          if (r == 0) continue;
          const auto db = kept.share_grads(r)[pair];
          const auto total = *reinterpret_cast<const Numbers*>(kept.totals(r - 1) + at);
#pragma unroll
          for (int e = 0; e < Tile::kNumbers; ++e) sum.at[e] += db * total.at[e];
        }
        StorePack<Tile::kNumbers>(
            sum.at, votes + (int64_t{pixel} * z.types + i) * tile.columns + at);
      }
    });
  });
}

// Adds the gradients of the bias and of logits to the block's part of the partial sums,
// in this order. Each pixel of the tile has summed its own.
template <typename Tile, typename A>
__device__ void AddSums(const Tile& tile, A* part) {
  const Tiling& z = tile.z;
  __syncthreads();
  const auto size = tile.columns + tile.pairs;
  for (typename Tile::Index n = threadIdx.x; n < size; n += blockDim.x) {
    const int64_t at =
        n < tile.columns ? z.bias_sums + n : z.logits_sums + n - tile.columns;
    A sum = 0;
    for (int pixel = 0; pixel < z.pixels; ++pixel) sum += tile.Pixel(pixel)[at];
    part[n] += sum;
  }
}

// Routes the block's tiles, replaces their votes by gradients, and adds the gradients
// of bias and logits to the block's part.
template <typename S, int kPack, bool kShared, typename A>
__global__ void __launch_bounds__(kMostThreads)
    RouteBackwardKernel(const Tiling z, const Places places, const S* grad,
                        const S* bias, const S* logits, S* votes, A* parts, A* space) {
  using Tile = slabs::Tile<S, kPack, kShared>;
  using Numbers = typename Tile::Numbers;
  Tile tile(z, BlockState<kShared>(z, space), TilePlaces());
  for (int pixel = 0; pixel < z.pixels; ++pixel) {
    A* const own = tile.Pixel(pixel);
    for (typename Tile::Index n = threadIdx.x; n < tile.columns; n += blockDim.x) {
      own[z.bias_sums + n] = 0;
    }
    for (typename Tile::Index n = threadIdx.x; n < tile.pairs; n += blockDim.x) {
      own[z.logits_sums + n] = 0;
    }
  }
  tile.SetFirstShares(logits);
  ForTiles(z, places.pixels, [&](int64_t first) {
    tile.Move(first, places, votes);
    RouteTile(tile, bias, logits);
    // Each lane loads only the gradients that it uses itself, so no barrier is needed.
    tile.ForParents([&](int pixel, int parent) {
      A* const grads = tile.Pixel(pixel) + z.output_grads;
      tile.ForNumbers([&](int d) {
        const auto at = tile.Column(parent) + d;
        Numbers numbers{};
        if (pixel < tile.valid) {
          numbers = Tile::Widened(
              *reinterpret_cast<const Pack<S, kPack>*>(grad + tile.Output(pixel) + at));
        }
        *reinterpret_cast<Numbers*>(grads + at) = numbers;
      });
    });
    for (int r = z.iterations - 1;; --r) {
      SumGrads(tile, r);
      LogitGrads(tile, r);
      if (r == 0) break;
      // The gradient of V adds to the gradients of the outputs of all earlier
      // iterations. These do not include the gradient of the last output, `grad`.
      tile.ForParents([&](int pixel, int parent) {
        const Kept<Tile> kept(tile, pixel);
        A* const grads = kept.own + z.output_grads;
        tile.ForNumbers([&](int d) {
          const auto at = tile.Column(parent) + d;
          Numbers sum{};
          if (r < z.iterations - 1) sum = *reinterpret_cast<const Numbers*>(grads + at);
          tile.AddVotes(pixel, parent, d, kept.share_grads(r), &sum);
          *reinterpret_cast<Numbers*>(grads + at) = sum;
        });
      });
    }
    StoreVoteGrads(tile, votes + first * z.types * tile.columns);
  });
  AddSums(tile, parts + blockIdx.x * int64_t{tile.columns + tile.pairs});
}

template <typename T>
LaunchError RouteBackward(const GpuExec& exec, const char* op, const Tiling& tiling,
                          const Places& places, const T* grad, const T* bias,
                          const T* logits, T* votes, Accumulator<T>* parts,
                          Accumulator<T>* space) {
  using S = CudaType<T>;
  using A = Accumulator<T>;
  return WithTiling<A>(tiling, [&](auto pack, auto shared) {
    constexpr auto kKernel = RouteBackwardKernel<S, pack.value, shared.value, A>;
    return LaunchTiles<kKernel, A>(exec, op, tiling, places, grad, bias, logits, votes,
                                   parts, space);
  });
}

#define CAPSOPS_INSTANTIATE(T)                                                       \
  template LaunchError RouteBackward<T>(const GpuExec&, const char*, const Tiling&,  \
                                        const Places&, const T*, const T*, const T*, \
                                        T*, Accumulator<T>*, Accumulator<T>*);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
