// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution of any sizes and types, also empty ones, in FMA: its products,
// how they are cut into blocks, and the launches. The functions are those of the
// boundary, cc/launch/capsule_conv.h.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_FMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_FMA_LAUNCH_CUH_

#include <algorithm>
#include <numeric>
#include <string>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/fma/axes.cuh"
#include "cuda/capsule_conv/fma/product.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv::general {

// Workspace that is spent to have more blocks, in bytes.
constexpr int64_t kPartsBytes = int64_t{64} << 20;
// Steps of kDepth terms of a part at least.
constexpr int64_t kPartSteps = 8;

// The taps that read the image at some pixel, all that a sum over taps needs: `count`
// from `first` on. `dilation` is 0 if there is only one, so that positions within are
// small whatever the dilation was; `pad` is that of tap `first`, maybe below 0.
struct Taps {
  int64_t first, count, dilation, pad;

  Taps(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation,
       int64_t pad) {
    first = std::max(int64_t{0}, CeilDivide(pad - (out - 1) * stride, dilation));
    count =
        std::max(int64_t{0}, std::min(kernel, CeilDivide(in + pad, dilation)) - first);
    this->dilation = count > 1 ? dilation : 0;
    this->pad = pad - first * dilation;
  }
};

// Steps through the tensors.
struct Steps {
  int64_t in_pixel, in_line, in_image;
  int64_t out_pixel, out_line, out_image;
  int64_t tap, tap_line, weights;
  Taps vertical, horizontal;

  explicit Steps(const Problem& p)
      : vertical(p.in_height, p.out_height, p.kernel_height, p.stride_height,
                 p.dilation_height, p.pad_top),
        horizontal(p.in_width, p.out_width, p.kernel_width, p.stride_width,
                   p.dilation_width, p.pad_left) {
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

// n, y, x, p of an output pixel: in input, and in output or grad.
inline Axis OutputPixels(const Problem& p, const Steps& s) {
  return {
      {},
      {{p.batch, {s.in_image, s.out_image, 0, 0}},
       {p.out_height, {p.stride_height * s.in_line, s.out_line, p.stride_height, 0}},
       {p.out_width, {p.stride_width * s.in_pixel, s.out_pixel, 0, p.stride_width}},
       {p.pose_rows, {p.pose_inner, p.pose_columns, 0, 0}}}};
}

// kh, kw, c, q: in input, from the pixel of tap 0 on, and in weights.
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

// Moves the origin of `terms` to where pixel 0 of the padded image is.
inline void PadTerms(int64_t pad_top, int64_t pad_left, const Steps& s, Axis* terms) {
  terms->origin +=
      Place{-pad_top * s.in_line - pad_left * s.in_pixel, 0, -pad_top, -pad_left};
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
  z.columns = p.out_channels * p.pose_columns;
  z.column_inner = p.pose_columns;
  z.right_outer = p.pose_depth * p.pose_inner * p.pose_columns;
  z.right_inner = 1;
  z.out_outer = p.pose_depth * p.pose_rows * p.pose_columns;
  z.left_depth = p.pose_rows * p.pose_inner;
  z.right_depth = p.pose_inner * p.pose_columns;
  z.out_depth = p.pose_rows * p.pose_columns;
  z.depth = p.pose_depth;
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
  z.columns = p.out_channels * p.pose_columns;
  z.column_inner = p.pose_columns;
  z.right_outer = p.pose_depth * p.pose_rows * p.pose_columns;
  z.right_inner = 1;
  z.out_outer = p.pose_depth * p.pose_inner * p.pose_columns;
  z.left_depth = p.pose_rows * p.pose_inner;
  z.right_depth = p.pose_rows * p.pose_columns;
  z.out_depth = p.pose_inner * p.pose_columns;
  z.depth = p.pose_depth;
  z.height = p.in_height;
  z.width = p.in_width;
  z.elements = s.weights;
  return z;
}

inline Phases PhasesOf(const Taps& taps, int64_t size, int64_t stride, int64_t pixel,
                       int64_t tap) {
  Phases phases{};
  phases.count = std::min(size, stride);
  phases.size = size;
  phases.stride = stride;
  phases.dilation = taps.dilation;
  phases.pad = taps.pad;
  phases.taps = taps.count;
  phases.every = stride / std::gcd(stride, taps.dilation);
  phases.out_step = pixel;
  phases.tap_step = tap;
  return phases;
}

// The first phase's number of pixels, which none exceeds.
inline Product InputProduct(const Problem& p) {
  const Steps s(p);
  Product z{};
  z.vertical =
      PhasesOf(s.vertical, p.in_height, p.stride_height, s.in_line, s.tap_line);
  z.horizontal = PhasesOf(s.horizontal, p.in_width, p.stride_width, s.in_pixel, s.tap);
  z.rows = {{},
            {{p.batch, {s.out_image, s.in_image, 0, 0}},
             {CeilDivide(p.in_height, p.stride_height),
              {s.out_line, p.stride_height * s.in_line, 1, 0}},
             {CeilDivide(p.in_width, p.stride_width),
              {s.out_pixel, p.stride_width * s.in_pixel, 0, 1}},
             {p.pose_rows, {p.pose_columns, p.pose_inner, 0, 0}}}};
  // From a tap to the next of a phase: that many output pixels back.
  const int64_t back_y = s.vertical.dilation * z.vertical.every / p.stride_height;
  const int64_t back_x = s.horizontal.dilation * z.horizontal.every / p.stride_width;
  z.terms = {{0, s.vertical.first * s.tap_line + s.horizontal.first * s.tap, 0, 0},
             {{CeilDivide(s.vertical.count, z.vertical.every),
               {-back_y * s.out_line, z.vertical.every * s.tap_line, -back_y, 0}},
              {CeilDivide(s.horizontal.count, z.horizontal.every),
               {-back_x * s.out_pixel, z.horizontal.every * s.tap, 0, -back_x}},
              {p.out_channels,
               {p.pose_depth * p.pose_rows * p.pose_columns,
                p.pose_depth * p.pose_inner * p.pose_columns, 0, 0}},
              {p.pose_columns, {1, 1, 0, 0}}}};
  z.columns = p.in_channels * p.pose_inner;
  z.column_inner = p.pose_inner;
  z.right_outer = p.out_channels * p.pose_depth * p.pose_inner * p.pose_columns;
  z.right_inner = p.pose_columns;
  z.out_outer = p.pose_depth * p.pose_rows * p.pose_inner;
  z.left_depth = p.pose_rows * p.pose_columns;
  z.right_depth = p.pose_inner * p.pose_columns;
  z.out_depth = p.pose_rows * p.pose_inner;
  z.depth = p.pose_depth;
  z.height = p.out_height;
  z.width = p.out_width;
  z.elements = p.batch * s.in_image;
  return z;
}

// How a product is cut into blocks.
template <typename A>
struct Plan {
  Product z;
  int tile_columns = 0;
  int64_t blocks = 0;
  int64_t workspace = 0;  // bytes
  bool empty;             // the sums

  explicit Plan(const Product& product) : z(product) {
    z.parts = 1;
    empty = z.terms.size() == 0 || z.height == 0 || z.width == 0;
    if (z.elements == 0 || empty) return;
    // Narrow tiles load more for what they compute.
    double best = 0;
    const auto consider = [&](int columns, int rows, double cost) {
      const int64_t row_tiles = CeilDivide(z.rows.size(), rows);
      const int64_t column_tiles = CeilDivide(z.columns, columns);
      const double total = cost * row_tiles * column_tiles;
      if (tile_columns != 0 && total >= best) return;
      best = total;
      tile_columns = columns;
      z.row_tiles = row_tiles;
      z.column_tiles = column_tiles;
    };
    consider(64, kTileRows<64>, 1);
    consider(32, kTileRows<32>, 1.1);
    consider(16, kTileRows<16>, 1.3);
    const int64_t phases = std::max(int64_t{1}, z.vertical.count * z.horizontal.count);
    const int64_t tiles = z.row_tiles * phases * z.depth * z.column_tiles;
    const int64_t room = int64_t{kResident<A>} * CurrentDevice().processors;
    z.parts = std::max(int64_t{1},
                       std::min({room / tiles, z.terms.size() / (kPartSteps * kDepth),
                                 kPartsBytes / int64_t{sizeof(A)} / z.elements}));
    blocks = tiles * z.parts;
    if (z.parts > 1) workspace = z.parts * z.elements * sizeof(A);
  }
};

// A sentence if the problem is beyond what the kernels count in 32 bits.
inline LaunchError CheckSizes(const char* name, const Problem& p) {
  const int64_t largest =
      std::max({p.batch, p.in_height, p.in_width, p.in_channels, p.kernel_height,
                p.kernel_width, p.out_height, p.out_width, p.out_channels, p.pose_depth,
                p.pose_rows, p.pose_inner, p.pose_columns});
  if (largest <= kLargest) return {};
  return std::string(name) + ": a dimension of " + std::to_string(largest) +
         " is too large for CUDA, at most " + std::to_string(kLargest) +
         " are possible";
}

template <typename T, int kColumns>
void LaunchProduct(const GpuExec& exec, const Plan<Accumulator<T>>& plan, const T* left,
                   const T* right, T* out, void* workspace) {
  ProductKernel<CudaType<T>, Accumulator<T>, kColumns>
      <<<plan.blocks, kThreads, 0, exec.stream>>>(
          plan.z, Native(left), Native(right), Native(out),
          static_cast<Accumulator<T>*>(workspace));
}

template <typename T>
LaunchError Multiply(const GpuExec& exec, const char* name, const Problem& p,
                     const Product& product, const T* left, const T* right, T* out,
                     void* workspace) {
  using A = Accumulator<T>;
  const Plan<A> plan(product);
  const int64_t elements = plan.z.elements;
  if (elements == 0) return {};
  if (plan.empty) {
    return CheckLaunch(name,
                       cudaMemsetAsync(out, 0, elements * sizeof(T), exec.stream));
  }
  const int64_t sum_blocks = plan.z.parts > 1 ? CeilDivide(elements, kSumElements) : 0;
  for (const LaunchError& error : {CheckSizes(name, p), CheckGrid(name, plan.blocks),
                                   CheckGrid(name, sum_blocks)}) {
    if (!error.empty()) return error;
  }
  switch (plan.tile_columns) {
    case 64:
      LaunchProduct<T, 64>(exec, plan, left, right, out, workspace);
      break;
    case 32:
      LaunchProduct<T, 32>(exec, plan, left, right, out, workspace);
      break;
    default:
      LaunchProduct<T, 16>(exec, plan, left, right, out, workspace);
  }
  const LaunchError error = CheckLaunch(name);
  if (!error.empty() || sum_blocks == 0) return error;
  SumPartsKernel<<<sum_blocks, kSumElements * kSumThreads, 0, exec.stream>>>(
      elements, plan.z.parts, static_cast<const A*>(workspace), Native(out));
  return CheckLaunch(name);
}

template <typename T>
int64_t ForwardWorkspace(const Problem& p) {
  return Plan<Accumulator<T>>(ForwardProduct(p)).workspace;
}
template <typename T>
int64_t BackpropInputWorkspace(const Problem& p) {
  return Plan<Accumulator<T>>(InputProduct(p)).workspace;
}
template <typename T>
int64_t BackpropWeightsWorkspace(const Problem& p) {
  return Plan<Accumulator<T>>(WeightsProduct(p)).workspace;
}

template <typename T>
LaunchError Forward(const GpuExec& exec, const Problem& p, const T* input,
                    const T* weights, T* output, void* workspace) {
  return Multiply(exec, "CapsuleConv", p, ForwardProduct(p), input, weights, output,
                  workspace);
}

template <typename T>
LaunchError BackpropInput(const GpuExec& exec, const Problem& p, const T* weights,
                          const T* grad, T* grad_input, void* workspace) {
  return Multiply(exec, "CapsuleConvBackpropInput", p, InputProduct(p), grad, weights,
                  grad_input, workspace);
}

template <typename T>
LaunchError BackpropWeights(const GpuExec& exec, const Problem& p, const T* input,
                            const T* grad, T* grad_weights, void* workspace) {
  return Multiply(exec, "CapsuleConvBackpropWeights", p, WeightsProduct(p), input, grad,
                  grad_weights, workspace);
}

}  // namespace capsops::capsule_conv::general

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_FMA_LAUNCH_CUH_
