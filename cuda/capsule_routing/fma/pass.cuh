// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule routing of any sizes in FMA: predictions, their softmax, and the pass over
// the input capsules that an iteration, or its gradient, consists of.
//
// A block has a group of 32 samples. A lane has 4 of them, those of one or two packs of
// 16 bytes, and, of 16 rows (elements of one output capsule), every fourth: it
// multiplies 4 rows of weights by 4 samples in registers. Rows past out_dim repeat the
// last one, and what comes of them is not used: times zero it would still be NaN where
// weights are infinite. Samples past the last have zero input; what comes of them stays
// in their lanes.
//
// Vectors of output capsules (V, ds, partial sums) lie in memory as [out_caps, out_dim,
// padded] of accumulators, where padded is the batch rounded up to whole groups.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_PASS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_PASS_CUH_

#include <cstdint>
#include <type_traits>

#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_routing::fma {

constexpr int kSamples = 32;                         // of a group
constexpr int kEach = 4;                             // samples of a lane
constexpr int kRows = 4;                             // rows of a lane
constexpr int kStripes = kLanes * kEach / kSamples;  // lanes that share samples
constexpr int kBlockRows = kRows * kStripes;
constexpr int kMaxWarps = 16;

// Accumulators of a pack: so many elements of in_dim are taken together, and so many
// samples lie together.
template <typename A>
constexpr int kPack = 16 / sizeof(A);
// From one element of in_dim to the next in a tile of input [capsule][k][sample].
template <typename A>
constexpr int kPitch = kSamples + kPack<A>;
// Input capsules whose predictions a lane holds together: as registers allow.
template <typename A>
constexpr int kTogether = 8 / sizeof(A);

struct Sizes {
  int64_t batch, padded, in_caps;
  int out_caps, out_dim, in_dim;
  int depth;       // in_dim rounded up to whole kPack
  int row_blocks;  // of kBlockRows rows, in one output capsule
  bool vector;     // rows of weights are aligned to kPack elements
  float epsilon;
  int64_t matrix;    // out_dim in_dim
  int64_t matrices;  // out_caps of them
  int64_t length;    // of a vector of output capsules

  // What a block's warps share out: an output capsule, and a block of its rows or as
  // great a part of the input capsules.
  __host__ __device__ int items() const { return out_caps * row_blocks; }
};

struct Place {
  int warp = threadIdx.x / kLanes, warps = blockDim.x / kLanes;
  int lane = threadIdx.x % kLanes;
  int stripe = lane / (kSamples / kEach);

  // The lane's sample b of the group. Packs of neighbouring lanes are neighbours.
  template <typename A>
  __device__ int sample(int b) const {
    return (b / kPack<A> * (kSamples / kEach) + lane % (kSamples / kEach)) * kPack<A> +
           b % kPack<A>;
  }
};

// The lane's rows of the row block that begins at row0.
struct Rows {
  int first;      // the others follow every kStripes
  int left;       // rows from there to out_dim
  int at[kRows];  // where they begin in a matrix of weights; past the last, the last

  __device__ Rows(const Sizes& z, const Place& place, int row0)
      : first(row0 + place.stripe), left(z.out_dim - first) {
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      at[e] = min(first + e * kStripes, z.out_dim - 1) * z.in_dim;
    }
  }
  __device__ bool has(int e) const { return e * kStripes < left; }
};

// What belongs to a lane's samples, in memory those of a group after each other.
template <typename A>
struct Samples {
  A at[kEach];

  __device__ static Samples Load(const Place& place, const A* from) {
    Samples samples;
#pragma unroll
    for (int b = 0; b < kEach; b += kPack<A>) {
      const auto pack =
          *reinterpret_cast<const Pack<A, kPack<A>>*>(from + place.sample<A>(b));
#pragma unroll
      for (int e = 0; e < kPack<A>; ++e) samples.at[b + e] = pack.at[e];
    }
    return samples;
  }
  __device__ void Store(const Place& place, A* to) const {
#pragma unroll
    for (int b = 0; b < kEach; b += kPack<A>) {
      Pack<A, kPack<A>> pack;
#pragma unroll
      for (int e = 0; e < kPack<A>; ++e) pack.at[e] = at[b + e];
      *reinterpret_cast<Pack<A, kPack<A>>*>(to + place.sample<A>(b)) = pack;
    }
  }
};

// Adds up x over the lanes that differ in the bits kFrom, kFrom / 2, ... kTo of their
// number, in a fixed order. Each step halves what a lane holds: of N elements it is
// left with part (those bits of its number) of N / (2 kFrom / kTo).
template <int kFrom, int kTo, int kSpan, typename A>
__device__ void SumHalves(A* x) {
  if constexpr (kFrom >= kTo) {
    const bool upper = threadIdx.x & kFrom;
#pragma unroll
    for (int n = 0; n < kSpan / 2; ++n) {
      const A sent = upper ? x[n] : x[n + kSpan / 2];
      const A kept = upper ? x[n + kSpan / 2] : x[n];
      x[n] = kept + __shfl_xor_sync(~0u, sent, kFrom);
    }
    SumHalves<kFrom / 2, kTo, kSpan / 2>(x);
  }
}

// Copies the group's samples of `count` input capsules from i0 on to `x`.
template <typename S, typename A>
__device__ void StageInput(const Sizes& z, const Place& place, const S* input,
                           int64_t group, int64_t i0, int count, A* x) {
  for (int e = place.lane; e < count * z.depth; e += kLanes) {
    const int n = e / z.depth, k = e % z.depth;
#pragma unroll 4
    for (int s = place.warp; s < kSamples; s += place.warps) {
      const int64_t b = group * kSamples + s;
      const bool inside = b < z.batch && k < z.in_dim;
      x[e * kPitch<A> + s] =
          inside ? Widen(input[(b * z.in_caps + i0 + n) * z.in_dim + k]) : A{0};
    }
  }
}

// Calls visit(k0, w) for every kPack elements of in_dim, from k0 on, with the lane's
// rows of weights there.
template <typename S, typename A, typename Visit>
__device__ void EachWeights(const Sizes& z, const Rows& rows, const S* matrix,
                            const Visit& visit) {
  const auto steps = [&](auto vector) {
#pragma unroll 1
    for (int k0 = 0; k0 < z.in_dim; k0 += kPack<A>) {
      A w[kRows][kPack<A>];
#pragma unroll
      for (int e = 0; e < kRows; ++e) {
        LoadRow(matrix + rows.at[e] + k0, z.in_dim - k0, vector, w[e]);
      }
      visit(k0, w);
    }
  };
  if (z.vector) {
    steps(std::true_type{});
  } else {
    steps(std::false_type{});
  }
}

// u = weights x for the lane's rows and samples; `matrix` is that of the input and the
// output capsule, `x` the tile of the input capsule.
template <typename S, typename A>
__device__ void Predict(const Sizes& z, const Place& place, const Rows& rows,
                        const S* matrix, const A* x, A (&u)[kRows][kEach]) {
#pragma unroll
  for (int e = 0; e < kRows; ++e) {
#pragma unroll
    for (int b = 0; b < kEach; ++b) u[e][b] = 0;
  }
  const auto add = [&](int k0, const A(&w)[kRows][kPack<A>]) {
#pragma unroll
    for (int k = 0; k < kPack<A>; ++k) {
      const auto xs = Samples<A>::Load(place, x + (k0 + k) * kPitch<A>);
#pragma unroll
      for (int e = 0; e < kRows; ++e) {
#pragma unroll
        for (int b = 0; b < kEach; ++b) u[e][b] += w[e][k] * xs.at[b];
      }
    }
  };
  EachWeights<S, A>(z, rows, matrix, add);
}

// Writes products[n][r][q][j][sample] of the `count` input capsules staged in `x`,
// whose weights begin at `weights`: the inner products of predictions with V (q = 0)
// and with ds (q = 1, where kProducts is 2) of each of `iterations`. V and ds follow
// each other in `vectors`, from the group's first sample of iteration 0 on. Where
// `first`, the V of iteration 0 is zero: its products are not written.
template <int kProducts, typename S, typename A>
__device__ void Agree(const Sizes& z, const Place& place, const S* weights, const A* x,
                      int count, const A* vectors, int iterations, bool first,
                      A* products) {
  constexpr int kCaps = kTogether<A>;
  const int x_size = z.depth * kPitch<A>;
  const int one = iterations * kProducts * z.out_caps * kSamples;  // of products
  for (int item = place.warp; item < z.items(); item += place.warps) {
    const int j = item / z.row_blocks, part = item % z.row_blocks;
    const int begin = static_cast<int64_t>(part) * count / z.row_blocks;
    const int end = static_cast<int64_t>(part + 1) * count / z.row_blocks;
    for (int row0 = 0; row0 < z.out_dim; row0 += kBlockRows) {
      const Rows rows(z, place, row0);
      const A* const lane_vectors =
          vectors + (int64_t{j} * z.out_dim + rows.first) * z.padded;
      const S* matrix = weights + begin * z.matrices + j * z.matrix;
      for (int n0 = begin; n0 < end; n0 += kCaps) {
        A u[kCaps][kRows][kEach];
#pragma unroll
        for (int t = 0; t < kCaps; ++t) {
          // In place of one past the last, the last again.
          const bool more = t > 0 && n0 + t < end;
          if (more) matrix += z.matrices;
          Predict(z, place, rows, matrix, x + (more ? n0 + t : n0) * x_size, u[t]);
        }
        matrix += z.matrices;
        const A* from = lane_vectors;
        A* to = products + n0 * one + j * kSamples;
        for (int r = 0; r < iterations; ++r) {
          A sums[kCaps][kProducts * kEach] = {};
#pragma unroll
          for (int e = 0; e < kRows; ++e) {
            if (!rows.has(e)) continue;
#pragma unroll
            for (int q = 0; q < kProducts; ++q) {
              if (q == 0 && r == 0 && first) continue;
              const auto v = Samples<A>::Load(
                  place, from + e * kStripes * z.padded + q * z.length);
#pragma unroll
              for (int t = 0; t < kCaps; ++t) {
#pragma unroll
                for (int b = 0; b < kEach; ++b) {
                  sums[t][q * kEach + b] += u[t][e][b] * v.at[b];
                }
              }
            }
          }
#pragma unroll
          for (int t = 0; t < kCaps; ++t) {
            SumHalves<kLanes / 2, kLanes / kStripes, kProducts * kEach>(sums[t]);
            if (n0 + t >= end) continue;
#pragma unroll
            for (int m = 0; m < kProducts; ++m) {
              const int q = (place.stripe * kProducts + m) / kEach;
              const int b = (place.stripe * kProducts + m) % kEach;
              A* const sum =
                  to + t * one + q * (z.out_caps * kSamples) + place.sample<A>(b);
              *sum = row0 > 0 ? *sum + sums[t][m] : sums[t][m];
            }
          }
          from += 2 * z.length;
          to += kProducts * z.out_caps * kSamples;
        }
      }
    }
  }
}

// One sample's softmax over the output capsules, kSamples apart at c and dc: c becomes
// softmax(logits + c), where c counts as zero unless `agreed`, and with kGradient dc
// becomes c (dc - sum_j c dc). Both become zero unless `inside`.
template <bool kGradient, typename S, typename A>
__device__ void Softmax(int out_caps, const S* logits, bool agreed, bool inside, A* c,
                        A* dc) {
  const int end = out_caps * kSamples;
  A maximum = -INFINITY, sum = 0, mean = 0;
  for (int j = 0; j < end; j += kSamples) {
    A logit = Widen(logits[j / kSamples]);
    if (agreed) logit += c[j];
    c[j] = logit;
    maximum = fmax(maximum, logit);
  }
  constexpr int kRun = 32 * kSamples;  // added up for itself: rounding grows less
  for (int j0 = 0; j0 < end; j0 += kRun) {
    A run = 0, run_mean = 0;
    for (int j = j0; j < min(j0 + kRun, end); j += kSamples) {
      const A exponential = exp(c[j] - maximum);
      c[j] = exponential;
      run += exponential;
      if constexpr (kGradient) run_mean += exponential * dc[j];
    }
    sum += run;
    mean += run_mean;
  }
  const A inverse = 1 / sum;
  mean *= inverse;
  for (int j = 0; j < end; j += kSamples) {
    const A coefficient = inside ? c[j] * inverse : A{0};
    c[j] = coefficient;
    if constexpr (kGradient) dc[j] = inside ? coefficient * (dc[j] - mean) : A{0};
  }
}

// Writes sum_i w u_hat over chunk blockIdx.y of the input capsules to
// partial[blockIdx.y], for the group of samples blockIdx.x, with
//   w = c                                        or, with kGradient,
//   w = c (dc - sum_j c dc), dc = <u_hat, ds>
// where c is the softmax of logits + <u_hat, V>. At `vectors` is V, zero where null,
// and ds after it. Where `coefficients` is not null, c is written there instead. The
// block works on `tile` input capsules at a time, in shared memory or, where there is
// one, in its `scratch_each` elements of `scratch`.
template <typename S, typename A, bool kGradient>
__global__ void __launch_bounds__(kMaxWarps* kLanes, 1)
    PassKernel(Sizes z, int tile, const S* __restrict__ input,
               const S* __restrict__ weights, const S* __restrict__ logits,
               const A* __restrict__ vectors, A* __restrict__ partial,
               S* __restrict__ coefficients, A* scratch, int64_t scratch_each) {
  constexpr int kProducts = kGradient ? 2 : 1;
  extern __shared__ float4 shared[];
  const Place place;
  const int64_t group = blockIdx.x;
  const int64_t begin = blockIdx.y * z.in_caps / gridDim.y;
  const int64_t end = (blockIdx.y + int64_t{1}) * z.in_caps / gridDim.y;
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  A* const x = scratch != nullptr ? scratch + block * scratch_each
                                  : reinterpret_cast<A*>(shared);
  A* const products = x + tile * z.depth * kPitch<A>;
  const int one = z.out_caps * kSamples;  // of products
  for (int64_t i0 = begin; i0 < end; i0 += tile) {
    const int count = min(int64_t{tile}, end - i0);
    const S* const tile_weights = weights + i0 * z.matrices;
    __syncthreads();
    StageInput(z, place, input, group, i0, count, x);
    __syncthreads();
    if (vectors != nullptr) {
      Agree<kProducts>(z, place, tile_weights, x, count, vectors + group * kSamples, 1,
                       false, products);
      __syncthreads();
    }
    for (int n = place.warp; n < count; n += place.warps) {
      A* const c = products + int64_t{n} * kProducts * one + place.lane;
      Softmax<kGradient>(z.out_caps, logits + (i0 + n) * z.out_caps, vectors != nullptr,
                         true, c, c + one);
      const int64_t b = group * kSamples + place.lane;
      if (coefficients == nullptr || b >= z.batch) continue;
      for (int j = 0; j < z.out_caps; ++j) {
        Narrow(c[j * kSamples],
               coefficients + (b * z.in_caps + i0 + n) * z.out_caps + j);
      }
    }
    if (coefficients != nullptr) continue;
    __syncthreads();
    for (int item = place.warp; item < z.items(); item += place.warps) {
      const int j = item / z.row_blocks;
      const Rows rows(z, place, item % z.row_blocks * kBlockRows);
      A* const to = partial + blockIdx.y * z.length +
                    (int64_t{j} * z.out_dim + rows.first) * z.padded + group * kSamples;
      Samples<A> sum[kRows] = {};
#pragma unroll
      for (int e = 0; e < kRows; ++e) {
        if (i0 > begin && rows.has(e)) {
          sum[e] = Samples<A>::Load(place, to + e * kStripes * z.padded);
        }
      }
      const S* matrix = tile_weights + j * z.matrix;
      const A* from = products + (kProducts - 1) * one + j * kSamples;
      for (int n = 0; n < count; ++n) {
        A u[kRows][kEach];
        Predict(z, place, rows, matrix, x + n * (z.depth * kPitch<A>), u);
        const auto w = Samples<A>::Load(place, from);
#pragma unroll
        for (int e = 0; e < kRows; ++e) {
#pragma unroll
          for (int b = 0; b < kEach; ++b) sum[e].at[b] += w.at[b] * u[e][b];
        }
        matrix += z.matrices;
        from += kProducts * one;
      }
#pragma unroll
      for (int e = 0; e < kRows; ++e) {
        if (rows.has(e)) sum[e].Store(place, to + e * kStripes * z.padded);
      }
    }
  }
}

}  // namespace capsops::capsule_routing::fma

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_PASS_CUH_
