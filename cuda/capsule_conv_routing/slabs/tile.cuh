// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of routing for a tile of pixels, with results in shared memory or in the
// workspace (pixels.h). A group of lanes handles a parent of a pixel, or a row of
// logits. A lane handles the same numbers of its parent in every step, so that groups
// exchange only shares and their gradients, which need barriers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv_routing/slabs/pixels.h"
#include "cuda/capsule_routing/squash.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Returns the sum, or the maximum, over the `lanes` lanes of a group, in a fixed order.
// All lanes of the warp must take part.
template <typename A>
__device__ A GroupSum(A x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}
template <typename A>
__device__ A GroupMax(A x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(~0u, x, offset);
    x = x < other ? other : x;
  }
  return x;
}

// The tile that a block works on. S is the type of votes; a lane loads kPack votes at a
// time. kShared is Tiling::shared.
template <typename S, int kPack, bool kShared>
class Tile {
 public:
  using A = decltype(Widen(S()));
  using Index = std::conditional_t<kShared, int, int64_t>;
  using Numbers = Pack<A, kPack>;
  static constexpr int kNumbers = kPack;

  __device__ Tile(const Tiling& tiling, A* state, int64_t* places)
      : z(tiling),
        columns(Index{tiling.parents} * tiling.dim),
        pairs(Index{tiling.types} * tiling.parents),
        state_(state),
        places_(places) {}

  // Moves on to the pixels from `first` on: finds their places in the output and, with
  // kShared, copies their votes to shared memory. `votes` is the whole slab's array.
  __device__ void Move(int64_t first, const Places& places, const S* votes) {
    const int64_t left = places.pixels - first;
    valid = left < z.pixels ? static_cast<int>(left) : z.pixels;
    const Index size = z.types * columns;
    votes_ = votes + first * size;
    __syncthreads();  // until no thread needs the previous tile
    if (static_cast<int>(threadIdx.x) < valid) {
      places_[threadIdx.x] = places.At(first + threadIdx.x);
    }
    if constexpr (kShared) {
#pragma unroll 4
      for (int n = threadIdx.x * kPack; n < valid * size; n += blockDim.x * kPack) {
        const int pixel = n / size;
        *reinterpret_cast<Numbers*>(Pixel(pixel) + z.votes + n - pixel * size) =
            Widened(*reinterpret_cast<const Pack<S, kPack>*>(votes_ + n));
      }
    }
    __syncthreads();
  }

  // Calls visit(pixel, parent) for all parents of all pixels of the tile, each in one
  // group of lanes. All lanes of a warp make the same number of calls, so that visit()
  // may exchange values across the warp.
  template <typename Visit>
  __device__ void ForParents(const Visit& visit) {
    ForUnits(z.pixels, z.parents, z.lanes, visit);
  }
  // Calls visit(pixel, type) for all rows of logits in the same way.
  template <typename Visit>
  __device__ void ForRows(const Visit& visit) {
    ForUnits(z.pixels, z.types, z.row_lanes, visit);
  }

  // Calls visit(d) for each pack of a parent's numbers that this lane owns; d is the
  // first of its kPack numbers.
  template <typename Visit>
  __device__ void ForNumbers(const Visit& visit) const {
    for (int d = lane * kPack; d < z.dim; d += z.lanes * kPack) visit(d);
  }

  __device__ A* Pixel(int pixel) const {
    return state_ + Index{pixel} * Index(z.pixel);
  }
  // The offset of a pixel's parents in the output.
  __device__ int64_t Output(int pixel) const { return places_[pixel] * columns; }
  __device__ A* FirstShares() const { return state_ + Index(z.first_shares); }
  __device__ Index Column(int parent) const { return Index{parent} * z.dim; }

  // Loads kPack votes.
  __device__ Numbers Vote(int pixel, int type, Index column) const {
    const Index at = type * columns + column;
    if constexpr (kShared) {
      return *reinterpret_cast<const Numbers*>(Pixel(pixel) + z.votes + at);
    } else {
      return Widened(*reinterpret_cast<const Pack<S, kPack>*>(
          votes_ + pixel * int64_t{z.types} * columns + at));
    }
  }

  // Adds the sum over types of coefficient * vote to `sum`, for the kPack numbers of a
  // parent from d on.
  __device__ void AddVotes(int pixel, int parent, int d, const A* coefficients,
                           Numbers* sum) const {
#pragma unroll 4
    for (int i = 0; i < z.types; ++i) {
      const A c = coefficients[Index{i} * z.parents + parent];
      const Numbers vote = Vote(pixel, i, Column(parent) + d);
#pragma unroll
      for (int e = 0; e < kPack; ++e) sum->at[e] += c * vote.at[e];
    }
  }

  // Calls store(type, <vote, vector>) for all types, in all lanes of the group. Each
  // lane must have stored its own numbers of `vectors` [parents][dim] itself. store()
  // may overwrite what lanes of the group read before Dots() was called.
  template <typename Store>
  __device__ void Dots(int pixel, int parent, const A* vectors,
                       const Store& store) const {
    constexpr int kTogether = 4;  // types whose loads and shuffles overlap
    __syncwarp();
    for (int first = 0; first < z.types; first += kTogether) {
      A dots[kTogether] = {};
      ForNumbers([&](int d) {
        const Numbers own =
            *reinterpret_cast<const Numbers*>(vectors + Column(parent) + d);
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          if (first + n >= z.types) break;
          const Numbers vote = Vote(pixel, first + n, Column(parent) + d);
#pragma unroll
          for (int e = 0; e < kPack; ++e) dots[n] += vote.at[e] * own.at[e];
        }
      });
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const A dot = GroupSum(dots[n], z.lanes);
        if (first + n < z.types) store(first + n, dot);
      }
    }
  }

  // Replaces logits, at offset `shares` of each pixel's memory, by their softmax.
  __device__ void SoftmaxRows(int64_t shares) {
    __syncthreads();
    ForRows([&](int pixel, int type) {
      Softmax(Pixel(pixel) + Index(shares) + Index{type} * z.parents);
    });
    __syncthreads();
  }

  // Replaces a row of logits by its softmax over parents, in all lanes of its group.
  __device__ void Softmax(A* row) const {
    // The maximum begins with 0, the leaky term's logit, or else with the first logit.
    A most = z.leaky || lane >= z.parents ? A{0} : row[lane];
    if (!z.leaky) most = __shfl_sync(~0u, most, 0, z.row_lanes);
    for (int j = lane; j < z.parents; j += z.row_lanes) {
      most = most < row[j] ? row[j] : most;
    }
    most = GroupMax(most, z.row_lanes);
    A sum = 0;
    for (int j = lane; j < z.parents; j += z.row_lanes) {
      const A e = ExpBelow(row[j], most);
      row[j] = e;
      sum += e;
    }
    sum = GroupSum(sum, z.row_lanes);
    if (z.leaky) sum += ExpBelow(A{0}, most);
    const A scale = 1 / sum;
    for (int j = lane; j < z.parents; j += z.row_lanes) row[j] *= scale;
  }

  // Sets the shares of the first iteration, which all pixels have in common.
  __device__ void SetFirstShares(const S* logits) {
    A* const shares = FirstShares();
    for (Index n = threadIdx.x; n < pairs; n += blockDim.x) {
      shares[n] = Widen(logits[n]);
    }
    __syncthreads();
    ForUnits(1, z.types, z.row_lanes,
             [&](int, int type) { Softmax(shares + Index{type} * z.parents); });
    __syncthreads();
  }

  // Stores bias + sum over types of share * vote, and returns the factors of its
  // squash.
  __device__ capsule_routing::Squash<A> Sum(int pixel, int parent, const S* bias,
                                            const A* shares, A* sums) const {
    A q = 0;
    ForNumbers([&](int d) {
      const Index at = Column(parent) + d;
      Numbers sum = Widened(*reinterpret_cast<const Pack<S, kPack>*>(bias + at));
      AddVotes(pixel, parent, d, shares, &sum);
      *reinterpret_cast<Numbers*>(sums + at) = sum;
#pragma unroll
      for (int e = 0; e < kPack; ++e) q += sum.at[e] * sum.at[e];
    });
    return SquashOf(GroupSum(q, z.lanes), parent, sums);
  }

  // Returns the factors of squash of sums whose squared length is `q`.
  __device__ capsule_routing::Squash<A> SquashOf(A q, int parent, const A* sums) const {
    // All lanes of a warp decide alike, since GroupSum() needs all of them.
    A small = 0;
    if (__any_sync(~0u, q > capsule_routing::kHuge<A>)) {
      ForNumbers([&](int d) {
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          const A s = capsule_routing::kShrink<A> * sums[Column(parent) + d + e];
          small += s * s;
        }
      });
      small = GroupSum(small, z.lanes);
    }
    return capsule_routing::Squash<A>(q, small, z.epsilon);
  }

  // Returns a lane's part of <scale a, b> of one parent.
  __device__ A Product(int parent, const A* a, const A* b, A scale) const {
    A product = 0;
    ForNumbers([&](int d) {
      const Index at = Column(parent) + d;
#pragma unroll
      for (int e = 0; e < kPack; ++e) product += scale * a[at + e] * b[at + e];
    });
    return product;
  }

  __device__ static Numbers Widened(const Pack<S, kPack>& from) {
    Numbers to;
#pragma unroll
    for (int e = 0; e < kPack; ++e) to.at[e] = Widen(from.at[e]);
    return to;
  }

  const Tiling& z;
  const Index columns, pairs;
  int lane = 0;   // within the group that visit() is called for
  int valid = 0;  // pixels of the tile that exist

 private:
  // The lane number in a group without work. It is past all numbers and parents, so
  // that the lane only takes part in exchanges across its warp.
  static constexpr int kAbsent = kMostSize;

  // Calls visit(pixel, n) for `count` numbers n of each pixel, each in `lanes` lanes.
  template <typename Visit>
  __device__ void ForUnits(int pixels, int count, int lanes, const Visit& visit) {
    const int units = pixels * count, groups = blockDim.x / lanes;
    for (int begin = 0; begin < units; begin += groups) {
      const int unit = begin + threadIdx.x / lanes;
      lane = unit < units ? threadIdx.x % lanes : kAbsent;
      const int pixel = unit < units ? unit / count : 0;
      visit(pixel, unit < units ? unit - pixel * count : 0);
    }
  }

  A* const state_;
  int64_t* const places_;
  const S* votes_ = nullptr;
};

}  // namespace capsops::capsule_conv_routing::slabs
