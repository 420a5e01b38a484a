// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Adds a slab's gradient of the image to the gradient of the input, with
// ImageGradKernel (image.cuh). There are two ways:
//   direct  If windows have one horizontal tap, no horizontal stride and no padding,
//           votes at position n read position n of the image, and TMA adds the products
//           to it or stores them.
//   tiles   Otherwise, the products of all horizontal taps are first added up in shared
//           memory. A tile has whole pixels of a row of the votes, or whole rows. Its
//           halo, the image pixels that it shares with the next tile, goes to the
//           workspace, and AddHalosKernel adds it. So additions to a pixel always have
//           the same order.
// Image rows that no slab has written before are stored instead of added to.
#include "cuda/capsule_conv_routing/slabs/image.cuh"

#include <algorithm>
#include <climits>
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// The epilogue works in rounds. In each, shared memory has the products of all
// positions of a tile for some channels of all horizontal taps: at most kRoundColumns
// columns. A row of 40 floats begins 8 banks after the row before, so that the four
// rows that half a warp stores to are in different banks.
constexpr int kRoundColumns = 40;

// Epilogue of "tiles": adds up the horizontal taps of each image pixel. Also the
// parameters of AddHalosKernel.
template <typename S>
struct AddPixels {
  using Element = S;
  static constexpr int kBytes = kTileRows * kRoundColumns * sizeof(float);
  S* image;
  float* halos;
  int added_rows;  // Image rows before this one are added to, the others overwritten.
  int dim, types, height, width, votes_width;
  int x_taps, x_stride, x_dilation, x_pad;
  // If pixel n of the votes reads some image pixel by tap k, then pixel n - x_back
  // reads it by tap k + x_every.
  int x_every, x_back;
  // A tile has tile_pixels pixels of a row of the votes, or tile_rows whole rows. It
  // owns tile_step pixels of an image row and also reaches the next `halo` pixels,
  // which the next tile owns.
  int tile_pixels, tile_step, halo, tile_rows;
  int tile_channels, round_channels;
  int dilation_turns, dilation_rest;  // x_dilation / x_stride and its remainder
  Divisor by_quads, by_types, by_reach, by_stride;

  // Requires MayFit().
  AddPixels(const Problem& p, const Phase& phase)
      : image(nullptr),
        halos(nullptr),
        added_rows(0),
        dim(static_cast<int>(p.in_dim)),
        types(static_cast<int>(p.types)),
        height(static_cast<int>(p.in_height)),
        width(static_cast<int>(p.in_width)),
        votes_width(static_cast<int>(phase.x.out.count)),
        x_taps(static_cast<int>(phase.x.taps)),
        x_stride(static_cast<int>(phase.x.stride)),
        x_dilation(static_cast<int>(phase.x.dilation)),
        x_pad(static_cast<int>(phase.x.pad)),
        x_every(x_stride / static_cast<int>(Gcd(x_stride, x_dilation))),
        x_back(x_every * x_dilation / x_stride),
        tile_pixels(std::clamp(votes_width, 1, std::max(kTileRows / types, 1))),
        tile_step(tile_pixels * x_stride),
        halo(std::max((x_taps - 1) * x_dilation + 1 - x_stride, 0)),
        tile_rows(1),
        dilation_turns(x_dilation / x_stride),
        dilation_rest(x_dilation % x_stride),
        by_types(types),
        by_reach(tile_step + halo),
        by_stride(x_stride) {
    const auto even = [](int all, int parts, int multiple) {
      return static_cast<int>(RoundUp(CeilDivide(all, parts), multiple));
    };
    int tiles = 1, rounds = 1;
    while (x_taps * even(dim, tiles, 8) > kMostImageColumns) ++tiles;
    tile_channels = even(dim, tiles, 8);
    while (x_taps * even(tile_channels, rounds, 4) > kRoundColumns) ++rounds;
    round_channels = even(tile_channels, rounds, 4);
    by_quads = Divisor(round_channels / 4);
    if (tile_pixels < votes_width) return;
    while (2 * tile_rows * tile_pixels * types <= kTileRows &&
           tile_rows * phase.y.stride < p.in_height) {
      tile_rows *= 2;
    }
  }

  // Whether a round has room for 4 channels of all taps, and offsets stay small.
  static bool MayFit(const AxisPhase& x) {
    return 4 * x.taps <= kRoundColumns && x.stride <= 64 && x.dilation <= 4096;
  }
  // Whether no halo is wider than the next tile, and a Divisor can divide item numbers.
  bool Fits() const {
    return (halo <= tile_step || tile_pixels >= votes_width) && items() < 65536;
  }
  // Items of a round: each (row, pixel, type, 4 channels) of the image that a tile
  // reaches.
  __host__ __device__ int items() const {
    return tile_rows * (tile_step + halo) * types * (round_channels / 4);
  }
  // Elements of one halo, and of all halos.
  __host__ __device__ int64_t HaloSize() const { return int64_t{halo} * types * dim; }
  int64_t Halos(const ImageTiles& w) const {
    return int64_t{w.z.read} * w.y.read * (w.across - 1) * HaloSize();
  }

  // Whether a tile without products can be skipped: it has nothing to store, not even
  // zeros in a halo.
  __device__ bool Skips(const ImageTiles& w, const ImageTile& tile) const {
    return w.across == 1 && tile.row + (tile_rows - 1) * w.y.stride < added_rows;
  }

  // Copies the sums of each round to shared memory, and adds them up.
  template <int kProducts>
  __device__ void operator()(const ImageTiles& w, const ImageTile& tile,
                             const float (&sums)[2][kProducts][4], int group,
                             char* memory, int*) const {
    float* const round = reinterpret_cast<float*>(memory);
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float* const upper = round + (warp * 16 + lane / 4) * kRoundColumns;
    for (int begin = 0; begin < tile_channels; begin += round_channels) {
      // A lane has two columns of each product: two channels of a tap.
      int tap = 0, channel = lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
        if (tap < x_taps && channel >= begin && channel < begin + round_channels) {
          float* const to = upper + tap * round_channels + channel - begin;
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            float* const row = to + m * 64 * kRoundColumns;
            *reinterpret_cast<float2*>(row) = make_float2(sums[m][n][0], sums[m][n][1]);
            *reinterpret_cast<float2*>(row + 8 * kRoundColumns) =
                make_float2(sums[m][n][2], sums[m][n][3]);
          }
        }
        channel += 8;
        if (channel >= tile_channels) {
          channel -= tile_channels;
          ++tap;
        }
      }
      SyncGroup(group);
      const int first = tile.column_tile * tile_channels;
      AddRound(w, tile, round, first + begin, min(first + tile_channels, dim));
      SyncGroup(group);  // until all warps have read this round
    }
  }

  // Adds up the taps of a round, for its channels from `first` up to `end` at most.
  // Adds the results to the image or stores them there, or in `halos` for pixels of the
  // next tile.
  __device__ void AddRound(const ImageTiles& w, const ImageTile& tile,
                           const float* round, int first, int end) const {
    const bool last = tile.across == w.across - 1;
    const int64_t row_size = int64_t{width} * types * dim;
    S* const first_row = image + (int64_t{tile.frame} * height + tile.row) * row_size;
    const int64_t line = int64_t{tile.frame} * w.y.read + tile.row;
    float* const tile_halo = halos + (line * (w.across - 1) + tile.across) * HaloSize();
    const int left = tile.across * tile_step - x_pad;
    const int pixels = min(tile_pixels, votes_width - tile.across * tile_pixels);
    const int step = x_every * round_channels - x_back * types * kRoundColumns;
    for (int n = threadIdx.x % 128; n < items(); n += 128) {
      int quad, type;
      int pixel = by_types.Split(by_quads.Split(n, &quad), &type), row = 0;
      if (tile_rows > 1) row = by_reach.Split(pixel, &pixel);
      const int x = left + pixel, channel = first + quad * 4;
      const int down = row * w.y.stride;
      if (x < 0 || x >= width || channel >= end || tile.row + down >= w.y.read)
        continue;
      const bool in_halo = !last && pixel >= tile_step;
      const bool stores = in_halo || tile.row + down >= added_rows;
      int tap = 0, from = pixel;
      if (x_stride > 1) {
        // Finds the first tap with `pixel - tap * x_dilation` a multiple of x_stride.
        int rest;
        from = by_stride.Split(pixel, &rest);
        for (; tap < x_every && rest != 0; ++tap) {
          rest -= dilation_rest;
          from -= dilation_turns;
          if (rest >= 0) continue;
          rest += x_stride;
          --from;
        }
        if (rest != 0) {
          if (!stores) continue;
          tap = x_taps;
        }
      }
      float4 sum = {};
      const float* at = round +
                        (row * w.positions + from * types + type) * kRoundColumns +
                        tap * round_channels + quad * 4;
      for (; tap < x_taps; tap += x_every, from -= x_back, at += step) {
        if (from < 0 || from >= pixels) continue;
        const float4 added = *reinterpret_cast<const float4*>(at);
        sum.x += added.x, sum.y += added.y, sum.z += added.z, sum.w += added.w;
      }
      if (in_halo) {
        *reinterpret_cast<float4*>(
            tile_halo + (int64_t{pixel - tile_step} * types + type) * dim + channel) =
            sum;
      } else {
        S* const to =
            first_row + down * row_size + (int64_t{x} * types + type) * dim + channel;
        if (stores) {
          StoreQuad(to, sum);
        } else {
          AddToGlobal(to, sum);
        }
      }
    }
  }
};

constexpr int kHaloThreads = 256;

// Adds all halos to the image, one of `quads` quads of elements at a time per thread.
// Each of `rows` rows of a frame has `between` halos: one per tile, except for the
// last.
template <typename S>
__global__ void __launch_bounds__(kHaloThreads)
    AddHalosKernel(const AddPixels<S> p, int rows, int between, int quads) {
  GridDependencySynchronize();
  for (int n = blockIdx.x * kHaloThreads + threadIdx.x; n < quads;
       n += gridDim.x * kHaloThreads) {
    Digits<int> digits(n);
    const int element = digits.Next(p.types * p.dim / 4) * 4;
    const int pixel = digits.Next(p.halo);
    const int tile = digits.Next(between), row = digits.Next(rows);
    const int64_t line = int64_t{digits.rest} * p.height + row;
    const int x = (tile + 1) * p.tile_step - p.x_pad + pixel;
    if (x < 0 || x >= p.width) continue;
    const auto added = reinterpret_cast<const Pack<float, 4>*>(p.halos)[n];
    auto& to = *reinterpret_cast<Pack<S, 4>*>(
        p.image + (line * p.width + x) * p.types * p.dim + element);
    Pack<S, 4> sum = to;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      Narrow(Widen(sum.at[e]) + added.at[e], &sum.at[e]);
    }
    to = sum;
  }
}

// Whether all phases can use the direct way.
bool IsDirect(const Problem& p) {
  return AllPhases(p, [](const Phase& phase) {
    return phase.x.taps == 1 && phase.x.stride == 1 && phase.x.pad == 0;
  });
}

// Leaves the following to convolutions, unless all phases are direct: windows with more
// than 10 horizontal taps or with gaps wider than a tile, and images of over 64 types.
bool AddsImage(const Problem& p) {
  return IsDirect(p) ||
         (p.types <= kTileRows / 2 && AllPhases(p, [&](const Phase& phase) {
            using Add = AddPixels<float>;  // Other types have the same sizes.
            return Add::MayFit(phase.x) && Add(p, phase).Fits();
          }));
}

bool StoresImage(const Problem& p) {
  bool first = true, spans = false;
  AllPhases(p, [&](const Phase& phase) {
    if (first) {
      spans = ReadsFrames(p, phase.depth) && Spans(phase.y, p.in_height) &&
              Spans(phase.x, p.in_width);
    }
    first = false;
    return true;
  });
  return spans;
}

// Returns how many of the image rows that a slab reads, from the first one on, may have
// sums already. The other rows have not been written.
int AddedRows(const Problem& p, const Slab& slab) {
  const AxisPhase& y = slab.phase.y;
  const bool is_first =
      slab.phase.depth.out.first + y.out.first + slab.phase.x.out.first == 0;
  if (!is_first || !StoresImage(p)) return INT_MAX;
  // The row after the last one that the band before reads.
  const int64_t end =
      (slab.band.begin - 1) * y.stride - y.pad + (y.taps - 1) * y.dilation + 1;
  return static_cast<int>(
      slab.band.begin == 0
          ? 0
          : std::clamp<int64_t>(end - slab.band.read, 0, slab.band.read_rows));
}

// Divides the image rows into the tiles that AddPixels expects.
template <typename S>
ImageTiles PixelTiles(const Problem& p, const Slab& slab, const AddPixels<S>& add) {
  ImageTiles w(p, slab, kStageTerms<S>, add.tile_pixels * p.types);
  w.column_tiles = CeilDivideInt(p.in_dim, add.tile_channels);
  w.tile_rows = add.tile_rows;
  return w;
}

int64_t ImageHalos(const Problem& p, const Slab& slab) {
  if (IsDirect(p)) return 0;
  const AddPixels<float> add(p, slab.phase);
  return add.Halos(PixelTiles(p, slab, add));
}

// Adds the gradient by "tiles".
template <typename S>
LaunchError AddByTiles(const GpuExec& exec, const char* op, const Problem& p,
                       const Slab& slab, const S* grads, const S* weights, float* halos,
                       S* grad_input) {
  AddPixels<S> add(p, slab.phase);
  add.image = grad_input;
  add.halos = halos;
  add.added_rows = AddedRows(p, slab);
  const ImageTiles w = PixelTiles(p, slab, add);
  CAPSOPS_RETURN_IF_ERROR((WithConstant<8, 10, 16, 20, 24>(
      add.x_taps * add.tile_channels / 8, [&](auto products) {
        return LaunchImageGrad<products.value>(exec, op, w, add.tile_channels, grads,
                                               weights, add);
      })));
  const int quads = static_cast<int>(add.Halos(w) / 4);
  if (quads == 0) return {};
  const int blocks = static_cast<int>(
      std::min<int64_t>(CeilDivide(quads, kHaloThreads), 8 * exec.device.processors));
  return LaunchDependent(op, AddHalosKernel<S>, dim3(blocks), kHaloThreads, 0, exec,
                         add, w.y.read, w.across - 1, quads);
}

template <typename T>
LaunchError OwnProducts<T>::AddImage(const GpuExec& exec, const char* op,
                                     const Slab& slab, const T* grads, const T* weights,
                                     T* scratch, T* grad_input) const {
  using S = CudaType<T>;
  if (FrameAxis(p_, slab).read == 0) return {};
  S* const image = Native(grad_input) + FirstRow(p_, slab);
  if (!IsDirect(p_)) {
    return AddByTiles(exec, op, p_, slab, Native(grads), Native(weights),
                      reinterpret_cast<float*>(scratch), image);
  }
  const ImageTiles w(p_, slab, kStageTerms<S>);
  AddDirect<S> add;
  CAPSOPS_RETURN_IF_ERROR(MakeAddDirect(op, w, image, AddedRows(p_, slab), &add));
  return WithConstant<8, 16, 20, 24>(CeilDivide(w.wide(), 8), [&](auto products) {
    return LaunchImageGrad<products.value>(exec, op, w, 8 * products.value,
                                           Native(grads), Native(weights), add);
  });
}

#define CAPSOPS_INSTANTIATE(T)                   \
  template LaunchError OwnProducts<T>::AddImage( \
      const GpuExec&, const char*, const Slab&, const T*, const T*, T*, T*) const;
CAPSOPS_FOR_EACH_PRODUCT_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
