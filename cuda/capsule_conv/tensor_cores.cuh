// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and runs all tasks of a capsule convolution or its input gradient with one
// tensor-core path. A path is a struct (mma/path.cuh, wgmma/path.cuh) with:
//   Refusal     why the path cannot do tasks of this shape, else empty
//   Plan        the cheapest plan of a task; kPlain: the filter is an array in memory
//   Pack        packs the filter for a plan
//   TapColumns  turns horizontal taps into columns if there are few columns
//               (wgmma/across.cuh), or void
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

// The tasks of a convolution of S at precision kTf32. `weights[i]` is element i of the
// filter; Weights is a pointer or decodes another format.
template <typename Path, typename S, Tf32 kTf32, typename Weights = const S*>
class PlannedTasks {
 public:
  PlannedTasks(const Tasks& tasks, const GpuDevice& device)
      : zeros_(tasks.zeros), refusal_(tasks.refusal) {
    if (!refusal_.empty()) return;
    if constexpr (kUnfolds) {
      unfolded_ = TapColumns::PaysOff(
          tasks.tasks.front(), device.processors, [&](const Task& task) {
            const auto plan = Path::template Plan<S, kTf32, kPlain>(task, device);
            return plan.tiles > 0 ? plan.cost : INFINITY;
          });
    }
    refusal_ = Path::Refusal(Unfold(tasks.tasks.front()), device);
    if (!refusal_.empty()) return;
    int64_t products = 0;
    for (const Task& whole : tasks.tasks) {
      const Task task = Unfold(whole);
      const auto alike =
          std::find_if(steps_.begin(), steps_.end(),
                       [&](const Step& step) { return SameSizes(step.whole, whole); });
      Step step{task,
                alike != steps_.end()
                    ? alike->plan
                    : Path::template Plan<S, kTf32, kPlain>(task, device),
                whole};
      if (step.plan.tiles == 0) {
        refusal_ = "no tile of it fits in shared memory";
        return;
      }
      SetOffsets(task, &step.plan.product);
      const int64_t words =
          PackedSteps(task.filter, step.plan.product.order) * step.plan.step_words;
      packed_words_ = std::max(packed_words_, RoundUp(words, 4));
      if constexpr (kUnfolds) {
        if (unfolded_) products = std::max(products, TapColumns::Elements(task));
      }
      steps_.push_back(step);
    }
    workspace_ = 4 * (packed_words_ + products);
  }

  // Why there is no plan; else empty.
  const std::string& refusal() const { return refusal_; }
  // Bytes for the packed filter and, if horizontal taps are columns, their products.
  int64_t workspace() const { return workspace_; }

  // Runs all tasks; results are multiplied by `scale`.
  LaunchError Run(const GpuExec& exec, const char* op, const S* source,
                  const Weights& weights, S* target, void* workspace,
                  const Scale& scale = {}) const {
    CAPSOPS_RETURN_IF_ERROR(Zero(exec, op, target, zeros_));
    uint32_t* const packed = static_cast<uint32_t*>(workspace);
    for (const Step& step : steps_) {
      TilePlan<S> plan = step.plan;
      plan.product.scale = scale;
      if constexpr (kPlain) {
        if (plan.launch_small != nullptr) {
          CAPSOPS_RETURN_IF_ERROR(
              plan.launch_small(exec, op, plan, source, weights, target));
          continue;
        }
      }
      CAPSOPS_RETURN_IF_ERROR(Path::template Pack<S, kTf32>(exec, op, step.task.filter,
                                                            plan, weights, packed));
      if constexpr (kUnfolds) {
        if (unfolded_) {
          float* const products = reinterpret_cast<float*>(packed + packed_words_);
          CAPSOPS_RETURN_IF_ERROR(
              plan.launch(exec, op, plan, source, packed, products));
          CAPSOPS_RETURN_IF_ERROR(
              TapColumns::Add(exec, op, step.whole, products, target));
          continue;
        }
      }
      CAPSOPS_RETURN_IF_ERROR(plan.launch(exec, op, plan, source, packed, target));
    }
    return {};
  }

 private:
  using TapColumns = typename Path::TapColumns;
  static constexpr bool kPlain = std::is_same_v<Weights, const S*>;
  // Only for float: in a 16-bit type, products would be rounded before taps are added.
  static constexpr bool kUnfolds =
      !std::is_void_v<TapColumns> && kPlain && std::is_same_v<S, float>;

  struct Step {
    Task task;  // horizontal taps are columns if unfolded_
    TilePlan<S> plan;
    Task whole;  // the task as it was given
  };

  Task Unfold(const Task& whole) const {
    if constexpr (kUnfolds) {
      if (unfolded_) return TapColumns::Unfold(whole);
    }
    return whole;
  }

  std::vector<Step> steps_;
  int64_t zeros_, packed_words_ = 0, workspace_ = 0;
  bool unfolded_ = false;
  std::string refusal_;
};

// Plans the forward convolution, or the input gradient if `gradient`.
template <typename Path, typename T, Tf32 kTf32>
ConvPlan<GpuExec, T> PlanProducts(const char* op, const GpuDevice& device,
                                  const Problem& p, bool gradient) {
  using Plan = ConvPlan<GpuExec, T>;
  const PlannedTasks<Path, CudaType<T>, kTf32> products(
      gradient ? InputGradientTasks(p) : ForwardTasks(p), device);
  CAPSOPS_REFUSE_IF(products.refusal());
  return Plan::Make(products.workspace(),
                    [op, products](const GpuExec& exec, const T* source,
                                   const T* weights, T* target, void* workspace) {
                      return products.Run(exec, op, Native(source), Native(weights),
                                          Native(target), workspace);
                    });
}

}  // namespace capsops::capsule_conv

// Defines PlanImage with the Path of a namespace. Also instantiates PlanTask for
// inq_conv, which packs its own filters.
#define CAPSOPS_INSTANTIATE_PLAN_TASK(S, kTf32) \
  template TilePlan<S> PlanTask<S, Tf32::kTf32>(const Task&, const GpuDevice&);
#define CAPSOPS_DEFINE_PLAN_IMAGE                                                  \
  template <typename T>                                                            \
  ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec,              \
                                 const Problem& p, bool gradient) {                \
    return PlanWithPrecision<ConvPlan<GpuExec, T>, T>(exec, [&](auto precision) {  \
      return PlanProducts<Path, T, precision.value>(op, exec.device, p, gradient); \
    });                                                                            \
  }                                                                                \
  CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE_PLAN_IMAGE)                            \
  CAPSOPS_INSTANTIATE_PLAN_TASK(float, kRounded)                                   \
  CAPSOPS_INSTANTIATE_PLAN_TASK(float, kSplitLeft)                                 \
  CAPSOPS_INSTANTIATE_PLAN_TASK(__half, kExact)                                    \
  CAPSOPS_INSTANTIATE_PLAN_TASK(__nv_bfloat16, kExact)
