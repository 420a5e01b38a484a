// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule routing of few samples takes one kernel for a call. All its blocks are on the
// GPU at once, and each keeps the predictions of its input capsules in its shared
// memory from the first iteration to the last. At barriers of the whole grid the blocks
// add up their sums. This is what a block does.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_BLOCK_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_BLOCK_CUH_

#include <cstdint>

#include "cuda/capsule_routing/squash.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_routing::resident {

constexpr int kThreads = 512, kWarps = kThreads / kLanes;  // of a block
constexpr int kRun = 8;     // elements of an input capsule taken together
constexpr int kRows = 4;    // rows of weights that a thread loads at once
constexpr int kWidth = 16;  // elements of an output capsule added up at once

struct Sizes {
  int batch, in_caps, out_caps, out_dim, in_dim, iterations;
  float epsilon;
  int blocks, caps;  // of the grid; input capsules of a block

  __host__ __device__ int columns() const { return out_caps * out_dim; }
  __host__ __device__ int vector() const { return batch * columns(); }
  // Pairs of a sample and an output capsule, of which a block has every `blocks`th.
  __host__ __device__ int cells() const { return batch * out_caps; }
  __host__ __device__ int own_cells() const { return (cells() + blocks - 1) / blocks; }
  __host__ __device__ int padded() const { return (in_dim + kRun - 1) / kRun * kRun; }
};

// The arrays in shared memory; n is an input capsule of the block. Forward there is one
// iteration's c and V at a time, backward there are those of all iterations r.
template <typename A>
struct Arrays {
  A* x;       // [b][n][padded()], the input
  A* u;       // [b][n][j][d], the predictions, at the end their gradients
  A* logits;  // [n][j]
  A* c;       // [r][b][n][j], the coefficients
  A* g;       // [r][b][n][j], the gradients db; only backward
  A* v;       // [r - 1][b][j][d], V, which is zero in the first iteration
  A* ds;      // [r][b][j][d]; only backward
  A* parts;   // sums on their way: a number of each thread, or parts of grad_input
  A* sums;    // [d], the sums over all blocks of the cell in work
  A* dv;      // [own_cells()][d]; only backward
};

template <typename A>
__device__ A WarpSum(A x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}
template <typename A>
__device__ A WarpMax(A x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(~0u, x, offset);
    x = other > x || other != other ? other : x;
  }
  return x;
}

template <typename S, typename A>
struct Block {
  const Sizes& z;
  const Arrays<A>& at;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int first = blockIdx.x * z.caps;
  const int count = min(z.caps, z.in_caps - first);

  __device__ int row(int b, int n) const { return b * z.caps + n; }

  // Calls visit(i) for the numbers below `count`, a thread each.
  template <typename Visit>
  __device__ void Each(int count, const Visit& visit) const {
    for (int i = threadIdx.x; i < count; i += kThreads) visit(i);
  }

  __device__ void Load(const S* input, const S* logits) const {
    const int padded = z.padded();
    Each(z.batch * count * padded, [&](int e) {
      const int k = e % padded, n = e / padded % count, b = e / padded / count;
      const int64_t from = int64_t{b} * z.in_caps + first + n;
      at.x[row(b, n) * padded + k] =
          k < z.in_dim ? Widen(input[from * z.in_dim + k]) : A{0};
    });
    Each(count * z.out_caps,
         [&](int e) { at.logits[e] = Widen(logits[int64_t{first} * z.out_caps + e]); });
    __syncthreads();
  }

  __device__ const S* Weights(const S* weights, int row, int k) const {
    return weights + (int64_t{first} * z.columns() + row) * z.in_dim + k;
  }
  __device__ bool full() const { return z.in_dim % kRun == 0; }

  // u. Calls prepare(), which sets x, while the first weights are on their way.
  template <typename Prepare>
  __device__ void Predict(const S* weights, const Prepare& prepare) const {
    const int columns = z.columns(), rows = count * columns, padded = z.padded();
    for (int row0 = 0; row0 < rows; row0 += kRows * kThreads) {
      for (int k = 0; k < z.in_dim; k += kRun) {
        A w[kRows][kRun];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int own = row0 + r * kThreads + threadIdx.x;
          if (own < rows) LoadRow(Weights(weights, own, k), z.in_dim - k, full(), w[r]);
        }
        if (row0 == 0 && k == 0) {
          prepare();
          __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int own = row0 + r * kThreads + threadIdx.x;
          if (own >= rows) break;
          const int n = own / columns;
          for (int b = 0; b < z.batch; ++b) {
            A x[kRun], sum = 0;
            LoadRow(at.x + row(b, n) * padded + k, kRun, true, x);
#pragma unroll
            for (int e = 0; e < kRun; ++e) sum += w[r][e] * x[e];
            A* const to = at.u + row(b, 0) * columns + own;
            *to = k == 0 ? sum : *to + sum;
          }
        }
      }
    }
    __syncthreads();
  }

  // Calls visit(b, n), a warp each.
  template <typename Visit>
  __device__ void EachRow(const Visit& visit) const {
    for (int own = warp; own < z.batch * count; own += kWarps) {
      visit(own / count, own % count);
    }
    __syncthreads();
  }

  // to[m][j] = <u[b][n][j], vectors[m][b][j]>, by a warp.
  template <int N>
  __device__ void Agree(int b, int n, const A* const (&vectors)[N],
                        A* const (&to)[N]) const {
    constexpr int kTogether = 8;  // lanes
    const A* const u = at.u + row(b, n) * z.columns();
#pragma unroll 4
    for (int j0 = 0; j0 < z.out_caps; j0 += kLanes / kTogether) {
      const int j = j0 + lane / kTogether;
      A sums[N] = {};
      if (j < z.out_caps) {
#pragma unroll 2
        for (int d = lane % kTogether; d < z.out_dim; d += kTogether) {
          const int e = j * z.out_dim + d;
#pragma unroll
          for (int m = 0; m < N; ++m) sums[m] += u[e] * vectors[m][b * z.columns() + e];
        }
      }
#pragma unroll
      for (int m = 0; m < N; ++m) {
#pragma unroll
        for (int offset = kTogether / 2; offset > 0; offset /= 2) {
          sums[m] += __shfl_xor_sync(~0u, sums[m], offset);
        }
        if (j < z.out_caps && lane % kTogether == 0) to[m][j] = sums[m];
      }
    }
    __syncwarp();
  }

  // c = softmax of logits[n] + c, by a warp; of logits[n] alone in the first iteration.
  __device__ void Softmax(int n, bool is_first, A* c) const {
    const A* const logits = at.logits + n * z.out_caps;
    A maximum = -INFINITY, sum = 0;
    for (int j = lane; j < z.out_caps; j += kLanes) {
      c[j] = is_first ? logits[j] : c[j] + logits[j];
      maximum = c[j] > maximum || c[j] != c[j] ? c[j] : maximum;
    }
    maximum = WarpMax(maximum);
    for (int j = lane; j < z.out_caps; j += kLanes) {
      c[j] = ExpBelow(c[j], maximum);
      sum += c[j];
    }
    const A share = 1 / WarpSum(sum);
    for (int j = lane; j < z.out_caps; j += kLanes) c[j] *= share;
    __syncwarp();
  }

  // partial[b][j][d] = sum over n of factors[b][n][j] u[b][n][j][d].
  __device__ void AddUp(const A* factors, A* partial) const {
    const int columns = z.columns();
    Each(z.vector(), [&](int e) {
      const int b = e / columns, column = e % columns, j = column / z.out_dim;
      A sum = 0;
      for (int n = 0; n < count; ++n) {
        const int own = row(b, n);
        sum += factors[own * z.out_caps + j] * at.u[own * columns + column];
      }
      partial[int64_t{blockIdx.x} * z.vector() + e] = sum;
    });
  }

  // For each of the block's cells: adds up the sums of all blocks to at.sums, and calls
  // finish(cell, which of the block's it is) by a warp.
  template <typename Finish>
  __device__ void Gather(const A* partial, const Finish& finish) const {
    constexpr int kSlices = kThreads / kWidth;
    const int slice = threadIdx.x / kWidth;
    for (int own = 0; own < z.own_cells(); ++own) {
      const int cell = own * z.blocks + blockIdx.x;
      if (cell >= z.cells()) break;
      for (int d0 = 0; d0 < z.out_dim; d0 += kWidth) {
        const int d = d0 + threadIdx.x % kWidth;
        A sum = 0;
        if (d < z.out_dim) {
          const A* const from = partial + cell * z.out_dim + d;
#pragma unroll 4
          for (int block = slice; block < z.blocks; block += kSlices) {
            sum += __ldcg(from + int64_t{block} * z.vector());
          }
        }
        at.parts[threadIdx.x] = sum;
        __syncthreads();
        if (slice == 0 && d < z.out_dim) {
          A total = 0;
#pragma unroll
          for (int s = 0; s < kSlices; ++s) {
            total += at.parts[s * kWidth + threadIdx.x];
          }
          at.sums[d] = total;
        }
        __syncthreads();
      }
      if (warp == 0) finish(cell, own);
      __syncthreads();
    }
  }

  // squash of the vector s[d], by a warp.
  template <typename Read>
  __device__ Squash<A> SquashOf(const Read& s) const {
    A square = 0, small = 0;
    for (int d = lane; d < z.out_dim; d += kLanes) {
      const A shrunk = s(d) * kShrink<A>;
      square += s(d) * s(d);
      small += shrunk * shrunk;
    }
    return {WarpSum(square), WarpSum(small), A{z.epsilon}};
  }

  // ds from dv, through squash(s), by a warp.
  template <typename Read, typename ReadGrad>
  __device__ void SquashGradient(const Read& s, const ReadGrad& dv, A* ds) const {
    const Squash<A> squash = SquashOf(s);
    A product = 0, small = 0;
    for (int d = lane; d < z.out_dim; d += kLanes) {
      product += s(d) * dv(d);
      small += s(d) * kShrink<A> * dv(d);
    }
    const A slope = squash.Slope(WarpSum(product), WarpSum(small));
    for (int d = lane; d < z.out_dim; d += kLanes) {
      ds[d] = squash.gain * dv(d) + slope * squash.Along(s(d));
    }
  }
};

}  // namespace capsops::capsule_routing::resident

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_BLOCK_CUH_
