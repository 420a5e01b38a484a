// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels between the passes: they add partial sums, and compute squash and its
// gradient. A block has one output capsule and one tile of samples.
#pragma once

#include "cuda/capsule_routing/phases/tile.cuh"
#include "cuda/capsule_routing/squash.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::phases {

// A thread's coordinates in the block, and its block-wide reductions. A warp has 8
// elements of the output capsule at a time, and a lane four values as in a product's
// result: elements 2t and 2t + 1 of rows 0 and 1 (samples g and g + 8). Warps with the
// same elements split the partial sums; slice 0 gets the results.
struct Cell {
  const Sizes& z;
  const int64_t tile = blockIdx.x / z.out_caps;
  const int j = blockIdx.x % z.out_caps;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int halves = 2 * z.blocks;
  const int wide = z.finish_wide;
  const int first = warp % wide, slice = warp / wide, slices = kFinishWarps / wide;

  __device__ int64_t sample(int row) const {
    return tile * kTileSamples + row * 8 + lane / 4;
  }
  __device__ bool has(int row, int d) const {
    return sample(row) < z.batch && d < z.out_dim;
  }
  // Index in [batch, out_caps, D], and in V or ds.
  __device__ int64_t in_array(int row, int d) const {
    return (sample(row) * z.out_caps + j) * z.out_dim + d;
  }
  __device__ int64_t in_vector(int row, int d) const {
    return OperandIndex(z, tile, j, row * 8 + lane / 4, d);
  }

  // Calls visit(row, d) for each element of the thread, including padding.
  template <typename Visit>
  __device__ void Each(const Visit& visit) const {
    if (slice > 0) return;
    for (int half = first; half < halves; half += wide) {
#pragma unroll
      for (int e = 0; e < 4; ++e) visit(e / 2, half * 8 + lane % 4 * 2 + e % 2);
    }
  }

  // Calls visit(row, d, sum) for each element, summed over `count` partial vectors.
  template <typename A, typename Visit>
  __device__ void EachSum(const A* partial, int64_t count, const Visit& visit) const {
    __shared__ Pack<A, 4> parts[kFinishWarps][kLanes];
    for (int half0 = 0; half0 < halves; half0 += wide) {
      const int half = half0 + first;
      Pack<A, 4> sum{};
      if (half < halves) {
        const A* const from =
            partial + VectorIndex(z, tile, j, half / 2, half % 2, lane);
#pragma unroll 8
        for (int64_t c = slice; c < count; c += slices) {
          const auto part = *reinterpret_cast<const Pack<A, 4>*>(from + c * z.length);
#pragma unroll
          for (int e = 0; e < 4; ++e) sum.at[e] += part.at[e];
        }
      }
      __syncthreads();
      parts[warp][lane] = sum;
      __syncthreads();
      if (slice > 0 || half >= halves) continue;
      for (int s = 1; s < slices; ++s) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum.at[e] += parts[s * wide + first][lane].at[e];
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        visit(e / 2, half * 8 + lane % 4 * 2 + e % 2, sum.at[e]);
      }
    }
  }

  // Sums x[n][row] over the elements of the output capsule.
  template <int N, typename A>
  __device__ void Sum(A (&x)[N][2]) const {
    __shared__ A parts[N][2][kFinishWarps][8];
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 2 * N; ++e) {
      A& own = x[e / 2][e % 2];
      own += __shfl_xor_sync(~0u, own, 1);
      own += __shfl_xor_sync(~0u, own, 2);
      if (lane % 4 == 0) parts[e / 2][e % 2][warp][lane / 4] = own;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 2 * N; ++e) {
      A sum = 0;
      for (int w = 0; w < wide; ++w) sum += parts[e / 2][e % 2][w][lane / 4];
      x[e / 2][e % 2] = sum;
    }
  }

  // Returns the squash of one row's vector, given its `squares` from AddSquare().
  template <typename A>
  __device__ Squash<A> SquashOf(const A (&squares)[2][2], int row) const {
    return {squares[0][row], squares[1][row], A{z.epsilon}};
  }
};

// Returns the factor of stored vectors.
template <typename A>
__device__ A StoredScale(const Sizes& z) {
  return kScale<A> * Debias<A>(z.split);
}

// Adds the squares of s and kShrink s, for Squash.
template <typename A>
__device__ void AddSquare(A s, int row, A (&squares)[2][2]) {
  const A small = s * kShrink<A>;
  squares[0][row] += s * s;
  squares[1][row] += small * small;
}

// Computes ds from s(row, d), whose squares are summed already, and dv(row, d), and
// stores it times StoredScale. Padding gets zeros.
template <typename A, typename Read, typename ReadGrad>
__device__ void SquashGradient(const Cell& cell, const A (&squares)[2][2],
                               const Read& s, const ReadGrad& dv, A* ds) {
  A products[2][2] = {};
  cell.Each([&](int row, int d) {
    products[0][row] += s(row, d) * dv(row, d);
    products[1][row] += s(row, d) * kShrink<A> * dv(row, d);
  });
  cell.Sum(products);
  const Squash<A> rows[2] = {cell.SquashOf(squares, 0), cell.SquashOf(squares, 1)};
  cell.Each([&](int row, int d) {
    const A slope = rows[row].Slope(products[0][row], products[1][row]);
    const A gradient = rows[row].gain * dv(row, d) + slope * rows[row].Along(s(row, d));
    ds[cell.in_vector(row, d)] =
        cell.has(row, d) ? gradient * StoredScale<A>(cell.z) : A{0};
  });
}

// Ends an iteration. Writes sums = s, and either output = squash(s) or, for the next
// iteration, the stored V += squash(s). In the `first` iteration, V counts as zero.
template <typename S, typename A>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    FinishKernel(Sizes z, int64_t slices, const A* partial, bool first, A* v, A* sums,
                 S* __restrict__ output) {
  const Cell cell{z};
  TriggerDependentLaunch();
  GridDependencySynchronize();
  A squares[2][2] = {};
  cell.EachSum(partial, slices, [&](int row, int d, A s) {
    if (!cell.has(row, d)) return;
    sums[cell.in_array(row, d)] = s;
    AddSquare(s, row, squares);
  });
  cell.Sum(squares);
  const Squash<A> rows[2] = {cell.SquashOf(squares, 0), cell.SquashOf(squares, 1)};
  cell.Each([&](int row, int d) {
    const bool has = cell.has(row, d);
    const A squashed =
        has ? rows[row].Along(sums[cell.in_array(row, d)]) * rows[row].factor : A{0};
    if (output == nullptr) {
      A* const to = v + cell.in_vector(row, d);
      *to = squashed * StoredScale<A>(z) + (first ? A{0} : *to);
    } else if (has) {
      Narrow(squashed, output + cell.in_array(row, d));
    }
  });
}

// Computes V of iterations 2 to `iterations`, and ds of the last. Iteration r (from 1)
// has V and then ds at vectors + 2 (r - 1) vector lengths. Without `grad`, writes only
// the V after all iterations, at `vectors`.
template <typename S, typename A>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    PrepareKernel(Sizes z, int64_t iterations, const A* __restrict__ sums,
                  const S* __restrict__ grad, A* vectors) {
  const Cell cell{z};
  TriggerDependentLaunch();
  const auto s = [&](int row, int d) {
    return cell.has(row, d) ? sums[cell.in_array(row, d)] : A{0};
  };
  for (int64_t r = 1; r <= iterations; ++r) {
    A squares[2][2] = {};
    cell.Each([&](int row, int d) { AddSquare(s(row, d), row, squares); });
    cell.Sum(squares);
    if (r == iterations && grad != nullptr) {
      SquashGradient(
          cell, squares, s,
          [&](int row, int d) {
            return cell.has(row, d) ? Widen(grad[cell.in_array(row, d)]) : A{0};
          },
          vectors + (2 * iterations - 1) * z.length);
      return;
    }
    const Squash<A> rows[2] = {cell.SquashOf(squares, 0), cell.SquashOf(squares, 1)};
    const A* const v = grad != nullptr ? vectors + 2 * (r - 1) * z.length : vectors;
    A* const next = grad != nullptr ? vectors + 2 * r * z.length : vectors;
    cell.Each([&](int row, int d) {
      const int64_t at = cell.in_vector(row, d);
      const A squashed = rows[row].factor * rows[row].Along(s(row, d));
      next[at] = squashed * StoredScale<A>(z) + (r > 1 ? v[at] : A{0});
    });
    sums += z.batch * z.out_caps * z.out_dim;
  }
}

// Ends a backward iteration: computes dv += dV, or dv = dV in the `first`, and then ds
// of the preceding iteration from dv and from the `sums` of that iteration.
template <typename A>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    FinishBackwardKernel(Sizes z, int64_t slices, const A* partial,
                         const A* __restrict__ sums, bool first, A* dv, A* ds) {
  const Cell cell{z};
  TriggerDependentLaunch();
  GridDependencySynchronize();
  const auto s = [&](int row, int d) {
    return cell.has(row, d) ? sums[cell.in_array(row, d)] : A{0};
  };
  A squares[2][2] = {};
  cell.EachSum(partial, slices, [&](int row, int d, A sum) {
    A* const to = dv + cell.in_vector(row, d);
    *to = first ? sum : *to + sum;
    AddSquare(s(row, d), row, squares);
  });
  cell.Sum(squares);
  SquashGradient(
      cell, squares, s, [&](int row, int d) { return dv[cell.in_vector(row, d)]; }, ds);
}

}  // namespace capsops::capsule_routing::phases
