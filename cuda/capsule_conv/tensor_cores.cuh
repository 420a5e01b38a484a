// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution and its input gradient on tensor cores: the plans of all tasks,
// and their launches one after the other.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_TENSOR_CORES_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_TENSOR_CORES_CUH_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/capsule_conv/mma/launch.cuh"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/wgmma/across.cuh"
#include "cuda/capsule_conv/wgmma/launch.cuh"
#include "cuda/capsule_conv/wgmma/pack.cuh"

namespace capsops::capsule_conv {

// Products of S with precision kTf32. Element i of the filter is `weights[i]`: Weights
// is a pointer, or what reads another form of it.
template <typename S, Tf32 kTf32, typename Weights = const S*>
class Products {
 public:
  static Products ByWgmma(const Tasks& tasks, const GpuDevice& device) {
    std::string refusal = tasks.refusal;
    bool spread = false;
    if (refusal.empty()) {
      const Task& task = tasks.tasks.front();
      spread = kSpreads && wgmma::SpreadsTaps(task);
      refusal =
          wgmma::Refusal<S, kTf32>(spread ? wgmma::SpreadTaps(task) : task, device);
    }
    return Products(tasks, device, refusal, wgmma::PlanTask<S, kTf32>, spread);
  }
  static Products ByMma(const Tasks& tasks, const GpuDevice& device) {
    return Products(
        tasks, device, tasks.refusal, [](const Task& task, const GpuDevice& device) {
          TilePlan<S> plan;
          if constexpr (kPlain) plan = mma::PlanSmall<S, kTf32>(task, device);
          return plan.tiles > 0 ? plan : mma::PlanTask<S, kTf32>(task, device);
        });
  }

  // Why there are none; else empty.
  const std::string& refusal() const { return refusal_; }
  // Bytes, for the packed filter and the products whose taps are added up.
  int64_t workspace() const { return workspace_; }

  // Results are multiplied by `scale`.
  LaunchError Run(const GpuExec& exec, const char* op, const S* source,
                  const Weights& weights, S* target, void* workspace,
                  const Scale& scale = {}) const {
    LaunchError error;
    if (zeros_ > 0) {
      error =
          CheckLaunch(op, cudaMemsetAsync(target, 0, zeros_ * sizeof(S), exec.stream));
    }
    uint32_t* const packed = static_cast<uint32_t*>(workspace);
    for (const Step& step : steps_) {
      if (!error.empty()) return error;
      TilePlan<S> plan = step.plan;
      plan.product.scale = scale;
      if constexpr (kPlain) {
        if (plan.launch_small != nullptr) {
          error = plan.launch_small(exec, op, plan, source, weights, target);
          continue;
        }
      }
      error = Pack(exec, op, step, weights, packed);
      if (!error.empty()) return error;
      if constexpr (kSpreads) {
        if (spread_) {
          float* const products = reinterpret_cast<float*>(packed + packed_words_);
          error = plan.launch(exec, op, plan, source, packed, products);
          if (!error.empty()) return error;
          error = wgmma::AddTaps(exec, op, step.whole, products, target);
          continue;
        }
      }
      error = plan.launch(exec, op, plan, source, packed, target);
    }
    return error;
  }

 private:
  static constexpr bool kPlain = std::is_same_v<Weights, const S*>;
  // Sums of taps in a 16-bit type would be rounded once more.
  static constexpr bool kSpreads = kPlain && std::is_same_v<S, float>;

  struct Step {
    Task task;  // with its taps across as columns if these are spread
    TilePlan<S> plan;
    Task whole;
  };

  template <typename PlanTask>
  Products(const Tasks& tasks, const GpuDevice& device, const std::string& refusal,
           const PlanTask& plan_task, bool spread = false)
      : zeros_(tasks.zeros), spread_(spread), refusal_(refusal) {
    if (!refusal_.empty()) return;
    int64_t products = 0;
    for (const Task& whole : tasks.tasks) {
      const Task task = spread ? wgmma::SpreadTaps(whole) : whole;
      const auto alike =
          std::find_if(steps_.begin(), steps_.end(),
                       [&](const Step& step) { return SameSizes(step.whole, whole); });
      Step step{task, alike != steps_.end() ? alike->plan : plan_task(task, device),
                whole};
      if (step.plan.tiles == 0) {
        refusal_ = "no tile of it fits in shared memory";
        return;
      }
      MoveTo(task, &step.plan.product);
      const int64_t words =
          PackedSteps(task.filter, step.plan.product.order) * step.plan.step_words;
      packed_words_ = std::max(packed_words_, RoundUp(words, 4));
      if (spread) products = std::max(products, wgmma::SpreadElements(task));
      steps_.push_back(step);
    }
    workspace_ = 4 * (packed_words_ + products);
  }

  static LaunchError Pack(const GpuExec& exec, const char* op, const Step& step,
                          const Weights& weights, uint32_t* packed) {
    const TilePlan<S>& plan = step.plan;
    if (plan.by_wgmma) {
      return wgmma::PackUnits<wgmma::OperandOf<S, kTf32>, wgmma::kFilterParts<kTf32>>(
          exec, op, step.task.filter, plan.product, plan.columns, weights, packed);
    }
    return mma::PackFilter<S, kTf32>(exec, op, step.task.filter, plan.product,
                                     plan.columns, weights, packed);
  }

  std::vector<Step> steps_;
  int64_t zeros_, packed_words_ = 0, workspace_ = 0;
  bool spread_;
  std::string refusal_;
};

// The kernels that other convolutions share: `extern template` in their sources.
#define CAPSOPS_SHARED_PRODUCT(KEYWORDS, S, TF32)                                   \
  KEYWORDS TilePlan<S> mma::PlanTask<S, Tf32::TF32>(const Task&, const GpuDevice&); \
  KEYWORDS TilePlan<S> wgmma::PlanTask<S, Tf32::TF32>(const Task&, const GpuDevice&);
#define CAPSOPS_SHARED_PRODUCTS(KEYWORDS)           \
  CAPSOPS_SHARED_PRODUCT(KEYWORDS, float, kRounded) \
  CAPSOPS_SHARED_PRODUCT(KEYWORDS, __half, kExact)  \
  CAPSOPS_SHARED_PRODUCT(KEYWORDS, __nv_bfloat16, kExact)

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_TENSOR_CORES_CUH_
