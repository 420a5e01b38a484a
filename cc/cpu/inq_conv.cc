// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolution with weights given as codes, and its input gradient. Both are capsule
// convolutions of 1 x in_channels poses, computed by capsule_conv_columns.h: lanes are
// channels of the written image. Only the packing of weights differs: it decodes them.
#include "cc/cpu/inq_conv.h"

#include "cc/cpu/capsule_conv_columns.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/inq_codes.h"
#include "cc/cpu/lanes.h"

namespace capsops::inq_conv::CAPSOPS_ISA {
namespace {

using namespace capsops::CAPSOPS_ISA;                // NOLINT: this unit's
using namespace capsops::capsule_conv::CAPSOPS_ISA;  // NOLINT: instruction set

// Longer partial sums than those of CapsuleConv are faster. They are accurate enough
// (docs/notebook/inq_conv.md).
constexpr SumTerms kTerms = {320, 320};
constexpr int64_t kPackChannels = 64;  // input channels per task of `pack`

// This convolution as a capsule convolution, and its division into panels.
template <typename A, bool kGradient>
struct Panels {
  explicit Panels(const Problem& p)
      : poses(AsPoses(p, p.in_channels, p.out_channels)), plan(poses, kTerms) {}

  // Clears everything after the panels: the zeros that replace pixels outside the
  // image, and the flags of weights that are not finite, as all weights are finite.
  void Finish(A* packed) const {
    const int64_t first = plan.panel(plan.panels);
    std::memset(packed + first, 0, (plan.packed() - first) * sizeof(A));
  }

  capsule_conv::Problem poses;
  ColumnsPlan<A, kGradient> plan;
};

// Returns 2^exponent, which must be a normal number.
template <typename A>
A PowerOfTwo(int64_t exponent) {
  if constexpr (sizeof(A) == 8) {
    return BitCast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  } else {
    return BitCast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  }
}

// Decodes codes[lane * stride + c] to weights[c][lane], for kLanes channels and lanes.
template <typename A>
void DecodeTransposed(int top, const uint8_t* codes, int64_t stride, int64_t width,
                      A* weights) {
  Vector<A> tile[kLanes<A>];
  for (int lane = 0; lane < kLanes<A>; ++lane) {
    tile[lane] = DecodeVector<A>(top, codes + lane * stride);
  }
  Transpose<A>(tile);
  for (int c = 0; c < kLanes<A>; ++c) Store(weights + c * width, tile[c]);
}

// Packs the weights of kPackChannels input channels of one tap, whose codes are
// contiguous: one task.
template <typename A>
bool PackForward(const Problem& p, int64_t task, int top, const uint8_t* codes,
                 void* workspace) {
  const Panels<A, false> all(p);
  const ColumnsPlan<A, false>& plan = all.plan;
  const int64_t channels = plan.from.numbers, lanes = plan.to.numbers;
  A* const packed = static_cast<A*>(workspace);
  if (task == 0) all.Finish(packed);
  const int64_t tap = task % plan.taps;
  const int64_t begin = task / plan.taps * kPackChannels;
  const int64_t end = Min(begin + kPackChannels, channels);
  codes += (tap * channels + begin) * lanes;
  const bool fit = Fit((end - begin) * lanes, p.bits, codes);
  for (int64_t c = begin; c < end; ++c, codes += lanes) {
    for (int64_t panel = 0; panel < plan.panels; ++panel) {
      const int64_t width = plan.vectors(panel) * kLanes<A>;
      const int64_t first = panel * plan.kPanel, used = Min(width, lanes - first);
      A* const row = packed + plan.panel(panel) + (tap * channels + c) * width;
      Decode(used, top, codes + first, row);
      for (int64_t n = used; n < width; ++n) row[n] = 0;
    }
  }
  return fit;
}

// Packs the weights of one panel of one tap, transposed: one task.
template <typename A>
bool PackGradient(const Problem& p, int64_t task, int top, const uint8_t* codes,
                  void* workspace) {
  const Panels<A, true> all(p);
  const ColumnsPlan<A, true>& plan = all.plan;
  const int64_t channels = plan.from.numbers;
  A* const packed = static_cast<A*>(workspace);
  if (task == 0) all.Finish(packed);
  const int64_t tap = task % plan.taps, panel = task / plan.taps;
  const int64_t width = plan.vectors(panel) * kLanes<A>;
  const int64_t first = panel * plan.kPanel;
  const int64_t lanes = Min(width, plan.to.numbers - first);
  A* const weights = packed + plan.panel(panel) + tap * channels * width;
  codes += (tap * plan.to.numbers + first) * channels;
  const bool fit = Fit(lanes * channels, p.bits, codes);
  const int64_t tiles = lanes / kLanes<A>, blocks = channels / kLanes<A>;
  for (int64_t v = 0; v < tiles; ++v) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t c = block * kLanes<A>, lane = v * kLanes<A>;
      DecodeTransposed(top, codes + lane * channels + c, channels, width,
                       weights + c * width + lane);
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    const bool whole = c < blocks * kLanes<A>;
    for (int64_t n = whole ? tiles * kLanes<A> : 0; n < width; ++n) {
      const uint8_t none = 0, *code = n < lanes ? codes + n * channels + c : &none;
      Decode(1, top, code, weights + c * width + n);
    }
  }
  return fit;
}

template <typename A, bool kGradient>
capsule_conv::Division Divide(const Problem& p) {
  const Panels<A, kGradient> all(p);
  auto d = DivideColumns<A, kGradient, kTerms>(all.poses);
  if (!kGradient) {
    d.weights_tasks = all.plan.taps * CeilDivide(p.in_channels, kPackChannels);
  }
  return d;
}

template <typename A, bool kGradient>
void Run(const Problem& p, int64_t task, const A* from, const void* workspace, A* to,
         void* scratch) {
  const auto poses = AsPoses(p, p.in_channels, p.out_channels);
  RunColumns<A, kGradient, kTerms>(poses, task, from, workspace, to, scratch);
}

template <typename A>
bool DecodeAll(const Problem& p, int64_t begin, int64_t count, int top,
               const uint8_t* codes, A* weights) {
  Decode(count, top, codes + begin, weights + begin);
  return Fit(count, p.bits, codes + begin);
}

template <typename T>
void WidenAll(int64_t count, const T* from, Accumulator<T>* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = Widen(from[i]);
}

template <typename T>
void Scale(int64_t count, int64_t exponent, const Accumulator<T>* from, T* to) {
  using A = Accumulator<T>;
  // 2^exponent may not be a normal number, but three factors of about the same size
  // are. Intermediate products lie between from[i] and the result, so scaling is exact
  // if the result is a normal number. Exponents beyond kMost give 0 or infinity.
  constexpr int64_t kMost = sizeof(A) == 8 ? 2200 : 300;
  const int64_t all = exponent < -kMost ? -kMost : exponent > kMost ? kMost : exponent;
  const A first = PowerOfTwo<A>(all / 3);
  const A last = PowerOfTwo<A>(all - 2 * (all / 3));
  for (int64_t i = 0; i < count; ++i) Narrow(from[i] * first * first * last, to + i);
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  using A = Accumulator<T>;
  return {DecodeAll<A>,
          WidenAll<T>,
          Scale<T>,
          {Divide<A, false>, PackForward<A>, Run<A, false>},
          {Divide<A, true>, PackGradient<A>, Run<A, true>}};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::inq_conv::CAPSOPS_ISA
