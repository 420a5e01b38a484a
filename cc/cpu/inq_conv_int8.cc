// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolution of 8-bit activations with integer powers of two, as a product of integer
// matrices. Lanes are output channels; a 32-bit lane sums several terms at a time.
#include "cc/cpu/inq_conv_int8.h"

#include <cstring>

#include "cc/cpu/convert.h"
#include "cc/cpu/inq_conv_int8_pack.h"
#include "cc/cpu/simd.h"

namespace capsops::inq_conv_int8::CAPSOPS_ISA {
namespace {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Output pixels per register tile, and per task.
constexpr int kTileRows = kVectorBytes == 64 ? 12 : 4;
constexpr int64_t kTaskRows = 48;
// Most bytes of a panel's block of weights: half of the L1 cache, or less.
constexpr int64_t kBlockBytes = 16384;
// Number of tasks to aim for. Each group of panels gathers the same windows again, so
// panels are divided into no more groups than this number of tasks needs.
constexpr int64_t kTasks = 16;

Division Divide(const Problem& p, Product product) {
  const int64_t bytes = TermBytes(product), terms = Terms(p);
  const int64_t rows = Pixels(p);
  Division d;
  d.panels = CeilDivide(p.out_channels, kPanelLanes);
  d.blocks = CeilDivide(terms, kBlockBytes / kPanelLanes / bytes);
  if (d.blocks > 0) d.depth = RoundUp(CeilDivide(terms, d.blocks), 4);
  d.panel = kPanelLanes * (sizeof(uint32_t) + d.depth * bytes);
  d.packed = d.blocks * d.panels * d.panel;
  d.row_blocks = CeilDivide(rows, kTaskRows);
  if (rows == 0 || d.panels == 0) return d;
  const int64_t groups = Min(d.panels, CeilDivide(kTasks, d.row_blocks));
  d.group = CeilDivide(d.panels, groups);
  d.panel_groups = CeilDivide(d.panels, d.group);
  // An odd number of cache lines keeps a tile's rows out of each other's cache sets.
  d.patch = RoundUp(d.depth * bytes, 128) + 64;
  d.scratch = kTaskRows * (d.patch + d.group * kPanelLanes * sizeof(uint32_t));
  return d;
}

template <typename T>
void Quantize(int64_t count, const T* input, float scale, int32_t zero_point,
              uint8_t* image) {
  using A = Accumulator<T>;
  // Adding kRound rounds to an integer, as numbers of its size have no fraction bits.
  constexpr A kRound = sizeof(A) == 8 ? 0x1.8p52 : 0x1.8p23;
  const A least = -zero_point, most = 255 - zero_point;
  for (int64_t i = 0; i < count; ++i) {
    A x = Widen(input[i]) / scale;
    x = x > least ? x : least;  // a NaN becomes `least`
    x = x < most ? x : most;
    image[i] =
        static_cast<uint8_t>(static_cast<int32_t>(x + kRound - kRound) + zero_point);
  }
}

// The window of one output pixel, as a row of terms.
class Window {
 public:
  Window(const Problem& p, const uint8_t* image, uint8_t zero, int64_t row)
      : p_(p),
        zero_(zero),
        x_(row % p.out_width * p.stride_width - p.pad_left),
        y_(row / p.out_width % p.out_height * p.stride_height - p.pad_top),
        image_(image + row / (p.out_width * p.out_height) * p.in_height * p.in_width *
                           p.in_channels),
        taps_(p.dilation_width == 1 ? p.kernel_width : 1) {}

  // Writes terms [begin, end) as numbers of type E.
  template <typename E>
  void Gather(int64_t begin, int64_t end, E* to) const {
    // Without dilation, the pixels of a row of taps are contiguous.
    const int64_t size = taps_ * p_.in_channels;
    int64_t tap = begin / size * taps_, skipped = begin % size;
    while (begin < end) {
      const int64_t count = Min(size - skipped, end - begin);
      GatherTaps(tap / p_.kernel_width, tap % p_.kernel_width, skipped, count, to);
      begin += count;
      to += count;
      tap += taps_;
      skipped = 0;
    }
  }

 private:
  // Writes terms [first, first + count) of the neighboring taps from this one on.
  template <typename E>
  void GatherTaps(int64_t tap_y, int64_t tap_x, int64_t first, int64_t count,
                  E* to) const {
    const int64_t channels = p_.in_channels;
    const int64_t y = y_ + tap_y * p_.dilation_height;
    const int64_t x = x_ + tap_x * p_.dilation_width;
    const bool inside = y >= 0 && y < p_.in_height && x < p_.in_width && x > -taps_;
    int64_t begin = 0, end = 0;  // terms inside the image
    if (inside) {
      begin = Min(Max(-x * channels - first, 0), count);
      end = Max(Min((p_.in_width - x) * channels - first, count), begin);
    }
    for (int64_t i = 0; i < begin; ++i) to[i] = zero_;
    if (begin < end) {
      const uint8_t* const from =
          image_ + (y * p_.in_width + x) * channels + first + begin;
      if constexpr (sizeof(E) == 1) {
        std::memcpy(to + begin, from, end - begin);
      } else {
        for (int64_t i = begin; i < end; ++i) to[i] = from[i - begin];
      }
    }
    for (int64_t i = end; i < count; ++i) to[i] = zero_;
  }

  const Problem& p_;
  const uint8_t zero_;
  const int64_t x_, y_;  // first tap's pixel, which may be outside the image
  const uint8_t* const image_;
  const int64_t taps_;  // taps that are contiguous in the image
};

// Adds the products of kRows rows and a panel, and subtracts the contribution of the
// zero point, which is the zero point times the sum of the weights.
template <Product kProduct, int kRows>
void MultiplyTile(const Division& d, const char* patches, const char* panel,
                  uint32_t zero_point, uint32_t* sums, int64_t stride) {
  Sums sum[kRows][2];
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v, panel += kVectorBytes) {
    const Sums correction = LoadSums(panel) * zero_point;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sum[r][v] = Load(sums + r * stride + v * kLanes<uint32_t>) - correction;
    }
  }
  const int64_t steps = d.depth * TermBytes(kProduct);  // in bytes
  for (int64_t at = 0; at < steps; at += sizeof(uint32_t)) {
    const Sums weights[2] = {LoadSums(panel), LoadSums(panel + kVectorBytes)};
    panel += 2 * kVectorBytes;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      uint32_t terms;
      std::memcpy(&terms, patches + r * d.patch + at, sizeof(terms));
      sum[r][0] = MultiplyAdd<kProduct>(sum[r][0], Sums{} + terms, weights[0]);
      sum[r][1] = MultiplyAdd<kProduct>(sum[r][1], Sums{} + terms, weights[1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    Store(sums + r * stride, sum[r][0]);
    Store(sums + r * stride + kLanes<uint32_t>, sum[r][1]);
  }
}

// Multiplies `rows` rows with a panel, in tiles of at most kRows rows.
template <Product kProduct, int kRows>
void Multiply(const Division& d, int64_t rows, const char* patches, const char* panel,
              uint32_t zero_point, uint32_t* sums, int64_t stride) {
  for (; rows >= kRows; rows -= kRows) {
    MultiplyTile<kProduct, kRows>(d, patches, panel, zero_point, sums, stride);
    patches += kRows * d.patch;
    sums += kRows * stride;
  }
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? 4 : 1;
    Multiply<kProduct, kFewer>(d, rows, patches, panel, zero_point, sums, stride);
  }
}

// Computes the sums of some rows and panels: for each block of terms, gathers the
// windows of the rows once and multiplies them with all panels.
template <Product kProduct>
void SumRows(const Problem& p, const Division& d, int64_t first_row, int64_t rows,
             int64_t first_panel, int64_t panels, const uint8_t* image,
             int32_t zero_point, const char* packed, char* patches, uint32_t* sums) {
  using E = std::conditional_t<TermBytes(kProduct) == 1, uint8_t, int16_t>;
  const int64_t stride = panels * kPanelLanes;
  std::memset(sums, 0, rows * stride * sizeof(*sums));
  for (int64_t block = 0; block < d.blocks; ++block) {
    const int64_t begin = block * d.depth, end = Min(begin + d.depth, Terms(p));
    for (int64_t r = 0; r < rows; ++r) {
      E* const patch = reinterpret_cast<E*>(patches + r * d.patch);
      Window(p, image, zero_point, first_row + r).Gather(begin, end, patch);
      for (int64_t i = end - begin; i < d.depth; ++i) patch[i] = 0;
    }
    for (int64_t n = 0; n < panels; ++n) {
      Multiply<kProduct, kTileRows>(
          d, rows, patches, packed + (block * d.panels + first_panel + n) * d.panel,
          zero_point, sums + n * kPanelLanes, stride);
    }
  }
}

template <typename T>
void Run(const Problem& p, const Division& d, Product product, int64_t task,
         const uint8_t* image, int32_t zero_point, const char* packed,
         const float* multipliers, T* output, void* scratch) {
  using A = Accumulator<T>;
  const int64_t row = task / d.panel_groups * kTaskRows;
  const int64_t rows = Min(kTaskRows, Pixels(p) - row);
  const int64_t panel = task % d.panel_groups * d.group;
  const int64_t panels = Min(d.group, d.panels - panel);
  char* const patches = static_cast<char*>(scratch);
  uint32_t* const sums = reinterpret_cast<uint32_t*>(patches + kTaskRows * d.patch);
  const auto sum = [&](auto rows_of) {
    rows_of(p, d, row, rows, panel, panels, image, zero_point, packed, patches, sums);
  };
#if defined(__AVX512BW__)
  if (product == Product::kDotBytes) {
    sum(SumRows<Product::kDotBytes>);
  } else if (product == Product::kDotWords) {
    sum(SumRows<Product::kDotWords>);
  } else {
    sum(SumRows<Product::kMaddWords>);
  }
#else
  (void)product;
  sum(SumRows<Product::kMaddWords>);
#endif
  const int64_t channel = panel * kPanelLanes;
  const int64_t channels = Min(panels * kPanelLanes, p.out_channels - channel);
  for (int64_t r = 0; r < rows; ++r) {
    const uint32_t* const from = sums + r * panels * kPanelLanes;
    T* const to = output + (row + r) * p.out_channels + channel;
    for (int64_t i = 0; i < channels; ++i) {
      Narrow(static_cast<A>(static_cast<int32_t>(from[i])) * multipliers[channel + i],
             to + i);
    }
  }
}

bool Pack(const Problem& p, const Division& d, Product product, int64_t task,
          const uint8_t* codes, char* packed) {
#if defined(__AVX512BW__)
  if (product == Product::kDotBytes) {
    return PackPanel<Product::kDotBytes>(p, d, task, codes, packed);
  }
#endif
  (void)product;
  return PackPanel<Product::kMaddWords>(p, d, task, codes, packed);
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {Divide, Quantize<T>, Pack, Run<T>};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::inq_conv_int8::CAPSOPS_ISA
