// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the steps of capsule convolution and divides each among threads. The number of
// threads never changes a result: no sum crosses a task, and partial sums of the weight
// gradient are added in a fixed order.
#include "cc/cpu/capsule_conv.h"

#include <algorithm>
#include <cstring>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"
#include "cc/launch/taps.h"

namespace capsops::capsule_conv {
namespace {

CAPSOPS_SELECTED_KERNELS

// A convolution `p` without the taps that read only padding, and the positions of the
// remaining taps in the whole filter.
struct Trimmed {
  explicit Trimmed(const Problem& whole)
      : p(whole),
        down(Vertical(whole)),
        across(Horizontal(whole)),
        taps(Elements({whole.kernel_height, whole.kernel_width})),
        line(whole.kernel_width),
        tap(Elements({whole.in_channels, whole.out_channels, whole.pose_depth,
                      whole.pose_inner, whole.pose_columns})) {
    p.kernel_height = down.count;
    p.kernel_width = across.count;
    p.pad_top = down.pad;
    p.pad_left = across.pad;
  }

  // Returns the offset of the weights of tap `index` of `p`.
  int64_t Weights(int64_t index) const {
    const int64_t y = down.first + index / p.kernel_width;
    return (y * line + across.first + index % p.kernel_width) * tap;
  }
  bool complete() const { return p.kernel_height * p.kernel_width == taps; }

  Problem p;
  Taps down, across;
  int64_t taps, line;  // taps of the whole filter, and of one of its rows
  int64_t tap;         // elements of the weights of one tap
};

int64_t OutputSize(const Problem& p) { return Elements({Pixels(p), PixelSize(p)}); }
int64_t InputSize(const Problem& p) {
  return Elements({p.batch, p.in_height, p.in_width, p.in_channels, p.pose_depth,
                   p.pose_rows, p.pose_inner});
}

// Returns whether all sums are empty, so that the result is empty or zero.
bool IsEmpty(const Problem& p) {
  return std::min({p.batch, p.in_height, p.in_width, p.out_height, p.out_width,
                   p.kernel_height, p.kernel_width, p.in_channels, p.out_channels,
                   p.pose_depth, p.pose_rows, p.pose_inner, p.pose_columns}) == 0;
}

// Plans to write zeros to a result of `count` elements.
template <typename T>
ConvPlan<CpuExec, T> PlanZeros(int64_t count) {
  return CpuPlan<ConvPlan<CpuExec, T>>(
      0, [count](const CpuExec&, const T*, const T*, T* to, void*) -> LaunchError {
        if (count > 0) std::memset(to, 0, count * sizeof(T));
        return {};
      });
}

// Returns the approximate cycles per task, at 16 multiply-adds per cycle.
int64_t Cost(const Problem& p, int64_t tasks) {
  const int64_t work = p.batch * p.out_height * p.out_width * p.kernel_height *
                       p.kernel_width * p.in_channels * p.out_channels * p.pose_depth *
                       p.pose_rows * p.pose_inner * p.pose_columns;
  return std::max<int64_t>(work / 16 / std::max<int64_t>(tasks, 1), 1);
}

// Calls run(task) for `tasks` tasks that together access all weights `times` times.
template <typename Run>
void ForWeightTasks(const CpuExec& exec, const Problem& p, int64_t tasks, int64_t times,
                    const Run& run) {
  const int64_t weights = p.kernel_height * p.kernel_width * p.in_channels *
                          p.out_channels * p.pose_depth * p.pose_inner * p.pose_columns;
  const int64_t cost = 2 * times * weights / std::max<int64_t>(tasks, 1);
  ForEach(exec, tasks, cost, run);
}

// Plans a forward convolution or input gradient with the first of `choices` that fits:
// packs the weights, then runs the tasks. The last choice must always fit.
template <typename T>
ConvPlan<CpuExec, T> PlanImage(const char* op, const Problem& whole, int64_t results,
                               std::initializer_list<const ImageKernels<T>*> choices) {
  const Trimmed trimmed(whole);
  if (IsEmpty(trimmed.p)) return PlanZeros<T>(results);
  const auto fits = [&](const ImageKernels<T>* kernels) {
    return kernels->divide(trimmed.p).fits;
  };
  const ImageKernels<T>& kernels = **std::find_if(choices.begin(), choices.end(), fits);
  const Division d = kernels.divide(trimmed.p);
  return CpuPlan<ConvPlan<CpuExec, T>>(
      d.workspace,
      [op, &kernels, trimmed, d](const CpuExec& exec, const T* from, const T* weights,
                                 T* to, void* workspace) -> LaunchError {
        const Problem& p = trimmed.p;
        ForWeightTasks(exec, p, d.weights_tasks, 1, [&](int64_t task) {
          const int64_t tap = task % (p.kernel_height * p.kernel_width);
          kernels.pack(p, task, weights + trimmed.Weights(tap), workspace);
        });
        return ForTasks(exec, op, d.tasks, Cost(p, d.tasks), d.scratch,
                        [&](int64_t task, void* scratch) {
                          kernels.run(p, task, from, workspace, to, scratch);
                        });
      });
}

}  // namespace

template <typename T>
ConvPlan<CpuExec, T> PlanForward(const CpuExec&, const Problem& p) {
  const CpuKernels<T>& kernels = Selected<T>();
  return PlanImage<T>("CapsuleConv", p, OutputSize(p),
                      {&kernels.columns.forward, &kernels.planes.forward});
}

template <typename T>
BiasReluPlan<CpuExec, T> PlanForwardBiasRelu(const CpuExec&, const Problem& p) {
  const CpuKernels<T>& kernels = Selected<T>();
  const auto conv = PlanImage<T>(ForwardBiasRelu::kName, p, OutputSize(p),
                                 {&kernels.columns.forward, &kernels.planes.forward});
  return CpuPlan<BiasReluPlan<CpuExec, T>>(
      conv.workspace,
      [conv, pixels = Pixels(p), pixel = PixelSize(p)](
          const CpuExec& exec, const T* input, const T* weights, const T* bias,
          T* output, void* workspace) -> LaunchError {
        const LaunchError error = conv.run(exec, input, weights, output, workspace);
        if (!error.empty() || pixel == 0) return error;
        exec.parallel_for(pixels, pixel, [&](int64_t begin, int64_t end) {
          Selected<T>().bias_relu(end - begin, pixel, bias, output + begin * pixel);
        });
        return {};
      });
}

template <typename T>
ConvPlan<CpuExec, T> PlanBackpropInput(const CpuExec&, const Problem& p) {
  const CpuKernels<T>& kernels = Selected<T>();
  return PlanImage<T>("CapsuleConvBackpropInput", p, InputSize(p),
                      {&kernels.columns.backprop_input, &kernels.spread_input,
                       &kernels.planes.backprop_input});
}

template <typename T>
ConvPlan<CpuExec, T> PlanBackpropWeights(const CpuExec&, const Problem& whole) {
  const Trimmed trimmed(whole);
  if (IsEmpty(trimmed.p)) return PlanZeros<T>(Elements({trimmed.taps, trimmed.tap}));
  const WeightsKernels<T>& columns = Selected<T>().columns.backprop_weights;
  const WeightsKernels<T>& kernels =
      columns.divide(trimmed.p).fits ? columns : Selected<T>().planes.backprop_weights;
  const Division d = kernels.divide(trimmed.p);
  const bool in_place = d.in_place && trimmed.complete();
  return CpuPlan<ConvPlan<CpuExec, T>>(
      in_place ? 0 : d.workspace,
      [&kernels, trimmed, d, in_place](const CpuExec& exec, const T* input,
                                       const T* grad, T* grad_weights,
                                       void* workspace) -> LaunchError {
        const Problem& p = trimmed.p;
        if (!trimmed.complete()) {
          std::memset(grad_weights, 0, trimmed.taps * trimmed.tap * sizeof(T));
        }
        void* const sums = in_place ? grad_weights : workspace;
        LaunchError error =
            ForTasks(exec, "CapsuleConvBackpropWeights", d.tasks, Cost(p, d.tasks),
                     d.scratch, [&](int64_t task, void* scratch) {
                       kernels.run(p, task, input, grad, sums, scratch);
                     });
        if (!error.empty() || in_place) return error;
        const int64_t taps = p.kernel_height * p.kernel_width;
        const int64_t tasks_of_tap = d.weights_tasks / (p.pose_depth * taps);
        ForWeightTasks(exec, p, d.weights_tasks, 8, [&](int64_t task) {
          const int64_t tap = task / tasks_of_tap % taps;
          kernels.reduce(p, task, workspace, grad_weights + trimmed.Weights(tap));
        });
        return {};
      });
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ConvPlan, CpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanForwardBiasRelu, BiasReluPlan, CpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropInput, ConvPlan, CpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropWeights, ConvPlan, CpuExec)

}  // namespace capsops::capsule_conv
