// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution of one group of 1 or 3 channels, channels last. A task is a
// strip of columns and a range of rows; a block has one or more tasks. A task's
// threads, here called lanes, have two columns each and walk down the rows, while
// cp.async copies filters, input and grad of the next rows to shared memory. Each
// filter is loaded once, except in halos. The backward pass overwrites a staged filter
// with its gradient, and stores it from there in whole words. It scatters grad_input
// into sums in registers, of all rows that taps reach. Neighboring lanes exchange the
// sums of each other's columns through shared memory.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/common/types.cuh"

namespace capsops::high_order_conv::rows {

constexpr int kThreads = 128;
constexpr int kPixels = 2;  // neighboring pixels of a row, per lane
constexpr int kStages = 3;  // rows of filters in shared memory

// Work split: an image has `chunks` x `strips` tasks of `rows` rows and `strip`
// columns. A block has `subs` tasks, with `lanes` threads each.
struct Work {
  int64_t tasks;
  int height, width;
  int strip, strips, rows, chunks;
  int lanes, subs;
  int bytes;  // size of the words in which rows are copied: 4, 8 or 16
};

// Constants for K x K taps and C channels, with elements S and arithmetic in A.
template <typename S, typename A, int K, int C, bool kBackward>
struct Shape {
  static constexpr int kRadius = K / 2;
  static constexpr int kTaps = K * K;
  static constexpr int kWindow = kPixels + 2 * kRadius;  // columns that a lane reads
  static constexpr int kUnit = 16 / sizeof(S);           // pixels copied together
  static constexpr int kHalo = kBackward ? kUnit : 0;    // columns computed twice
  static constexpr int kRing = 2 * kRadius + kStages;    // rows of staged input
  // Sums of grad_input per lane that belong to pixels of neighboring lanes.
  static constexpr int kEdge = kBackward ? 2 * kRadius * C : 0;
  static constexpr int kFromX = ((kUnit - kRadius) * C) & ~1;  // even start of window
  static constexpr int kPairsX = ((kUnit + kPixels + kRadius) * C - kFromX + 1) / 2;
  static_assert(kRadius <= kUnit);
  // Registers of a thread, for planning: in the backward pass, a lane's sums and the
  // rest. Rounded up to the allocation unit, they equal what `nvcc -Xptxas -v` prints
  // for 9.0, so kResident blocks fit on a multiprocessor. Launch bounds do not request
  // that number, since they would change the compiler's schedule. On an H200
  // cudaOccupancyMaxActiveBlocksPerMultiprocessor agrees for each type, K and C, at
  // every even width up to 1198.
  static constexpr int kSums = K * kWindow * C;
  static constexpr int kRest = sizeof(S) == 2 ? 73 : 60;
  static constexpr int kForward = K == 3 && C * sizeof(S) <= 6 ? 51 : 56;
  static constexpr int kRegisters = kBackward ? kSums + kRest : kForward;
  static constexpr int kResident = (64 << 10) / kThreads / kRegisters;

  // Sizes in shared memory, in elements: of a row of filters, of grad and of input, and
  // of a task, which has kStages rows of filters and grad and then kRing rows of input.
  // Bytes() is the size of a block: its tasks, then two buffers of edge sums.
  __host__ __device__ static int FilterRow(int lanes) {
    return lanes * kPixels * kTaps;
  }
  __host__ __device__ static int GradRow(int lanes) {
    return kBackward ? lanes * kPixels * C : 0;
  }
  __host__ __device__ static int InputRow(int lanes) {
    return (lanes * kPixels + 2 * kUnit) * C;
  }
  __host__ __device__ static int PerTask(int lanes) {
    return kStages * (FilterRow(lanes) + GradRow(lanes)) + kRing * InputRow(lanes);
  }
  static int64_t Bytes(int lanes, int subs) {
    return int64_t{subs} * PerTask(lanes) * sizeof(S) +
           2 * kEdge * kThreads * sizeof(A);
  }

  // A lane loads its two pixels' filters in pairs, which may span two rows of taps:
  // a pair is loaded for its first row and, in the backward pass, stored after its
  // last.
  __device__ static constexpr int RowOf(int e) { return e % kTaps / K; }
  __device__ static constexpr int FirstRow(int pair) {
    return RowOf(2 * pair) < RowOf(2 * pair + 1) ? RowOf(2 * pair)
                                                 : RowOf(2 * pair + 1);
  }
  __device__ static constexpr int LastRow(int pair) {
    return RowOf(2 * pair) > RowOf(2 * pair + 1) ? RowOf(2 * pair)
                                                 : RowOf(2 * pair + 1);
  }
};

// Calls move(e, word) for each word of kBytes bytes that lane `lane` of `lanes` moves,
// out of `count` elements. e is the word's first element; `word` only has its type.
template <int kBytes, typename S, typename Move>
__device__ void ForWordsOf(int count, int lane, int lanes, const Move& move) {
  constexpr int kWord = kBytes / sizeof(S);
  for (int e = lane * kWord; e < count; e += lanes * kWord) move(e, Pack<S, kWord>{});
}

// Dispatches to ForWordsOf with words of `bytes` bytes: 4, 8 or 16.
template <typename S, typename Move>
__device__ void ForWords(int bytes, int count, int lane, int lanes, const Move& move) {
  switch (bytes) {
    case 16:
      return ForWordsOf<16, S>(count, lane, lanes, move);
    case 8:
      return ForWordsOf<8, S>(count, lane, lanes, move);
    default:
      return ForWordsOf<4, S>(count, lane, lanes, move);
  }
}

// Starts the copies of a lane's words of `count` elements to shared memory.
template <typename S>
__device__ void CopyAsync(int bytes, const S* from, int count, int lane, int lanes,
                          S* to) {
  ForWords<S>(bytes, count, lane, lanes, [&](int e, auto word) {
    __pipeline_memcpy_async(to + e, from + e, sizeof(word));
  });
}

// Stores the C elements of each of a lane's two pixels, or of the first alone unless
// `both` are in the image.
template <typename S, typename A, int C>
__device__ void StorePixels(const A (&from)[kPixels * C], bool both, int bytes, S* to) {
  if (both && bytes >= 2 * static_cast<int>(sizeof(S))) {
#pragma unroll
    for (int e = 0; e < C; ++e) {
      Pack<S, 2> two;
      Narrow(from[2 * e], &two.at[0]);
      Narrow(from[2 * e + 1], &two.at[1]);
      *reinterpret_cast<Pack<S, 2>*>(to + 2 * e) = two;
    }
  } else {
#pragma unroll
    for (int e = 0; e < kPixels * C; ++e) {
      if (e < C || both) Narrow(from[e], to + e);
    }
  }
}

// Computes output, or if kBackward grad_input and grad_filters. Each step of the loop
// computes one row from staged filters and input, and starts the copies of the row
// kStages further down.
template <typename S, typename A, int K, int C, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    RowsKernel(Work w, const S* __restrict__ input, const S* __restrict__ filters,
               const S* __restrict__ grad, S* __restrict__ result,
               S* __restrict__ grad_filters) {
  using Z = Shape<S, A, K, C, kBackward>;
  constexpr int R = Z::kRadius, kTaps = Z::kTaps, kWindow = Z::kWindow;
  extern __shared__ __align__(16) char shared[];
  const int sub = threadIdx.x / w.lanes, lane = threadIdx.x % w.lanes;
  const int64_t task = int64_t{blockIdx.x} * w.subs + sub;
  const bool real = sub < w.subs && task < w.tasks;  // whether the lane has a task
  // The task's own columns [strip0, strip1) and rows [y0, y1), and with halo the
  // columns [x0, x1) and rows [first, last) that it computes.
  const int strip0 = static_cast<int>(task % w.strips) * w.strip;
  const int strip1 = min(strip0 + w.strip, w.width);
  const int x0 = max(strip0 - Z::kHalo, 0), x1 = min(strip1 + Z::kHalo, w.width);
  const int y0 = static_cast<int>(task / w.strips % w.chunks) * w.rows;
  const int y1 = min(y0 + w.rows, w.height);
  const int64_t image = task / w.strips / w.chunks * w.height;
  const int first = kBackward ? max(y0 - R, 0) : y0;
  const int last = kBackward ? min(y1 + R, w.height) : y1;
  const int x = x0 + kPixels * lane;
  // Whether the lane has columns, whether they are outside of the halo, and whether
  // both are in the image.
  const bool mine = real && x < x1;
  const bool own = mine && x >= strip0 && x < strip1;
  const bool both = x + 1 < w.width;

  S* const stages = reinterpret_cast<S*>(shared) + sub * Z::PerTask(w.lanes);
  const int filter_row = Z::FilterRow(w.lanes), input_row = Z::InputRow(w.lanes);
  const int stage_size = filter_row + Z::GradRow(w.lanes);
  S* const ring = stages + kStages * stage_size;
  A* const edges =
      reinterpret_cast<A*>(reinterpret_cast<S*>(shared) + w.subs * Z::PerTask(w.lanes));

  // Columns outside the image stay zero.
  if (real) {
    for (int e = lane; e < Z::kRing * input_row; e += w.lanes) ring[e] = S(0.0f);
  }
  __syncthreads();
  const int ring0 = max(x0 - Z::kUnit, 0), ring1 = min(x1 + Z::kUnit, w.width);
  const auto copy_input = [&](int y, int slot) {
    if (!real || y < 0 || y >= min(last + R, w.height)) return;
    CopyAsync(w.bytes, input + ((image + y) * w.width + ring0) * C, (ring1 - ring0) * C,
              lane, w.lanes, ring + slot * input_row + (ring0 - x0 + Z::kUnit) * C);
  };
  const auto start_copy = [&](int step, int slot, int ring_slot) {
    const int y = first + step;
    copy_input(y + R, ring_slot);
    if (real && y < last) {
      S* const stage = stages + slot * stage_size;
      const int64_t pixel = (image + y) * w.width + x0;
      CopyAsync(w.bytes, filters + pixel * kTaps, (x1 - x0) * kTaps, lane, w.lanes,
                stage);
      if constexpr (kBackward) {
        CopyAsync(w.bytes, grad + pixel * C, (x1 - x0) * C, lane, w.lanes,
                  stage + filter_row);
      }
    }
    __pipeline_commit();
  };
  for (int i = 0; i < 2 * R; ++i) copy_input(first - R + i, i);
  for (int s = 0; s < kStages; ++s) start_copy(s, s, 2 * R + s);

  A acc[K][kWindow][C] = {};  // rows y-R to y+R of grad_input
  const int steps = w.rows + (kBackward ? 2 * R : 0);
  int slot = 0, oldest = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int y = first + step;
    S* const stage = stages + slot * stage_size;
    __pipeline_wait_prior(kStages - 1);
    __syncthreads();
    if (mine && y < last) {
      S* const my_filters = stage + lane * (kPixels * kTaps);
      S* const my_grad = stage + filter_row + lane * (kPixels * C);
      if (!both) {
        for (int e = kTaps; e < kPixels * kTaps; ++e) my_filters[e] = S(0.0f);
        if constexpr (kBackward) {
          for (int e = C; e < kPixels * C; ++e) my_grad[e] = S(0.0f);
        }
      }
      A f[kPixels * kTaps], g[kPixels * C], sum[kPixels * C] = {};
      if constexpr (kBackward) {
#pragma unroll
        for (int e = 0; e < C; ++e) {
          const auto pair = *reinterpret_cast<const Pack<S, 2>*>(my_grad + 2 * e);
          g[2 * e] = Widen(pair.at[0]);
          g[2 * e + 1] = Widen(pair.at[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < K; ++i) {
#pragma unroll
        for (int pair = 0; pair < kTaps; ++pair) {
          if (Z::FirstRow(pair) != i) continue;
          const auto two = *reinterpret_cast<const Pack<S, 2>*>(my_filters + 2 * pair);
          f[2 * pair] = Widen(two.at[0]);
          f[2 * pair + 1] = Widen(two.at[1]);
        }
        if constexpr (kBackward) {
          // Moves the sums on from row y - 1 to row y: acc[i] takes over acc[i + 1].
#pragma unroll
          for (int e = 0; e < kWindow * C; ++e) {
            acc[i][e / C][e % C] = i + 1 < K ? acc[(i + 1) % K][e / C][e % C] : A{0};
          }
        }
        const bool inside = y + i - R >= 0 && y + i - R < w.height;
        if (inside) {
          int ring_slot = oldest + i;
          if (ring_slot >= Z::kRing) ring_slot -= Z::kRing;
          const S* const row = ring + ring_slot * input_row + lane * (kPixels * C);
          A v[2 * Z::kPairsX];
#pragma unroll
          for (int e = 0; e < Z::kPairsX; ++e) {
            const auto two =
                *reinterpret_cast<const Pack<S, 2>*>(row + Z::kFromX + 2 * e);
            v[2 * e] = Widen(two.at[0]);
            v[2 * e + 1] = Widen(two.at[1]);
          }
          constexpr int kSkip = (Z::kUnit - R) * C - Z::kFromX;
#pragma unroll
          for (int px = 0; px < kPixels; ++px) {
#pragma unroll
            for (int j = 0; j < K; ++j) {
              const int at = px + j;
              A& filter = f[px * kTaps + i * K + j];
              // A tap beside the image has no effect, even if filter or grad are not
              // finite.
              const bool beside =
                  (at < R && x + at - R < 0) || (at > R && x + at - R >= w.width);
              if constexpr (kBackward) {
                A product = 0;
#pragma unroll
                for (int c = 0; c < C; ++c) {
                  acc[i][at][c] += g[px * C + c] * filter;
                  product += g[px * C + c] * v[kSkip + at * C + c];
                }
                filter = beside ? A{0} : product;
              } else {
                const A safe = beside ? A{0} : filter;
#pragma unroll
                for (int c = 0; c < C; ++c) {
                  sum[px * C + c] += safe * v[kSkip + at * C + c];
                }
              }
            }
          }
        } else if constexpr (kBackward) {
#pragma unroll
          for (int e = 0; e < kPixels * K; ++e) f[e / K * kTaps + i * K + e % K] = 0;
        }
        if constexpr (kBackward) {
#pragma unroll
          for (int pair = 0; pair < kTaps; ++pair) {
            if (Z::LastRow(pair) != i) continue;
            Pack<S, 2> two;
            Narrow(f[2 * pair], &two.at[0]);
            Narrow(f[2 * pair + 1], &two.at[1]);
            *reinterpret_cast<Pack<S, 2>*>(my_filters + 2 * pair) = two;
          }
        }
      }
      if constexpr (!kBackward) {
        StorePixels<S, A, C>(sum, both, w.bytes,
                             result + ((image + y) * w.width + x) * C);
      }
    } else if constexpr (kBackward) {
#pragma unroll
      for (int e = 0; e < K * kWindow * C; ++e) {
        const int i = e / (kWindow * C), at = e / C % kWindow, c = e % C;
        acc[i][at][c] = i + 1 < K ? acc[(i + 1) % K][at][c] : A{0};
      }
    }
    // Row y - R of grad_input only lacks the contributions of neighboring lanes.
    A* const edge = edges + step % 2 * (Z::kEdge * kThreads) + threadIdx.x;
    if constexpr (kBackward) {
#pragma unroll
      for (int e = 0; e < Z::kEdge; ++e) {
        const int at = e / C < R ? e / C : e / C + kPixels;
        edge[e * kThreads] = acc[0][at][e % C];
      }
    }
    // Edges and gradients are in shared memory, and no lane needs this step's filters
    // or the oldest row of input, which start_copy() overwrites.
    __syncthreads();
    if constexpr (kBackward) {
      if (real && y >= y0 && y < y1) {
        S* const to = grad_filters + ((image + y) * w.width + x0) * kTaps;
        const int begin = (strip0 - x0) * kTaps, end = (strip1 - x0) * kTaps;
        // A lane stores the very words that its next copies overwrite, so that no
        // barrier is needed in between.
        ForWords<S>(w.bytes, (x1 - x0) * kTaps, lane, w.lanes, [&](int e, auto word) {
          using Word = decltype(word);
          if (e < begin || e >= end) return;
          *reinterpret_cast<Word*>(to + e) = *reinterpret_cast<const Word*>(stage + e);
        });
      }
    }
    start_copy(step + kStages, slot, oldest);
    if constexpr (kBackward) {
      if (own && y - R >= y0 && y - R < y1) {
        const int lanes = (x1 - x0 + 1) / kPixels;
        A total[kPixels * C];
#pragma unroll
        for (int px = 0; px < kPixels; ++px) {
#pragma unroll
          for (int c = 0; c < C; ++c) {
            A sum = acc[0][R + px][c];
#pragma unroll
            for (int d = -2; d <= 2; ++d) {
              // Column of this pixel in the window of the lane d to the right.
              const int at = px - kPixels * d + R;
              if (d == 0 || at < 0 || at >= kWindow) continue;
              const int e = (at < R ? at : at - kPixels) * C + c;
              if (lane + d >= 0 && lane + d < lanes) sum += edge[e * kThreads + d];
            }
            total[px * C + c] = sum;
          }
        }
        StorePixels<S, A, C>(total, both, w.bytes,
                             result + ((image + y - R) * w.width + x) * C);
      }
    }
    slot = slot + 1 == kStages ? 0 : slot + 1;
    oldest = oldest + 1 == Z::kRing ? 0 : oldest + 1;
  }
}

}  // namespace capsops::high_order_conv::rows
