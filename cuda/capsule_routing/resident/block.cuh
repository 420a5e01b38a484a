// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Device code of one block of the `resident` kernels, which route few samples in one
// kernel per call. All blocks are resident at once; each keeps the predictions of its
// input capsules in shared memory through all iterations, and the blocks send each
// other their sums.
//
// Most of this code runs once, so that instruction fetch dominates: loops of unknown
// length are not unrolled, except the two sums in Accumulate().
#pragma once

#include <cstdint>

#include "cuda/capsule_routing/resident/message.cuh"
#include "cuda/capsule_routing/squash.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_routing::resident {

constexpr int kThreads = 512, kWarps = kThreads / kLanes;  // per block
// A team of kTeam threads shares an output capsule and takes kQuad elements at a time;
// a team of kWide threads takes single elements.
constexpr int kQuad = 4, kTeam = 4, kWide = 16;
// A thread loads kChunk elements of kRows rows of weights at once.
constexpr int kChunk = 8, kRows = 4;
// A block receives up to kColumns sums at once, and each thread kMessages parts of one.
constexpr int kColumns = 128, kMessages = 8;

// Sizes of the problem, and its work split.
struct Sizes {
  int batch, in_caps, out_caps, out_dim, in_dim, iterations;
  float epsilon;
  int blocks, caps;  // blocks of the grid; input capsules per block
  int sharing;       // lanes per row in the last pass over the weights
  int parts;         // parts of an input capsule's rows in that pass, one per warp

  __host__ __device__ int columns() const { return out_caps * out_dim; }
  __host__ __device__ int padded() const {
    return (in_dim + kChunk - 1) / kChunk * kChunk;
  }
  // In shared memory and messages an output capsule is padded with up to three zeros.
  __host__ __device__ int depth() const {
    return (out_dim + kQuad - 1) / kQuad * kQuad;
  }
  __host__ __device__ int width() const { return out_caps * depth(); }
  __host__ __device__ int vector() const { return batch * width(); }
  // Pairs of a sample and an output capsule. Each block owns up to max_cells().
  __host__ __device__ int cells() const { return batch * out_caps; }
  __host__ __device__ int max_cells() const { return (cells() + blocks - 1) / blocks; }
};

// Arrays in shared memory; n is an input capsule of the block, and d < depth(). The
// forward kernel keeps c and V of one iteration, the backward kernel of all r.
template <typename A>
struct Arrays {
  A* x;        // [b][n][padded()], the input
  A* u;        // [b][n][j][d], the predictions; at the end, their gradients
  A* logits;   // [n][j]
  A* c;        // [r][b][n][j], the coefficients
  A* g;        // [r][b][n][j], the gradients db; only backward
  A* v;        // [r][b][j][d], V; backward, grad replaces the zero first V
  A* ds;       // [r][b][j][d], s, later replaced by ds; only backward
  A* scratch;  // partial sums: one per thread, or parts of grad_input
  A* sums;     // [max_cells()][d], the sums over all blocks
  A* dv;       // [max_cells()][d]; only backward
};

// Returns the sum over each group of kSize consecutive lanes, to all of its lanes.
template <int kSize, typename A>
__device__ A TeamSum(A x) {
  const A row[1] = {x};
  return SumOverLanes<kSize / 2>(row);
}

// A block's view of the problem, and its operations. Threads load kRun elements of an
// input capsule at once; kRun divides in_dim.
template <typename S, typename A, int kRun>
struct Block {
  const Sizes& z;
  const Arrays<A>& at;
  Message<A>* const partial;  // [block][b][j][d]
  Message<A>* const result = partial + int64_t{z.blocks} * z.vector();  // [b][j][d]
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int first = blockIdx.x * z.caps;             // first input capsule of the block
  const int count = min(z.caps, z.in_caps - first);  // input capsules of the block
  const int first_cell = min(blockIdx.x * z.max_cells(), z.cells());
  const int own_cells = min(z.max_cells(), z.cells() - first_cell);

  __device__ int row(int b, int n) const { return b * z.caps + n; }

  // EachWarp(), Predict(), Agree() and ReceiveResult() end with a block barrier; Each()
  // and EachTeam() do not. After Accumulate(), all threads can read its sums.

  // Calls visit(i) for all i < n, one thread each.
  template <typename Visit>
  __device__ void Each(int n, const Visit& visit) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += kThreads) visit(i);
  }

  // Calls visit(i, member) for all i < n, with a team of kSize threads each. All
  // threads of a warp participate, since team sums need them; threads beyond the last i
  // get the member depth(), and so no elements.
  template <int kSize, typename Visit>
  __device__ void EachTeam(int n, const Visit& visit) const {
#pragma unroll 1
    for (int i0 = 0; i0 < n; i0 += kThreads / kSize) {
      const int i = i0 + threadIdx.x / kSize;
      if (i - lane / kSize >= n) break;
      visit(i, i < n ? static_cast<int>(threadIdx.x) % kSize : z.depth());
    }
  }
  // Call visit(d) for a member's elements of an output capsule, or its quads.
  template <typename Visit>
  __device__ void EachElement(int member, const Visit& visit) const {
#pragma unroll 1
    for (int d = member; d < z.depth(); d += kWide) visit(d);
  }
  template <typename Visit>
  __device__ void EachQuad(int member, const Visit& visit) const {
#pragma unroll 1
    for (int d = member * kQuad; d < z.depth(); d += kTeam * kQuad) visit(d);
  }

  // Calls visit(i) for all i < n, one warp each.
  template <typename Visit>
  __device__ void EachWarp(int n, const Visit& visit) const {
#pragma unroll 1
    for (int i = warp; i < n; i += kWarps) visit(i);
    __syncthreads();
  }

  // Clears the messages that this block sends. All blocks must have called this before
  // any block receives.
  __device__ void ClearMessages() const {
    const int vector = z.vector(), depth = z.depth();
    Each(vector,
         [&](int e) { Send(A{0}, 0, partial + int64_t{blockIdx.x} * vector + e); });
    Each(own_cells * depth,
         [&](int e) { Send(A{0}, 0, result + first_cell * depth + e); });
  }

  // Loads input and logits, zero-padded. If output capsules have padding, clears u.
  __device__ void Load(const S* input, const S* logits) const {
    const int padded = z.padded();
#pragma unroll 1
    for (int b = 0; b < z.batch; ++b) {
      const S* const from = input + (int64_t{b} * z.in_caps + first) * z.in_dim;
      Each(count * padded, [&](int e) {
        const int k = e % padded;
        at.x[row(b, 0) * padded + e] =
            k < z.in_dim ? Widen(from[e / padded * z.in_dim + k]) : A{0};
      });
    }
    Each(count * z.out_caps,
         [&](int e) { at.logits[e] = Widen(logits[int64_t{first} * z.out_caps + e]); });
    if (z.depth() > z.out_dim) {
      Each(z.batch * z.caps * z.width(), [&](int e) { at.u[e] = 0; });
    }
  }
  // Loads what only the backward kernel needs: grad to at.v, and s to at.ds.
  __device__ void LoadVectors(const S* grad, const A* s) const {
    const int depth = z.depth(), vector = z.vector();
    Each((1 + z.iterations) * vector, [&](int e) {
      const int own = e - vector, d = e % depth;
      const int from = (own < 0 ? e : own) / depth * z.out_dim + d;
      A x = 0;
      if (d < z.out_dim) x = own < 0 ? A{Widen(grad[from])} : s[from];
      *(own < 0 ? at.v + e : at.ds + own) = x;
    });
  }

  // Loads kChunk elements; from index `left` on they are zero.
  __device__ void LoadChunk(const S* from, int left, A (&chunk)[kChunk]) const {
#pragma unroll
    for (int k = 0; k < kChunk; k += kRun) {
      A run[kRun] = {};
      if (k < left) LoadRow(from + k, kRun, true, run);
#pragma unroll
      for (int e = 0; e < kRun; ++e) chunk[k + e] = run[e];
    }
  }

  // Returns the offset of row i of the block's weights.
  __device__ int64_t weights(int i) const {
    return (int64_t{first} * z.columns() + i) * z.in_dim;
  }
  // Returns the offset of that row's product in a sample's predictions.
  __device__ int place(int i) const {
    const int zeros = z.depth() - z.out_dim;
    return zeros == 0 ? i : i + i / z.out_dim * zeros;
  }

  // Computes u, the predictions. Calls prepare(), which loads x, while the first
  // weights are being loaded.
  template <typename Prepare>
  __device__ void Predict(const S* from, const Prepare& prepare) const {
    const int columns = z.columns(), rows = count * columns, padded = z.padded();
#pragma unroll 1
    for (int row0 = 0; row0 < rows; row0 += kRows * kThreads) {
#pragma unroll 1
      for (int k = 0; k < z.in_dim; k += kChunk) {
        A w[kRows][kChunk];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int i = row0 + r * kThreads + threadIdx.x;
          if (i < rows) LoadChunk(from + weights(i) + k, z.in_dim - k, w[r]);
        }
        if (row0 == 0 && k == 0) {
          prepare();
          __syncthreads();
        }
#pragma unroll 1
        for (int b = 0; b < z.batch; ++b) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const int i = row0 + r * kThreads + threadIdx.x;
            if (i >= rows) break;
            A x[kChunk], sum = 0;
            LoadRow(at.x + row(b, i / columns) * padded + k, kChunk, true, x);
#pragma unroll
            for (int e = 0; e < kChunk; ++e) sum += w[r][e] * x[e];
            A* const to = at.u + row(b, 0) * z.width() + place(i);
            *to = k == 0 ? sum : *to + sum;
          }
        }
      }
    }
    __syncthreads();
  }

  // to[b][n][j] = <u[b][n][j], vectors[b][j]>.
  __device__ void Agree(const A* vectors, A* to) const {
    const int pairs = count * z.out_caps, depth = z.depth();
#pragma unroll 1
    for (int b = 0; b < z.batch; ++b) {
      const int begin = row(b, 0) * z.out_caps;
      EachTeam<kTeam>(pairs, [&](int pair, int member) {
        const A* const v = vectors + (b * z.out_caps + pair % z.out_caps) * depth;
        A sum = 0;
        EachQuad(member, [&](int d) {
          A x[kQuad], y[kQuad];
          LoadRow(at.u + (begin + pair) * depth + d, kQuad, true, x);
          LoadRow(v + d, kQuad, true, y);
#pragma unroll
          for (int e = 0; e < kQuad; ++e) sum += x[e] * y[e];
        });
        sum = TeamSum<kTeam>(sum);
        if (member == 0) to[begin + pair] = sum;
      });
    }
    __syncthreads();
  }

  // One warp computes c = softmax of logits[n] + c, or of only logits[n] if is_first.
  __device__ void Softmax(int n, bool is_first, A* c) const {
    const A* const logits = at.logits + n * z.out_caps;
    A maximum = -INFINITY, sum = 0;
#pragma unroll 1
    for (int j = lane; j < z.out_caps; j += kLanes) {
      c[j] = is_first ? logits[j] : c[j] + logits[j];
      maximum = max(maximum, c[j]);  // a NaN makes the sum NaN
    }
    maximum = MaxOfWarp(maximum);
#pragma unroll 1
    for (int j = lane; j < z.out_caps; j += kLanes) {
      c[j] = ExpBelow(c[j], maximum);
      sum += c[j];
    }
    const A share = 1 / TeamSum<kLanes>(sum);
#pragma unroll 1
    for (int j = lane; j < z.out_caps; j += kLanes) c[j] *= share;
  }

  // Sums factors[b][n][j] u[b][n][j] over the n of all blocks. Each block sends its
  // sums to the cells' owners, and stores the totals of its own cells in at.sums.
  __device__ void Accumulate(const A* factors, uint32_t tag) const {
    const int width = z.width(), depth = z.depth(), vector = z.vector();
    Each(vector, [&](int e) {
      const int b = e / width, column = e % width, j = column / depth;
      const A* const factor = factors + row(b, 0) * z.out_caps + j;
      const A* const u = at.u + row(b, 0) * width + column;
      A sum = 0;
#pragma unroll 4
      for (int n = 0; n < count; ++n) sum += factor[n * z.out_caps] * u[n * width];
      Send(sum, tag, partial + int64_t{blockIdx.x} * vector + e);
    });
    const int columns = own_cells * depth, step = min(columns, kColumns);
#pragma unroll 1
    for (int column0 = 0; column0 < columns; column0 += step) {
      const int slices = kThreads / step, slice = threadIdx.x / step;
      const int column = column0 + threadIdx.x % step;
      Message<A>* const from = partial + first_cell * depth + column;
      A sum = 0;
      if (slice < slices && column < columns) {
#pragma unroll 1
        for (int block = slice; block < z.blocks; block += kMessages * slices) {
          A numbers[kMessages];
          Receive(
              tag, from + int64_t{block} * vector, int64_t{slices} * vector,
              [&](int i) { return block + i * slices < z.blocks; }, numbers);
#pragma unroll
          for (int i = 0; i < kMessages; ++i) sum += numbers[i];
        }
      }
      at.scratch[threadIdx.x] = sum;
      __syncthreads();
      if (threadIdx.x < step && column < columns) {
        A total = 0;
#pragma unroll 8
        for (int i = 0; i < slices; ++i) total += at.scratch[i * step + threadIdx.x];
        at.sums[column] = total;
      }
      __syncthreads();
    }
  }

  // Receives all blocks' results, and calls visit(e, number) for each.
  template <typename Visit>
  __device__ void ReceiveResult(uint32_t tag, const Visit& visit) const {
    constexpr int kAtOnce = 4;
    const int vector = z.vector();
#pragma unroll 1
    for (int e = threadIdx.x; e < vector; e += kAtOnce * kThreads) {
      A numbers[kAtOnce];
      const auto is_wanted = [&](int i) { return e + i * kThreads < vector; };
      Receive(tag, result + e, kThreads, is_wanted, numbers);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (is_wanted(i)) visit(e + i * kThreads, numbers[i]);
      }
    }
    __syncthreads();
  }

  // Returns the squash of a vector s, by a team of kWide threads.
  __device__ Squash<A> SquashOf(const A* s, int member) const {
    A square = 0, small = 0;
    EachElement(member, [&](int d) {
      const A shrunk = s[d] * kShrink<A>;
      square += s[d] * s[d];
      small += shrunk * shrunk;
    });
    return {TeamSum<kWide>(square), TeamSum<kWide>(small), A{z.epsilon}};
  }

  // Calls visit(d, ds) with the gradient of s, by a team of kWide threads.
  template <typename Visit>
  __device__ void SquashGradient(const A* s, const A* dv, int member,
                                 const Visit& visit) const {
    const Squash<A> squash = SquashOf(s, member);
    A product = 0, small = 0;
    EachElement(member, [&](int d) {
      product += s[d] * dv[d];
      small += s[d] * kShrink<A> * dv[d];
    });
    const A slope = squash.Slope(TeamSum<kWide>(product), TeamSum<kWide>(small));
    EachElement(member, [&](int d) {
      visit(d, squash.gain * dv[d] + slope * squash.Along(s[d]));
    });
  }
};

}  // namespace capsops::capsule_routing::resident
