// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution with FMA instructions, for any size and type, including empty
// tensors: sets up the products, divides them into blocks and launches them.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <string>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/taps.h"
#include "cuda/capsule_conv/fma/axes.cuh"
#include "cuda/capsule_conv/fma/product.cuh"
#include "cuda/capsule_conv/parts.cuh"
#include "cuda/capsule_conv/paths.h"

namespace capsops::capsule_conv::fma {

// The fewest steps of kDepth terms per split.
constexpr int64_t kMinSplitSteps = 8;

// Strides of the tensors.
struct Steps {
  int64_t in_pixel, in_line, in_image;
  int64_t out_pixel, out_line, out_image;
  int64_t tap, tap_line, weights;
  Taps vertical, horizontal;
  // Distances between taps; 0 for a single tap, so that positions stay small.
  int64_t down, across;

  explicit Steps(const Problem& p) : vertical(Vertical(p)), horizontal(Horizontal(p)) {
    down = vertical.count > 1 ? p.dilation_height : 0;
    across = horizontal.count > 1 ? p.dilation_width : 0;
    in_pixel = p.in_channels * p.pose_depth * p.pose_rows * p.pose_inner;
    in_line = p.in_width * in_pixel;
    in_image = p.in_height * in_line;
    out_pixel = p.out_channels * p.pose_depth * p.pose_rows * p.pose_columns;
    out_line = p.out_width * out_pixel;
    out_image = p.out_height * out_line;
    tap = p.in_channels * p.out_channels * p.pose_depth * p.pose_inner * p.pose_columns;
    tap_line = p.kernel_width * tap;
    weights = p.kernel_height * tap_line;
  }
};

// Digits n, y, x, p of an output pixel; `left` is in input, `other` in output or grad.
inline Axis OutputPixels(const Problem& p, const Steps& s) {
  return {
      {},
      {{p.batch, {s.in_image, s.out_image, 0, 0}},
       {p.out_height, {p.stride_height * s.in_line, s.out_line, p.stride_height, 0}},
       {p.out_width, {p.stride_width * s.in_pixel, s.out_pixel, 0, p.stride_width}},
       {p.pose_rows, {p.pose_inner, p.pose_columns, 0, 0}}}};
}

// Digits kh, kw, c, q; `left` is in input, relative to tap 0, `other` in weights.
inline Axis InputTerms(const Problem& p, const Steps& s) {
  return {
      {},
      {{p.kernel_height,
        {p.dilation_height * s.in_line, s.tap_line, p.dilation_height, 0}},
       {p.kernel_width, {p.dilation_width * s.in_pixel, s.tap, 0, p.dilation_width}},
       {p.in_channels,
        {p.pose_depth * p.pose_rows * p.pose_inner,
         p.out_channels * p.pose_depth * p.pose_inner * p.pose_columns, 0, 0}},
       {p.pose_inner, {1, p.pose_columns, 0, 0}}}};
}

// Moves the origin of `terms` to pixel 0 of the padded image.
inline void PadTerms(int64_t pad_top, int64_t pad_left, const Steps& s, Axis* terms) {
  terms->origin +=
      Place{-pad_top * s.in_line - pad_left * s.in_pixel, 0, -pad_top, -pad_left};
}

// Sets the strides of matrices left [r, k] and right [k, c] for `channels` channels.
inline void SetMatrices(const Problem& p, int64_t channels, int64_t r, int64_t k,
                        int64_t c, Product* z) {
  z->columns = channels * c;
  z->column_inner = c;
  z->left_depth = r * k;
  z->right_depth = k * c;
  z->out_depth = r * c;
  z->out_outer = p.pose_depth * z->out_depth;
  z->depth = p.pose_depth;
}

inline Product ForwardProduct(const Problem& p) {
  const Steps s(p);
  Product z{};
  z.rows = OutputPixels(p, s);
  z.terms = InputTerms(p, s);
  const auto trim = [](const Taps& taps, Digit* digit, Place* origin) {
    digit->count = taps.count;
    origin->other += taps.first * digit->step.other;
    if (taps.count <= 1) digit->step = {};
  };
  trim(s.vertical, &z.terms.digits[0], &z.terms.origin);
  trim(s.horizontal, &z.terms.digits[1], &z.terms.origin);
  PadTerms(s.vertical.pad, s.horizontal.pad, s, &z.terms);
  SetMatrices(p, p.out_channels, p.pose_rows, p.pose_inner, p.pose_columns, &z);
  z.right_outer = p.pose_depth * z.right_depth;
  z.right_inner = 1;
  z.height = p.in_height;
  z.width = p.in_width;
  z.elements = p.batch * s.out_image;
  return z;
}

inline Product WeightsProduct(const Problem& p) {
  const Steps s(p);
  Product z{};
  z.rows = InputTerms(p, s);
  PadTerms(p.pad_top, p.pad_left, s, &z.rows);
  z.terms = OutputPixels(p, s);
  SetMatrices(p, p.out_channels, p.pose_inner, p.pose_rows, p.pose_columns, &z);
  z.right_outer = p.pose_depth * z.right_depth;
  z.right_inner = 1;
  z.height = p.in_height;
  z.width = p.in_width;
  z.elements = s.weights;
  return z;
}

// The phases of the input gradient along one axis.
inline Phases MakePhases(const Taps& taps, int64_t dilation, int64_t size,
                         int64_t stride, int64_t pixel, int64_t tap) {
  Phases phases{};
  phases.count = std::min(size, stride);
  phases.size = size;
  phases.stride = stride;
  phases.dilation = dilation;
  phases.pad = taps.pad;
  phases.taps = taps.count;
  phases.every = stride / Gcd(stride, dilation);
  phases.out_step = pixel;
  phases.tap_step = tap;
  return phases;
}

// Rows are sized for the first phase, which has the most pixels.
inline Product InputProduct(const Problem& p) {
  const Steps s(p);
  Product z{};
  z.vertical = MakePhases(s.vertical, s.down, p.in_height, p.stride_height, s.in_line,
                          s.tap_line);
  z.horizontal =
      MakePhases(s.horizontal, s.across, p.in_width, p.stride_width, s.in_pixel, s.tap);
  z.rows = {{},
            {{p.batch, {s.out_image, s.in_image, 0, 0}},
             {CeilDivide(p.in_height, p.stride_height),
              {s.out_line, p.stride_height * s.in_line, 1, 0}},
             {CeilDivide(p.in_width, p.stride_width),
              {s.out_pixel, p.stride_width * s.in_pixel, 0, 1}},
             {p.pose_rows, {p.pose_columns, p.pose_inner, 0, 0}}}};
  // Each tap of a phase reads this many output pixels before the previous tap.
  const int64_t back_y = s.down * z.vertical.every / p.stride_height;
  const int64_t back_x = s.across * z.horizontal.every / p.stride_width;
  z.terms = {{0, s.vertical.first * s.tap_line + s.horizontal.first * s.tap, 0, 0},
             {{CeilDivide(s.vertical.count, z.vertical.every),
               {-back_y * s.out_line, z.vertical.every * s.tap_line, -back_y, 0}},
              {CeilDivide(s.horizontal.count, z.horizontal.every),
               {-back_x * s.out_pixel, z.horizontal.every * s.tap, 0, -back_x}},
              {p.out_channels,
               {p.pose_depth * p.pose_rows * p.pose_columns,
                p.pose_depth * p.pose_inner * p.pose_columns, 0, 0}},
              {p.pose_columns, {1, 1, 0, 0}}}};
  SetMatrices(p, p.in_channels, p.pose_rows, p.pose_columns, p.pose_inner, &z);
  z.right_outer = p.out_channels * p.pose_depth * z.right_depth;
  z.right_inner = p.pose_columns;
  z.height = p.out_height;
  z.width = p.out_width;
  z.elements = p.batch * s.in_image;
  return z;
}

template <typename T, int kColumns>
LaunchError LaunchProduct(const GpuExec& exec, const char* op, Product z,
                          int64_t blocks, const T* left, const T* right, T* out,
                          void* partial) {
  z.vector = z.column_inner % kEachColumns == 0 && Aligned16(out);
  return Launch(op, ProductKernel<CudaType<T>, Accumulator<T>, kColumns>, blocks,
                kThreads, 0, exec, z, left, right, out,
                static_cast<Accumulator<T>*>(partial));
}

// Plans product z. If there is nothing to sum, the result is only cleared.
template <typename T>
ConvPlan<GpuExec, T> PlanProduct(const char* op, const GpuDevice& device,
                                 const Problem& p, Product z) {
  using Plan = ConvPlan<GpuExec, T>;
  using A = Accumulator<T>;
  if (z.elements == 0 || z.terms.size() == 0 || z.height == 0 || z.width == 0) {
    return Plan::Make(0, [op, elements = z.elements](const GpuExec& exec, const T*,
                                                     const T*, T* out, void*) {
      return Zero(exec, op, out, elements);
    });
  }
  const int64_t largest =
      std::max({p.batch, p.in_height, p.in_width, p.in_channels, p.kernel_height,
                p.kernel_width, p.out_height, p.out_width, p.out_channels, p.pose_depth,
                p.pose_rows, p.pose_inner, p.pose_columns});
  if (largest > kLargest) {
    return Plan::Refuse("a dimension of " + std::to_string(largest) +
                        " is too large, at most " + std::to_string(kLargest) +
                        " are possible");
  }
  // Chooses the tile; narrow tiles load more data per multiplication.
  auto launch = LaunchProduct<T, 64>;
  double best = 0;
  const auto consider = [&](int columns, int rows, double cost, auto by) {
    const int64_t row_tiles = CeilDivide(z.rows.size(), rows);
    const int64_t column_tiles = CeilDivide(z.columns, columns);
    const double total = cost * row_tiles * column_tiles;
    if (best != 0 && total >= best) return;
    best = total;
    launch = by;
    z.row_tiles = row_tiles;
    z.column_tiles = column_tiles;
  };
  consider(64, kTileRows<64>, 1, LaunchProduct<T, 64>);
  consider(32, kTileRows<32>, 1.1, LaunchProduct<T, 32>);
  consider(16, kTileRows<16>, 1.3, LaunchProduct<T, 16>);
  const int64_t phases = std::max(int64_t{1}, z.vertical.count * z.horizontal.count);
  const int64_t tiles = z.row_tiles * phases * z.depth * z.column_tiles;
  const int64_t room = int64_t{kResident<A>} * device.processors;
  z.parts = std::max(int64_t{1},
                     std::min({room / tiles, z.terms.size() / (kMinSplitSteps * kDepth),
                               kMaxPartBytes / int64_t{sizeof(A)} / z.elements}));
  const int64_t blocks = tiles * z.parts;
  const int64_t sum_blocks = z.parts > 1 ? CeilDivide(z.elements, kReduceElements) : 0;
  CAPSOPS_REFUSE_IF(GridRefusal(std::max(blocks, sum_blocks)));
  return Plan::Make(
      z.parts > 1 ? z.parts * z.elements * int64_t{sizeof(A)} : 0,
      [=](const GpuExec& exec, const T* left, const T* right, T* out, void* partial) {
        const LaunchError error =
            launch(exec, op, z, blocks, left, right, out, partial);
        if (!error.empty() || sum_blocks == 0) return error;
        return ReduceSplits(exec, op, z.elements, z.parts,
                            static_cast<const A*>(partial), Native(out));
      });
}

template <typename T>
ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec, const Problem& p,
                               bool gradient) {
  return PlanProduct<T>(op, exec.device, p,
                        gradient ? InputProduct(p) : ForwardProduct(p));
}

template <typename T>
ConvPlan<GpuExec, T> PlanWeights(const char* op, const GpuExec& exec,
                                 const Problem& p) {
  return PlanProduct<T>(op, exec.device, p, WeightsProduct(p));
}

CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE_PLAN_IMAGE)
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE_PLAN_WEIGHTS)

}  // namespace capsops::capsule_conv::fma
