// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The kernels of capsule routing of few samples, and how their shared memory is
// divided.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_KERNELS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_KERNELS_CUH_

#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_routing/resident/block.cuh"

namespace capsops::capsule_routing::resident {

// How many parts the columns of an input capsule's weights are divided into for the
// gradients, so that all warps have some.
__host__ __device__ inline int Parts(const Sizes& z) {
  const int most = (z.columns() + kLanes - 1) / kLanes, wanted = kWarps / z.caps;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

// Gives the arrays their places from `base` on, and returns how many numbers they have.
template <typename A>
__host__ __device__ int64_t Divide(const Sizes& z, bool backward, A* base,
                                   Arrays<A>* arrays) {
  int64_t used = 0;
  const auto place = [&](A** array, int64_t count) {
    *array = base + used;
    used += (count + 3) / 4 * 4;
  };
  const int64_t rows = int64_t{z.batch} * z.caps, vector = z.vector();
  const int64_t iterations = backward ? z.iterations : 1;
  place(&arrays->x, rows * z.padded());
  place(&arrays->u, rows * z.columns());
  place(&arrays->logits, int64_t{z.caps} * z.out_caps);
  place(&arrays->c, iterations * rows * z.out_caps);
  place(&arrays->v, (backward ? iterations - 1 : 1) * vector);
  place(&arrays->parts, backward
                            ? std::max<int64_t>(kThreads, Parts(z) * rows * z.padded())
                            : kThreads);
  place(&arrays->sums, z.out_dim);
  if (backward) {
    place(&arrays->g, iterations * rows * z.out_caps);
    place(&arrays->ds, iterations * vector);
    place(&arrays->dv, int64_t{z.own_cells()} * z.out_dim);
  }
  return used;
}

// grad_weights, and grad_input by way of at.parts, from du_hat. A warp has a part of
// the columns of an input capsule, and a lane some of their rows.
template <typename S, typename A>
__device__ void Gradients(const Block<S, A>& block, const S* weights, S* grad_input,
                          S* grad_weights) {
  constexpr int kSamples = 4;  // at once
  const Sizes& z = block.z;
  const Arrays<A>& at = block.at;
  const int columns = z.columns(), padded = z.padded(), parts = Parts(z);
  const int part = (columns + parts - 1) / parts, all = z.batch * z.caps * padded;
  S* const to = grad_weights + int64_t{block.first} * columns * z.in_dim;
  for (int task = block.warp; task < block.count * parts; task += kWarps) {
    const int n = task % block.count, p = task / block.count;
    const int begin = n * columns + p * part;
    const int end = n * columns + min(columns, (p + 1) * part);
    for (int k = 0; k < z.in_dim; k += kRun) {
      for (int b0 = 0; b0 < z.batch; b0 += kSamples) {
        A sums[kSamples][kRun] = {};
#pragma unroll 2
        for (int row = begin + block.lane; row < end; row += kLanes) {
          A w[kRun];
          LoadRow(block.Weights(weights, row, k), z.in_dim - k, block.full(), w);
#pragma unroll
          for (int s = 0; s < kSamples; ++s) {
            if (b0 + s >= z.batch) break;
            const A du = at.u[block.row(b0 + s, 0) * columns + row];
#pragma unroll
            for (int e = 0; e < kRun; ++e) sums[s][e] += du * w[e];
          }
          if (b0 > 0) continue;
          A products[kRun] = {};
          for (int b = 0; b < z.batch; ++b) {
            const A du = at.u[block.row(b, 0) * columns + row];
            A x[kRun];
            LoadRow(at.x + block.row(b, n) * padded + k, kRun, true, x);
#pragma unroll
            for (int e = 0; e < kRun; ++e) products[e] += du * x[e];
          }
          StoreRow(products, z.in_dim - k, block.full(),
                   to + int64_t{row} * z.in_dim + k);
        }
#pragma unroll
        for (int s = 0; s < kSamples; ++s) {
          if (b0 + s >= z.batch) break;
          const A sum = SumOverLanes(sums[s]);
          constexpr int kEach = kLanes / kRun;
          if (block.lane % kEach == 0) {
            at.parts[p * all + block.row(b0 + s, n) * padded + k + block.lane / kEach] =
                sum;
          }
        }
      }
    }
  }
  __syncthreads();
  block.Each(z.batch * block.count * z.in_dim, [&](int e) {
    const int k = e % z.in_dim, n = e / z.in_dim % block.count;
    const int b = e / z.in_dim / block.count;
    A sum = 0;
    for (int p = 0; p < parts; ++p) {
      sum += at.parts[p * all + block.row(b, n) * padded + k];
    }
    Narrow(sum, grad_input + (int64_t{b} * z.in_caps + block.first + n) * z.in_dim + k);
  });
}

// All iterations. After the partial sums of all blocks comes v of an iteration.
template <typename S, typename A>
__global__ void __launch_bounds__(kThreads, 1)
    ForwardKernel(Sizes z, const S* __restrict__ input, const S* __restrict__ weights,
                  const S* __restrict__ logits, A* partial, S* __restrict__ output,
                  A* __restrict__ sums) {
  extern __shared__ __align__(16) unsigned char shared[];
  Arrays<A> at;
  Divide(z, false, reinterpret_cast<A*>(shared), &at);
  const Block<S, A> block{z, at};
  const auto grid = cooperative_groups::this_grid();
  A* const v = partial + int64_t{z.blocks} * z.vector();
  block.Predict(weights, [&] { block.Load(input, logits); });
  for (int r = 0; r < z.iterations; ++r) {
    const bool is_last = r + 1 == z.iterations;
    block.EachRow([&](int b, int n) {
      A* const c = at.c + block.row(b, n) * z.out_caps;
      if (r > 0) block.template Agree<1>(b, n, {at.v}, {c});
      block.Softmax(n, r == 0, c);
    });
    block.AddUp(at.c, partial);
    grid.sync();
    block.Gather(partial, [&](int cell, int) {
      const Squash<A> squash = block.SquashOf([&](int d) { return at.sums[d]; });
      for (int d = block.lane; d < z.out_dim; d += kLanes) {
        const int e = cell * z.out_dim + d;
        const A squashed = squash.factor * squash.Along(at.sums[d]);
        sums[int64_t{r} * z.vector() + e] = at.sums[d];
        if (is_last) {
          Narrow(squashed, output + e);
        } else {
          v[e] = squashed;
        }
      }
    });
    if (is_last) break;
    grid.sync();
    block.Each(z.vector(),
               [&](int e) { at.v[e] = __ldcg(v + e) + (r > 0 ? at.v[e] : A{0}); });
    __syncthreads();
  }
}

// From the last iteration to the first, then the gradients of all. After the partial
// sums of all blocks comes ds of an iteration.
template <typename S, typename A>
__global__ void __launch_bounds__(kThreads, 1)
    BackwardKernel(Sizes z, const S* __restrict__ grad, const S* __restrict__ input,
                   const S* __restrict__ weights, const S* __restrict__ logits,
                   const A* __restrict__ sums, A* partial, S* __restrict__ grad_input,
                   S* __restrict__ grad_weights, S* __restrict__ grad_logits) {
  extern __shared__ __align__(16) unsigned char shared[];
  Arrays<A> at;
  Divide(z, true, reinterpret_cast<A*>(shared), &at);
  const Block<S, A> block{z, at};
  const auto grid = cooperative_groups::this_grid();
  const int vector = z.vector(), last = z.iterations - 1;
  const int rows = z.batch * z.caps * z.out_caps;  // of c and g of an iteration
  A* const new_ds = partial + int64_t{z.blocks} * vector;
  // V of iteration r, of which the first has none.
  const auto v = [&](int r) { return at.v + (r - 1) * vector; };
  const auto s = [&](int r, int cell) {
    return [=](int d) { return sums[int64_t{r} * vector + cell * z.out_dim + d]; };
  };

  block.Predict(weights, [&] {
    block.Load(input, logits);
    for (int task = block.warp; task < z.cells() * z.iterations; task += kWarps) {
      const int cell = task % z.cells(), r = last - task / z.cells();
      const int from = cell * z.out_dim;
      if (r == last) {
        block.SquashGradient(
            s(r, cell), [&](int d) { return Widen(grad[from + d]); },
            at.ds + r * vector + from);
        continue;
      }
      const Squash<A> squash = block.SquashOf(s(r, cell));
      for (int d = block.lane; d < z.out_dim; d += kLanes) {
        v(r + 1)[from + d] = squash.factor * squash.Along(s(r, cell)(d));
      }
    }
  });
  block.Each(vector, [&](int e) {
    for (int r = 2; r <= last; ++r) v(r)[e] += v(r - 1)[e];
  });
  __syncthreads();
  for (int r = last; r >= 0; --r) {
    block.EachRow([&](int b, int n) {
      const int own = r * rows + block.row(b, n) * z.out_caps;
      A *const c = at.c + own, *const g = at.g + own;
      const A* const ds = at.ds + r * vector;
      if (r > 0) {
        block.template Agree<2>(b, n, {v(r), ds}, {c, g});
      } else {
        block.template Agree<1>(b, n, {ds}, {g});
      }
      block.Softmax(n, r == 0, c);
      A mean = 0;
      for (int j = block.lane; j < z.out_caps; j += kLanes) mean += c[j] * g[j];
      mean = WarpSum(mean);
      for (int j = block.lane; j < z.out_caps; j += kLanes) g[j] = c[j] * (g[j] - mean);
    });
    if (r == 0) break;
    block.AddUp(at.g + r * rows, partial);
    grid.sync();
    block.Gather(partial, [&](int cell, int own) {
      A* const dv = at.dv + own * z.out_dim;
      for (int d = block.lane; d < z.out_dim; d += kLanes) {
        dv[d] = at.sums[d] + (r < last ? dv[d] : A{0});
      }
      block.SquashGradient(
          s(r - 1, cell), [&](int d) { return dv[d]; }, new_ds + cell * z.out_dim);
    });
    grid.sync();
    block.Each(vector,
               [&](int e) { at.ds[(r - 1) * vector + e] = __ldcg(new_ds + e); });
    __syncthreads();
  }

  // du_hat in the place of u_hat.
  const int columns = z.columns();
  block.Each(block.count * columns, [&](int row) {
    const int n = row / columns, column = row % columns, j = column / z.out_dim;
    for (int b = 0; b < z.batch; ++b) {
      const int own = block.row(b, n) * z.out_caps + j, e = b * columns + column;
      A sum = at.c[own] * at.ds[e];
      for (int r = 1; r <= last; ++r) {
        sum += at.c[r * rows + own] * at.ds[r * vector + e];
        sum += at.g[r * rows + own] * v(r)[e];
      }
      at.u[block.row(b, 0) * columns + row] = sum;
    }
  });
  block.Each(block.count * z.out_caps, [&](int e) {
    A sum = 0;
    for (int b = 0; b < z.batch; ++b) {
      for (int r = 0; r <= last; ++r) {
        sum += at.g[r * rows + block.row(b, 0) * z.out_caps + e];
      }
    }
    Narrow(sum, grad_logits + int64_t{block.first} * z.out_caps + e);
  });
  __syncthreads();
  Gradients(block, weights, grad_input, grad_weights);
}

}  // namespace capsops::capsule_routing::resident

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_KERNELS_CUH_
