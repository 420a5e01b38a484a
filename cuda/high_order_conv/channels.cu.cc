// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches of the kernels of channels.cuh.
#include "cuda/high_order_conv/channels.cuh"

#include <algorithm>
#include <cstdint>
#include <string>

#include "cuda/common/launch.cuh"
#include "cuda/high_order_conv/paths.h"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::channels {

enum class Pass { kForward, kInput, kFilters };

// Returns a block's shared memory in bytes.
template <typename S>
int64_t Bytes(const Work& w, Pass pass, int k) {
  const int64_t pixels = w.quads * kPixels, filters = int64_t{w.groups} * k * k;
  const int64_t row = pass == Pass::kInput
                          ? (pixels + k - 1) * filters
                          : SegmentSize<S>(static_cast<int>(pixels * filters));
  return w.rows * row * sizeof(S);
}

// A pass's division into blocks.
struct Tiles {
  Work work;
  int64_t blocks, bytes;  // bytes of a block's shared memory
};

// Returns why this path refuses the problem, or chooses the largest tile that fits a
// block's threads and shared memory, and returns "".
template <typename S>
std::string Divide(const GpuDevice& device, const Problem& p, Pass pass, Tiles* tiles) {
  constexpr int64_t kMax = 1 << 24;
  if (Empty(p)) return kEmpty;
  if (p.channels_first) return "data_format is NCHW";
  if (p.dilation_width != 1) return "there is a dilation across";
  if (p.dilation_height > INT32_MAX) return "the dilation down is too large";
  if (p.height > kMax || p.width > kMax || p.channels > kMax) return kTooLarge;
  if (p.channels % (kVector * p.groups) != 0) {
    return "the channels of a group are no multiple of 4";
  }
  *tiles = {};
  Work* const w = &tiles->work;
  w->height = p.height;
  w->width = p.width;
  w->channels = p.channels;
  w->groups = p.groups;
  w->dilation_height = p.dilation_height;
  // FiltersKernel adds up the lanes of a group by shuffles, so that they must be a
  // power of two.
  const int vectors = p.channels / p.groups / kVector;
  w->lanes_of_group =
      pass == Pass::kFilters ? std::min(vectors & -vectors, 32) : vectors;
  if (int64_t{w->lanes_of_group} * p.groups > kMaxThreads) {
    return "a pixel's channels need too many threads";
  }
  w->lanes = w->lanes_of_group * p.groups;
  const int64_t quads = CeilDivide(p.width, kPixels);
  // With 72 KiB, three blocks fit in the 228 KiB of a multiprocessor.
  const int64_t maximum = std::min(device.shared, 72 << 10);
  const auto fits = [&] { return Bytes<S>(*w, pass, p.kernel_width) <= maximum; };
  w->rows = 1;
  w->quads = std::min<int64_t>(quads, kMaxThreads / w->lanes);
  while (w->quads > 1 && !fits()) --w->quads;
  if (!fits()) return "the filters of 4 pixels do not fit in shared memory";
  w->tiles_x = CeilDivide(quads, w->quads);
  w->quads = CeilDivide(quads, w->tiles_x);
  while (w->rows < p.height && (w->rows + 1) * w->quads * w->lanes <= kMaxThreads) {
    ++w->rows;
    if (fits()) continue;
    --w->rows;
    break;
  }
  w->tiles_y = CeilDivide(p.height, w->rows);
  tiles->blocks = int64_t{w->tiles_x} * w->tiles_y;
  if (p.batch > INT32_MAX / tiles->blocks) return kTooLarge;
  tiles->blocks *= p.batch;
  tiles->bytes = Bytes<S>(*w, pass, p.kernel_width);
  return "";
}

template <auto kKernel, typename T>
LaunchError Launch(const char* name, const GpuExec& exec, const Tiles& tiles,
                   const T* a, const T* b, T* result) {
  const Work& w = tiles.work;
  const int threads = CeilDivide(w.rows * w.quads * w.lanes, 32) * 32;
  return Launch<kKernel>(name, tiles.blocks, threads, tiles.bytes, exec, w, a, b,
                         result);
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  using S = CudaType<T>;
  return WithKernel<Plan, T>(p, [&](auto k) {
    constexpr int kSize = decltype(k)::value;
    Tiles tiles;
    CAPSOPS_REFUSE_IF(Divide<S>(exec.device, p, Pass::kForward, &tiles));
    return Plan::Make(0, [=](const GpuExec& exec, const T* input, const T* filters,
                             T* output, void*) {
      return Launch<ForwardKernel<S, Accumulator<T>, kSize>>(
          Forward::kName, exec, tiles, input, filters, output);
    });
  });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  using S = CudaType<T>;
  using A = Accumulator<T>;
  return WithKernel<Plan, T>(p, [&](auto k) {
    constexpr int kSize = decltype(k)::value;
    Tiles of_input, of_filters;
    CAPSOPS_REFUSE_IF(Divide<S>(exec.device, p, Pass::kInput, &of_input));
    CAPSOPS_REFUSE_IF(Divide<S>(exec.device, p, Pass::kFilters, &of_filters));
    return Plan::Make(0, [=](const GpuExec& exec, const T* grad, const T* input,
                             const T* filters, T* grad_input, T* grad_filters, void*) {
      CAPSOPS_RETURN_IF_ERROR(Launch<InputKernel<S, A, kSize>>(
          Backward::kName, exec, of_input, grad, filters, grad_input));
      return Launch<FiltersKernel<S, A, kSize>>(Backward::kName, exec, of_filters, grad,
                                                input, grad_filters);
    });
  });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::high_order_conv::channels
