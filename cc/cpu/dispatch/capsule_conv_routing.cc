// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the steps of convolution with routing and divides each among threads. The number
// of threads never changes a result: no sum crosses a task, and the partial sums of the
// gradients of bias and logits are added in a fixed order.
#include "cc/cpu/capsule_conv_routing.h"

#include <algorithm>
#include <cstring>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"
#include "cc/launch/capsule_conv_slabs_plan.h"

namespace capsops::capsule_conv_routing {
namespace {

CAPSOPS_SELECTED_KERNELS

// Returns the approximate cycles of routing pixels.
int64_t Cost(const Problem& p, int64_t pixels) {
  const int64_t votes = p.types * Columns(p) + p.types * p.parents * 8;
  return std::max<int64_t>(pixels * votes * (2 * p.iterations + 2) / 8, 1);
}

// The CPU as a device of capsule_conv_slabs_plan.h.
template <typename T>
struct CpuSteps {
  using Exec = CpuExec;
  using Own = NoProducts;

  static int64_t SlabBytes(const CpuExec&) { return 2 << 20; }

  // If types share weights, turns them from pose rows into neighboring pixels where
  // possible: with poses of one row and enough columns to fill a vector, a convolution
  // reads and writes images in place. Width, dilation and padding scale accordingly.
  static capsule_conv::Problem Convolution(const Problem& p, const Slab& slab) {
    constexpr int64_t kFewestColumns = 16;
    capsule_conv::Problem conv = ConvOf(p, slab);
    if (!p.shared_weights || conv.stride_width != 1 || conv.in_channels != 1 ||
        Columns(p) < kFewestColumns) {
      return conv;
    }
    conv.in_width *= p.types;
    conv.out_width *= p.types;
    if (conv.kernel_width > 1) conv.dilation_width *= p.types;
    conv.pad_left *= p.types;
    conv.pose_rows = 1;
    return conv;
  }

  static LaunchError Zero(const CpuExec&, const char*, void* data, int64_t bytes) {
    if (bytes > 0) std::memset(data, 0, bytes);
    return {};
  }

  static LaunchError CopyWeights(const CpuExec& exec, const char*, const Relay& relay,
                                 const T* weights, T* copy) {
    if (relay.elements() == 0) return {};
    return ForEach(exec, relay.matrices(), relay.matrix,
                   [&](int64_t n) { Selected<T>().relay(relay, n, weights, copy); });
  }
  static LaunchError AddWeights(const CpuExec& exec, const char*, const Relay& relay,
                                const T* copy, Accumulator<T>* sums) {
    if (relay.elements() == 0) return {};
    return ForEach(exec, relay.matrices(), relay.matrix,
                   [&](int64_t n) { Selected<T>().add_relaid(relay, n, copy, sums); });
  }
  static LaunchError Narrow(const CpuExec& exec, const char*, int64_t count,
                            const Accumulator<T>* sums, T* to) {
    exec.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      Selected<T>().narrow(end - begin, sums + begin, to + begin);
    });
    return {};
  }

  static LaunchError CopyImage(const CpuExec& exec, const char*, const Patch& patch,
                               const T* input, T* copy) {
    if (patch.pixel == 0) return {};
    return ForEach(exec, patch.frames * patch.rows,
                   patch.channels * patch.width * patch.pixel,
                   [&](int64_t row) { Selected<T>().copy(patch, row, input, copy); });
  }
  static LaunchError AddImage(const CpuExec& exec, const char*, const Patch& patch,
                              const T* copy, T* grad_input) {
    if (patch.pixel == 0) return {};
    const int64_t frames = patch.end_frame() - patch.begin_frame();
    return ForEach(
        exec, frames * patch.rows, patch.channels * patch.width * patch.pixel,
        [&](int64_t row) { Selected<T>().add_copy(patch, row, copy, grad_input); });
  }

  static bool RouteMakesVotes(const Problem& p) { return MakesVotes<T>(p); }

  // Routing needs no space of its own, only the scratch of its tasks.
  static int64_t Space(const CpuExec&, const Problem&, bool) { return 0; }

  static LaunchError Route(const CpuExec& exec, const char* op, const Problem& p,
                           const Places& places, const T* image, const T* weights,
                           const T* votes, const T* bias, const T* logits, T* output,
                           Accumulator<T>*) {
    const CpuKernels<T>& kernels = Selected<T>();
    const int64_t pixels = places.pixels;
    const int64_t tiles = CeilDivide(pixels, kernels.lanes);
    return ForRanges(exec, op, tiles, Cost(p, kernels.lanes), kernels.scratch(p, false),
                     [&](int64_t begin, int64_t end, void* scratch) {
                       kernels.route(p, places,
                                     Pixels(kernels.lanes, begin, end, pixels), image,
                                     weights, votes, bias, logits, output, scratch);
                     });
  }

  static LaunchError RouteBackward(const CpuExec& exec, const char* op,
                                   const Problem& p, const Places& places,
                                   const T* image, const T* weights, const T* grad,
                                   const T* bias, const T* logits, T* votes,
                                   Accumulator<T>* parts, Accumulator<T>*) {
    const CpuKernels<T>& kernels = Selected<T>();
    const int64_t pixels = places.pixels;
    const int64_t tiles = CeilDivide(pixels, kernels.lanes), count = CountParts(p);
    return ForTasks(exec, op, count, 4 * Cost(p, CeilDivide(pixels, count)),
                    kernels.scratch(p, true), [&](int64_t part, void* scratch) {
                      const Range range = Pixels(kernels.lanes, tiles * part / count,
                                                 tiles * (part + 1) / count, pixels);
                      kernels.route_backward(p, places, range, image, weights, grad,
                                             bias, logits, votes,
                                             parts + part * PartSize(p), scratch);
                    });
  }

  static int64_t Parts(const CpuExec&, const Problem& p) {
    return CountParts(p) * PartSize(p);
  }
  static LaunchError AddParts(const CpuExec&, const char*, const Problem& p,
                              const Accumulator<T>* parts, T* grad_bias,
                              T* grad_logits) {
    Selected<T>().add_parts(p, CountParts(p), parts, grad_bias, grad_logits);
    return {};
  }

 private:
  // A part holds the gradients of bias and logits.
  static int64_t PartSize(const Problem& p) { return Columns(p) + p.types * p.parents; }
  // Returns the number of parts, one for each task of the gradient.
  static int64_t CountParts(const Problem& p) {
    constexpr int64_t kMostParts = 32, kMostBytes = 4 << 20;
    const int64_t bytes = PartSize(p) * static_cast<int64_t>(sizeof(Accumulator<T>));
    return std::clamp<int64_t>(kMostBytes / bytes, 1, kMostParts);
  }

  // Returns the pixels of tiles [begin, end). The last tile may not be full.
  static Range Pixels(int64_t lanes, int64_t begin, int64_t end, int64_t pixels) {
    return {begin * lanes, std::min(end * lanes, pixels)};
  }
};

// Names the instruction set in a plan.
template <typename Plan>
Plan Named(Plan plan) {
  plan.kernel = CpuKernelName();
  return plan;
}

}  // namespace

template <typename T>
ForwardPlan<CpuExec, T> PlanForward(const CpuExec& exec, const Problem& p) {
  return Named(PlanForwardBySlabs<CpuSteps<T>, T>(exec, p));
}

template <typename T>
BackwardPlan<CpuExec, T> PlanBackward(const CpuExec& exec, const Problem& p) {
  return Named(PlanBackwardBySlabs<CpuSteps<T>, T>(exec, p));
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, CpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, CpuExec)

}  // namespace capsops::capsule_conv_routing
