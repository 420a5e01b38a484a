// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution, channels last, of groups of a multiple of 4 channels
// (involution). A block computes all channels of a tile of pixels, and a thread 4
// channels of 4 neighboring pixels of a row. A thread loads the image from global
// memory: it keeps in registers the 4 + K - 1 vectors of 4 channels that a row of taps
// reads. Filters, or their gradients, pass through shared memory, since all threads of
// a group use the same ones and so that global accesses coalesce.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/common/types.cuh"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::channels {

constexpr int kMaxThreads = 256;
constexpr int kPixels = 4;  // pixels per thread
constexpr int kVector = 4;  // channels per thread, loaded at once

// Work split. A block has a tile of `rows` rows of `quads` x 4 pixels, with `lanes`
// threads per quad of pixels.
struct Work {
  int height, width, tiles_x, tiles_y, quads, rows;
  int channels, groups, dilation_height;
  int lanes, lanes_of_group;  // in FiltersKernel, a lane may have several vectors
};

// A thread's tile, and its pixels there.
struct Place {
  int lane, quad, row;  // coordinates of the thread in the block
  int tile_x, x, y;     // first column of the tile; the thread's first pixel
  int64_t image;        // image rows before this image
  bool inside;          // whether the first pixel is in the tile and the image

  __device__ explicit Place(const Work& w) {
    unsigned block = blockIdx.x;
    tile_x = block % w.tiles_x * (w.quads * kPixels);
    block /= w.tiles_x;
    const int tile_y = block % w.tiles_y * w.rows;
    image = static_cast<int64_t>(block / w.tiles_y) * w.height;
    lane = threadIdx.x % w.lanes;
    quad = threadIdx.x / w.lanes % w.quads;
    row = threadIdx.x / w.lanes / w.quads;
    x = tile_x + quad * kPixels;
    y = tile_y + row;
    inside = row < w.rows && y < w.height && x < w.width;
  }
  // Number of pixels of the tile in its row `r`.
  __device__ int PixelsOfRow(const Work& w, int r) const {
    return y - row + r < w.height ? min(w.quads * kPixels, w.width - tile_x) : 0;
  }
};

// Loads kWindow vectors of image row `row` from column x on, zeros outside the image.
template <typename S, typename A, int kWindow>
__device__ void LoadWindow(const Work& w, const S* tensor, int64_t row, int x,
                           int channel, bool row_inside,
                           A (&window)[kWindow][kVector]) {
  const S* const from = tensor + (row * w.width + x) * w.channels + channel;
#pragma unroll
  for (int at = 0; at < kWindow; ++at) {
    Pack<S, kVector> pack{};
    if (row_inside && x + at >= 0 && x + at < w.width) {
      pack = *reinterpret_cast<const Pack<S, kVector>*>(from + at * w.channels);
    }
#pragma unroll
    for (int c = 0; c < kVector; ++c) window[at][c] = Widen(pack.at[c]);
  }
}

// Stores a thread's vectors, one per pixel inside the image.
template <typename S, typename A>
__device__ void StoreQuad(const Work& w, const Place& at,
                          const A (&sum)[kPixels][kVector], S* tensor) {
  S* const to =
      tensor + ((at.image + at.y) * w.width + at.x) * w.channels + at.lane * kVector;
#pragma unroll
  for (int px = 0; px < kPixels; ++px) {
    if (at.x + px >= w.width) break;
    StorePack<kVector>(sum[px], to + px * w.channels);
  }
}

// Computes output. The filters of a row of the tile are contiguous in global memory, so
// cp.async copies them to shared memory in words of 16 bytes.
template <typename S, typename A, int K>
__global__ void __launch_bounds__(kMaxThreads)
    ForwardKernel(Work w, const S* __restrict__ input, const S* __restrict__ filters,
                  S* __restrict__ output) {
  constexpr int R = K / 2, kWindow = kPixels + K - 1;
  extern __shared__ __align__(16) char shared[];
  const Place at(w);
  const int per_pixel = w.groups * K * K;
  const int segment = SegmentSize<S>(w.quads * kPixels * per_pixel);
  S* mine = reinterpret_cast<S*>(shared);  // the filters of the thread's pixels
  for (int r = 0; r < w.rows; ++r) {
    const int pixels = at.PixelsOfRow(w, r);
    if (pixels <= 0) break;
    const int64_t start =
        ((at.image + at.y - at.row + r) * w.width + at.tile_x) * per_pixel;
    S* const to = reinterpret_cast<S*>(shared) + r * segment;
    const S* const from = filters + start - start % (16 / sizeof(S));
    const int skip = ForSegment<S>(
        start, pixels * per_pixel,
        [&](int e) { __pipeline_memcpy_async(to + e, from + e, 16); },
        [&](int e) { to[e] = from[e]; });
    if (r == at.row) mine = to + skip;
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  if (!at.inside) return;
  mine += at.quad * kPixels * per_pixel + at.lane / w.lanes_of_group * (K * K);
  A sum[kPixels][kVector] = {};
#pragma unroll 1
  for (int i = 0; i < K; ++i, mine += K) {
    const int64_t y = at.y + int64_t{i - R} * w.dilation_height;
    if (y < 0 || y >= w.height) continue;
    A window[kWindow][kVector];
    LoadWindow<S, A>(w, input, at.image + y, at.x - R, at.lane * kVector, true, window);
#pragma unroll
    for (int px = 0; px < kPixels; ++px) {
#pragma unroll
      for (int j = 0; j < K; ++j) {
        // A tap beside the image has no effect, even if its filter is not finite.
        const int x = at.x + px + j - R;
        const bool reads = x >= 0 && x < w.width && at.x + px < w.width;
        const A f = reads ? Widen(mine[px * per_pixel + j]) : A{0};
#pragma unroll
        for (int c = 0; c < kVector; ++c) sum[px][c] += f * window[px + j][c];
      }
    }
  }
  StoreQuad(w, at, sum, output);
}

// Computes grad_input. Each pixel reads the filters of the surrounding pixels, staged
// in shared memory as [row of the tile][row of taps][pixel][group][K] with zeros
// outside the image. For each row of taps, `pixel` is in the image row whose taps read
// the tile's row.
template <typename S, typename A, int K>
__global__ void __launch_bounds__(kMaxThreads)
    InputKernel(Work w, const S* __restrict__ grad, const S* __restrict__ filters,
                S* __restrict__ grad_input) {
  constexpr int R = K / 2, kWindow = kPixels + K - 1;
  extern __shared__ __align__(16) char shared[];
  S* const staged = reinterpret_cast<S*>(shared);
  const Place at(w);
  const int columns = w.quads * kPixels + 2 * R, part = w.groups * K;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int r = 0; r < w.rows; ++r) {
    for (int i = 0; i < K; ++i) {
      const int64_t y = at.y - at.row + r - int64_t{i - R} * w.dilation_height;
      const S* const row =
          filters + ((at.image + y) * w.width + at.tile_x - R) * (w.groups * K * K) +
          i * K;
      for (int column = warp; column < columns; column += warps) {
        const int x = at.tile_x - R + column;
        const bool reads = y >= 0 && y < w.height && x >= 0 && x < w.width;
        const S* const from = row + int64_t{column} * (w.groups * K * K);
        S* const to = staged + ((r * K + i) * columns + column) * part;
        for (int e = threadIdx.x % 32; e < part; e += 32) {
          const int source = e / K * (K * K) + e % K;
          if (!reads) {
            to[e] = S(0.0f);
          } else if constexpr (sizeof(S) == 4) {
            __pipeline_memcpy_async(to + e, from + source, 4);
          } else {  // cp.async copies no fewer than 4 bytes
            to[e] = from[source];
          }
        }
      }
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  if (!at.inside) return;
  const S* mine = staged + (at.row * K * columns + at.quad * kPixels) * part +
                  at.lane / w.lanes_of_group * K;
  A sum[kPixels][kVector] = {};
#pragma unroll 1
  for (int i = 0; i < K; ++i, mine += columns * part) {
    const int64_t y = at.y - int64_t{i - R} * w.dilation_height;
    if (y < 0 || y >= w.height) continue;
    A window[kWindow][kVector];
    LoadWindow<S, A>(w, grad, at.image + y, at.x - R, at.lane * kVector, true, window);
#pragma unroll
    for (int px = 0; px < kPixels; ++px) {
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const int from = px + 2 * R - j;
        const A f = Widen(mine[from * part + j]);
#pragma unroll
        for (int c = 0; c < kVector; ++c) sum[px][c] += f * window[from][c];
      }
    }
  }
  StoreQuad(w, at, sum, grad_input);
}

// Sums over the `lanes` lanes of a group, in a fixed order. Each of the first
// min(lanes, 4) lanes gets the sums of 4 / lanes pixels, at least one, from `*pixel`
// on. While a lane has several pixels, it trades half of them for the other lane's sums
// of the half that it keeps.
template <typename A, int K>
__device__ void SumOverGroup(int lanes, A (&sum)[kPixels][K], int* pixel) {
  *pixel = 0;
#pragma unroll
  for (int half = 2; half > 0; half /= 2) {
    const int bit = 2 / half;
    if (lanes <= bit) return;
    const bool upper = threadIdx.x & bit;
    *pixel += upper ? half : 0;
#pragma unroll
    for (int px = 0; px < half; ++px) {
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const A sent = upper ? sum[px][j] : sum[px + half][j];
        const A kept = upper ? sum[px + half][j] : sum[px][j];
        sum[px][j] = kept + __shfl_xor_sync(~0u, sent, bit);
      }
    }
  }
  for (int bit = 4; bit < lanes; bit *= 2) {
#pragma unroll
    for (int j = 0; j < K; ++j) sum[0][j] += __shfl_xor_sync(~0u, sum[0][j], bit);
  }
}

// Computes grad_filters. The lanes of a group sum over different channels, add up their
// sums by shuffles, and gather them in shared memory, from which whole words are
// stored.
template <typename S, typename A, int K>
__global__ void __launch_bounds__(kMaxThreads)
    FiltersKernel(Work w, const S* __restrict__ grad, const S* __restrict__ input,
                  S* __restrict__ grad_filters) {
  constexpr int R = K / 2, kWindow = kPixels + K - 1;
  extern __shared__ __align__(16) char shared[];
  S* const staged = reinterpret_cast<S*>(shared);
  const Place at(w);
  const int per_pixel = w.groups * K * K, of_group = w.channels / w.groups;
  const int segment = SegmentSize<S>(w.quads * kPixels * per_pixel);
  const auto start = [&](int r) {
    return ((at.image + at.y - at.row + r) * w.width + at.tile_x) * per_pixel;
  };
  const int group = at.lane / w.lanes_of_group, lane = at.lane % w.lanes_of_group;
#pragma unroll 1
  for (int i = 0; i < K; ++i) {
    const int64_t y = at.y + int64_t{i - R} * w.dilation_height;
    const bool reads = at.inside && y >= 0 && y < w.height;
    A sum[kPixels][K] = {};
    for (int c0 = lane * kVector; c0 < of_group; c0 += w.lanes_of_group * kVector) {
      const int channel = group * of_group + c0;
      A window[kWindow][kVector], own[kPixels][kVector];
      LoadWindow<S, A>(w, grad, at.image + at.y, at.x, channel, reads, own);
      LoadWindow<S, A>(w, input, at.image + y, at.x - R, channel, reads, window);
#pragma unroll
      for (int px = 0; px < kPixels; ++px) {
#pragma unroll
        for (int j = 0; j < K; ++j) {
#pragma unroll
          for (int c = 0; c < kVector; ++c) {
            sum[px][j] += own[px][c] * window[px + j][c];
          }
        }
      }
    }
    int pixel;
    SumOverGroup(w.lanes_of_group, sum, &pixel);
    if (at.inside && lane < kPixels) {
      const int kept = max(kPixels / w.lanes_of_group, 1);
      S* const to = staged + at.row * segment + start(at.row) % (16 / sizeof(S)) +
                    group * (K * K) + i * K;
#pragma unroll
      for (int px = 0; px < kPixels; ++px) {
        if (px >= kept || at.x + pixel + px >= w.width) break;
#pragma unroll
        for (int j = 0; j < K; ++j) {
          const int x = at.x + pixel + px + j - R;
          const bool inside = reads && x >= 0 && x < w.width;
          Narrow(inside ? sum[px][j] : A{0},
                 to + (at.quad * kPixels + pixel + px) * per_pixel + j);
        }
      }
    }
  }
  __syncthreads();
  for (int r = 0; r < w.rows; ++r) {
    const int pixels = at.PixelsOfRow(w, r);
    if (pixels <= 0) break;
    using Word = Pack<S, 16 / sizeof(S)>;
    const S* const from = staged + r * segment;
    S* const to = grad_filters + start(r) - start(r) % (16 / sizeof(S));
    ForSegment<S>(
        start(r), pixels * per_pixel,
        [&](int e) {
          *reinterpret_cast<Word*>(to + e) = *reinterpret_cast<const Word*>(from + e);
        },
        [&](int e) { to[e] = from[e]; });
  }
}

}  // namespace capsops::high_order_conv::channels
