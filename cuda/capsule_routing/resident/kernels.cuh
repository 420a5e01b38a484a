// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The `resident` kernels of capsule routing, and their shared memory. A block has up to
// Sizes::caps input capsules for all samples and iterations. Their input and
// predictions stay in shared memory; weights go from global memory to registers.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cuda/capsule_routing/resident/block.cuh"

namespace capsops::capsule_routing::resident {

// Assigns the arrays' addresses from `base` on, and returns their total length.
template <typename A>
__host__ __device__ int64_t Divide(const Sizes& z, bool backward, A* base,
                                   Arrays<A>* arrays) {
  int64_t used = 0;
  const auto place = [&](A** array, int64_t count) {
    *array = base + used;
    used += (count + kQuad - 1) / kQuad * kQuad;
  };
  const int64_t rows = int64_t{z.batch} * z.caps, vector = z.vector();
  const int64_t iterations = backward ? z.iterations : 1;
  const int64_t own = int64_t{z.max_cells()} * z.depth(), parts = z.parts;
  place(&arrays->x, rows * z.padded());
  place(&arrays->u, rows * z.width());
  place(&arrays->logits, int64_t{z.caps} * z.out_caps);
  place(&arrays->c, iterations * rows * z.out_caps);
  place(&arrays->v, iterations * vector);
  place(&arrays->scratch,
        backward ? std::max<int64_t>(kThreads, parts * rows * z.padded()) : kThreads);
  place(&arrays->sums, own);
  if (backward) {
    place(&arrays->g, iterations * rows * z.out_caps);
    place(&arrays->ds, iterations * vector);
    place(&arrays->dv, own);
  }
  return used;
}

// Computes grad_weights and grad_input from du_hat, which is in at.u. A warp has a part
// of an input capsule's rows of weights, and z.sharing lanes share a row. The parts'
// sums of grad_input are in at.scratch.
template <typename S, typename A, int kRun>
__device__ void Gradients(const Block<S, A, kRun>& block, const S* weights,
                          S* grad_input, S* grad_weights) {
  constexpr int kSamples = 4;  // samples per step
  const Sizes& z = block.z;
  const Arrays<A>& at = block.at;
  const int columns = z.columns(), part = (columns + z.parts - 1) / z.parts;
  const int step = kLanes / z.sharing, padded = z.padded();
  const int all = z.batch * z.caps * padded, sample = z.caps * z.width();
  block.EachWarp(block.count * z.parts, [&](int task) {
    const int n = task % block.count, p = task / block.count;
    const int begin = n * columns + p * part;
    const int end = n * columns + min(columns, (p + 1) * part);
#pragma unroll 1
    for (int base = 0; base < z.in_dim; base += z.sharing * kRun) {
      const int k = base + block.lane % z.sharing * kRun;
      const bool has_elements = k < z.in_dim;
#pragma unroll 1
      for (int b0 = 0; b0 < z.batch; b0 += kSamples) {
        A sums[kSamples][kRun] = {};
#pragma unroll 1
        for (int row0 = begin; row0 < end; row0 += kRows * step) {
          const int row = row0 + block.lane / z.sharing;
          const auto is_real = [&](int r) {
            return has_elements && row + r * step < end;
          };
          A w[kRows][kRun];
          const A* du[kRows];
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (!is_real(r)) continue;
            LoadRow(weights + block.weights(row + r * step) + k, kRun, true, w[r]);
            du[r] = at.u + block.place(row + r * step);
          }
#pragma unroll
          for (int s = 0; s < kSamples; ++s) {
            if (b0 + s >= z.batch) break;
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              if (!is_real(r)) continue;
#pragma unroll
              for (int e = 0; e < kRun; ++e) {
                sums[s][e] += du[r][(b0 + s) * sample] * w[r][e];
              }
            }
          }
          if (b0 > 0) continue;
          A products[kRows][kRun] = {};
#pragma unroll 1
          for (int b = 0; b < z.batch; ++b) {
            A x[kRun] = {};
            if (has_elements)
              LoadRow(at.x + block.row(b, n) * padded + k, kRun, true, x);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              if (!is_real(r)) continue;
#pragma unroll
              for (int e = 0; e < kRun; ++e) products[r][e] += du[r][b * sample] * x[e];
            }
          }
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (!is_real(r)) continue;
            StoreRow(products[r], kRun, true,
                     grad_weights + block.weights(row + r * step) + k);
          }
        }
#pragma unroll
        for (int s = 0; s < kSamples; ++s) {
          if (b0 + s >= z.batch) break;
#pragma unroll
          for (int e = 0; e < kRun; ++e) {
#pragma unroll 1
            for (int offset = kLanes / 2; offset >= z.sharing; offset /= 2) {
              sums[s][e] += __shfl_xor_sync(~0u, sums[s][e], offset);
            }
          }
          if (block.lane < z.sharing && has_elements) {
            StoreRow(sums[s], kRun, true,
                     at.scratch + p * all + block.row(b0 + s, n) * padded + k);
          }
        }
      }
    }
  });
#pragma unroll 1
  for (int b = 0; b < z.batch; ++b) {
    const A* const from = at.scratch + block.row(b, 0) * padded;
    S* const to = grad_input + (int64_t{b} * z.in_caps + block.first) * z.in_dim;
    block.Each(block.count * z.in_dim, [&](int e) {
      const int own = e / z.in_dim * padded + e % z.in_dim;
      A sum = 0;
#pragma unroll 1
      for (int p = 0; p < z.parts; ++p) sum += from[p * all + own];
      Narrow(sum, to + e);
    });
  }
}

// Computes output and sums: runs all iterations in one launch.
template <typename S, typename A, int kRun>
__global__ void __launch_bounds__(kThreads, 1)
    ForwardKernel(Sizes z, const S* __restrict__ input, const S* __restrict__ weights,
                  const S* __restrict__ logits, S* __restrict__ output,
                  A* __restrict__ sums, void* messages) {
  extern __shared__ __align__(16) unsigned char shared[];
  Arrays<A> at;
  Divide(z, false, reinterpret_cast<A*>(shared), &at);
  const Block<S, A, kRun> block{z, at, static_cast<Message<A>*>(messages)};
  const auto grid = cooperative_groups::this_grid();
  const int depth = z.depth();
  decltype(grid.barrier_arrive()) cleared;
  block.Predict(weights, [&] {
    block.ClearMessages();
    cleared = grid.barrier_arrive();
    block.Load(input, logits);
  });
  grid.barrier_wait(std::move(cleared));
#pragma unroll 1
  for (int r = 0; r < z.iterations; ++r) {
    const bool is_last = r + 1 == z.iterations;
    const uint32_t tag = r + 1;
    if (r > 0) block.Agree(at.v, at.c);
    block.EachWarp(z.batch * block.count, [&](int i) {
      const int b = i / block.count, n = i % block.count;
      block.Softmax(n, r == 0, at.c + block.row(b, n) * z.out_caps);
    });
    block.Accumulate(at.c, tag);
    block.template EachTeam<kWide>(block.own_cells, [&](int own, int member) {
      const A* const s = at.sums + own * depth;
      const int cell = block.first_cell + own;
      const Squash<A> squash = block.SquashOf(s, member);
      block.EachElement(member, [&](int d) {
        const A squashed = squash.factor * squash.Along(s[d]);
        if (!is_last) Send(squashed, tag, block.result + cell * depth + d);
        if (d >= z.out_dim) return;
        const int e = cell * z.out_dim + d;
        sums[int64_t{r} * z.cells() * z.out_dim + e] = s[d];
        if (is_last) Narrow(squashed, output + e);
      });
    });
    if (is_last) break;
    block.ReceiveResult(tag, [&](int e, A v) { at.v[e] = r > 0 ? at.v[e] + v : v; });
  }
}

// Computes V and c of all iterations from `sums`, then db and ds from the last
// iteration to the first, and then the gradients.
template <typename S, typename A, int kRun>
__global__ void __launch_bounds__(kThreads, 1)
    BackwardKernel(Sizes z, const S* __restrict__ grad, const S* __restrict__ input,
                   const S* __restrict__ weights, const S* __restrict__ logits,
                   const A* __restrict__ sums, S* __restrict__ grad_input,
                   S* __restrict__ grad_weights, S* __restrict__ grad_logits,
                   void* messages) {
  extern __shared__ __align__(16) unsigned char shared[];
  Arrays<A> at;
  Divide(z, true, reinterpret_cast<A*>(shared), &at);
  const Block<S, A, kRun> block{z, at, static_cast<Message<A>*>(messages)};
  const auto grid = cooperative_groups::this_grid();
  const int vector = z.vector(), depth = z.depth(), last = z.iterations - 1;
  const int rows = z.batch * z.caps * z.out_caps;  // c and g of one iteration

  decltype(grid.barrier_arrive()) cleared;
  block.Predict(weights, [&] {
    block.ClearMessages();
    cleared = grid.barrier_arrive();
    block.Load(input, logits);
    block.LoadVectors(grad, sums);
    __syncthreads();
    block.template EachTeam<kWide>(z.cells(), [&](int cell, int member) {
      A* const v = at.v + cell * depth;
      A* const ds = at.ds + cell * depth;  // still s
#pragma unroll 1
      for (int r = 0; r < last; ++r) {
        const Squash<A> squash = block.SquashOf(ds + r * vector, member);
        block.EachElement(member, [&](int d) {
          const int e = r * vector + d;
          v[e + vector] = squash.factor * squash.Along(ds[e]) + (r > 0 ? v[e] : A{0});
        });
      }
      block.SquashGradient(ds + last * vector, v, member,
                           [&](int d, A x) { ds[last * vector + d] = x; });
    });
  });
#pragma unroll 1
  for (int r = 1; r <= last; ++r) block.Agree(at.v + r * vector, at.c + r * rows);
  block.EachWarp(z.iterations * z.batch * block.count, [&](int i) {
    const int n = i % block.count, b = i / block.count % z.batch;
    const int r = i / block.count / z.batch;
    block.Softmax(n, r == 0, at.c + r * rows + block.row(b, n) * z.out_caps);
  });
  grid.barrier_wait(std::move(cleared));
#pragma unroll 1
  for (int r = last; r >= 0; --r) {
    const uint32_t tag = z.iterations - r;
    block.Agree(at.ds + r * vector, at.g + r * rows);
    block.EachWarp(z.batch * block.count, [&](int i) {
      const int own = block.row(i / block.count, i % block.count) * z.out_caps;
      const A* const c = at.c + r * rows + own;
      A* const g = at.g + r * rows + own;
      A mean = 0;
#pragma unroll 1
      for (int j = block.lane; j < z.out_caps; j += kLanes) mean += c[j] * g[j];
      mean = TeamSum<kLanes>(mean);
#pragma unroll 1
      for (int j = block.lane; j < z.out_caps; j += kLanes) g[j] = c[j] * (g[j] - mean);
    });
    if (r == 0) break;
    block.Accumulate(at.g + r * rows, tag);
    A* const ds = at.ds + (r - 1) * vector;  // still s
    block.template EachTeam<kWide>(block.own_cells, [&](int own, int member) {
      const int cell = block.first_cell + own;
      A* const dv = at.dv + own * depth;
      const A* const sum = at.sums + own * depth;
      block.EachElement(member,
                        [&](int d) { dv[d] = sum[d] + (r < last ? dv[d] : A{0}); });
      block.SquashGradient(ds + cell * depth, dv, member, [&](int d, A x) {
        Send(x, tag, block.result + cell * depth + d);
      });
    });
    __syncthreads();  // ds overwrites s below
    block.ReceiveResult(tag, [&](int e, A x) { ds[e] = x; });
  }

  // Replaces u_hat with du_hat.
#pragma unroll 1
  for (int b = 0; b < z.batch; ++b) {
    const int begin = block.row(b, 0) * z.out_caps;
    const int pairs = block.count * z.out_caps;
    block.template EachTeam<kTeam>(pairs, [&](int pair, int member) {
      const int cell = (b * z.out_caps + pair % z.out_caps) * depth;
      block.EachQuad(member, [&](int d) {
        A sum[kQuad] = {};
#pragma unroll 1
        for (int r = 0; r <= last; ++r) {
          const A c = at.c[r * rows + begin + pair];
          const A g = r == 0 ? A{0} : at.g[r * rows + begin + pair];
          A ds[kQuad], v[kQuad];
          LoadRow(at.ds + r * vector + cell + d, kQuad, true, ds);
          LoadRow(at.v + r * vector + cell + d, kQuad, true, v);
#pragma unroll
          for (int e = 0; e < kQuad; ++e) {
            sum[e] += c * ds[e];
            if (r > 0) sum[e] += g * v[e];
          }
        }
        StoreRow(sum, kQuad, true, at.u + (begin + pair) * depth + d);
      });
    });
  }
  block.Each(block.count * z.out_caps, [&](int e) {
    A sum = 0;
#pragma unroll 1
    for (int b = 0; b < z.batch; ++b) {
#pragma unroll 1
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
