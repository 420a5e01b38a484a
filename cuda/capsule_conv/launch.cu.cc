// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution is a matrix product whose operands need not be moved: rows are
// output pixels and pose rows, the contraction is over taps, channels and the poses'
// inner dimension, columns are output channels and pose columns.
#include "cuda/capsule_conv/fma/launch.cuh"

#include <algorithm>
#include <utility>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/bias_relu.cuh"
#include "cuda/capsule_conv/gather/launch.cuh"
#include "cuda/capsule_conv/mma/weights_launch.cuh"
#include "cuda/capsule_conv/tensor_cores.cuh"
#include "cuda/capsule_conv/tma/launch.cuh"
#include "cuda/capsule_conv/tma/weights_launch.cuh"
#include "cuda/capsule_conv/wgmma/weights_launch.cuh"

namespace capsops::capsule_conv {
namespace {

constexpr char kBackpropWeights[] = "CapsuleConvBackpropWeights";
constexpr char kNoDouble[] = "it has no products of double";

template <typename T, Tf32 kTf32>
ConvPlan<GpuExec, T> ByProducts(const char* op,
                                const Products<CudaType<T>, kTf32>& products) {
  using Plan = ConvPlan<GpuExec, T>;
  if (!products.refusal().empty()) return Plan::Refuse(products.refusal());
  return Plan::Make(products.workspace(),
                    [op, products](const GpuExec& exec, const T* source,
                                   const T* weights, T* target, void* workspace) {
                      return products.Run(exec, op, Native(source), Native(weights),
                                          Native(target), workspace);
                    });
}

// Moves the first of the candidates, "tma", behind "gather" or behind all but "fma".
template <typename Plan>
void PutInTurn(tma::Turn turn, std::vector<Candidate<Plan>>* candidates) {
  const auto first = candidates->begin();
  if (turn == tma::Turn::kAfterGather) std::iter_swap(first, first + 1);
  if (turn == tma::Turn::kLast) std::rotate(first, first + 1, candidates->end() - 1);
}

// A plan that adds bias and relu to a convolution, if `Plan` has them, in a pass of its
// own.
template <typename Plan, typename T>
Plan Finished(const char* op, const Problem& p, const ConvPlan<GpuExec, T>& conv) {
  if constexpr (std::is_same_v<Plan, ConvPlan<GpuExec, T>>) {
    return conv;
  } else {
    Plan plan;
    plan.error = conv.error;
    if (!conv.run) return plan;
    return Plan::Make(
        conv.workspace, [op, conv, pixels = Pixels(p), pixel = PixelSize(p)](
                            const GpuExec& exec, const T* input, const T* weights,
                            const T* bias, T* output, void* workspace) {
          const LaunchError error = conv.run(exec, input, weights, output, workspace);
          if (!error.empty()) return error;
          return AddBiasRelu(exec, op, pixels, pixel, Native(bias), Native(output));
        });
  }
}

// Of the forward convolution or the gradient of the input. `Plan` is a ConvPlan or a
// BiasReluPlan.
template <typename T, typename Plan = ConvPlan<GpuExec, T>>
Plan PlanImage(const char* op, const GpuExec& exec, const Problem& p, bool gradient,
               const Tasks& tasks, const fma::Product& product) {
  const auto finished = [&](const ConvPlan<GpuExec, T>& conv) {
    return Finished<Plan, T>(op, p, conv);
  };
  const auto by_fma = [&] {
    return finished(fma::PlanProduct<T>(op, exec.device, p, product));
  };
  if constexpr (std::is_same_v<T, double>) {
    const auto none = [] { return Plan::Refuse(kNoDouble); };
    return Choose<Plan>(op, {{"tma", none},
                             {"gather", none},
                             {"wgmma", none},
                             {"mma", none},
                             {"fma", by_fma}});
  } else {
    return WithPrecision<T>(exec, [&](auto precision) {
      using ProductsOf = Products<CudaType<T>, precision.value>;
      std::vector<Candidate<Plan>> candidates = {
          {"tma",
           [&] {
             return finished(
                 tma::PlanImage<T, precision.value>(op, exec.device, p, gradient));
           }},
          {"gather",
           [&] {
             if (gradient) return Plan::Refuse("it makes no gradient of the input");
             return gather::PlanForward<Plan, T, precision.value>(op, exec.device, p);
           }},
          {"wgmma",
           [&] {
             return finished(
                 ByProducts<T>(op, ProductsOf::ByWgmma(tasks, exec.device)));
           }},
          {"mma",
           [&] {
             return finished(ByProducts<T>(op, ProductsOf::ByMma(tasks, exec.device)));
           }},
          {"fma", by_fma}};
      const int64_t read =
          gradient ? p.out_channels * p.pose_columns : p.in_channels * p.pose_inner;
      // Others launch their kernels for each task.
      PutInTurn(tma::TurnOf(p, read, tasks.tasks.size() > 1), &candidates);
      return Choose<Plan>(op, candidates);
    });
  }
}

}  // namespace

template <typename T>
ConvPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return PlanImage<T>("CapsuleConv", exec, p, false, ForwardTasks(p),
                      fma::ForwardProduct(p));
}

template <typename T>
BiasReluPlan<GpuExec, T> PlanForwardBiasRelu(const GpuExec& exec, const Problem& p) {
  return PlanImage<T, BiasReluPlan<GpuExec, T>>(
      ForwardBiasRelu::kName, exec, p, false, ForwardTasks(p), fma::ForwardProduct(p));
}

template <typename T>
ConvPlan<GpuExec, T> PlanBackpropInput(const GpuExec& exec, const Problem& p) {
  return PlanImage<T>("CapsuleConvBackpropInput", exec, p, true, InputGradientTasks(p),
                      fma::InputProduct(p));
}

template <typename T>
ConvPlan<GpuExec, T> PlanBackpropWeights(const GpuExec& exec, const Problem& p) {
  using Plan = ConvPlan<GpuExec, T>;
  // By a function of the precision, if T has any.
  const auto in_products = [&](const auto& by) {
    if constexpr (std::is_same_v<T, double>) {
      return Plan::Refuse(kNoDouble);
    } else {
      return WithPrecision<T>(exec, by);
    }
  };
  const GpuDevice& device = exec.device;
  const auto by_tma = [&] {
    return in_products([&](auto precision) {
      return tma::PlanWeights<T, precision.value>(kBackpropWeights, device, p);
    });
  };
  const auto by_gather = [&] {
    return in_products([&](auto precision) {
      return gather::PlanWeights<T, precision.value>(kBackpropWeights, device, p);
    });
  };
  const auto by_wgmma = [&] {
    return in_products([&](auto precision) {
      return wgmma::PlanWeights<T, precision.value>(kBackpropWeights, device, p);
    });
  };
  const auto by_mma = [&] {
    return in_products([&](auto precision) {
      return mma::PlanWeights<T, precision.value>(kBackpropWeights, device, p);
    });
  };
  const auto by_fma = [&] {
    return fma::PlanProduct<T>(kBackpropWeights, exec.device, p,
                               fma::WeightsProduct(p));
  };
  std::vector<Candidate<Plan>> candidates = {{"tma", by_tma},
                                             {"gather", by_gather},
                                             {"wgmma", by_wgmma},
                                             {"mma", by_mma},
                                             {"fma", by_fma}};
  if (!wgmma::FillsBlocks(p)) std::swap(candidates[2], candidates[3]);
  PutInTurn(tma::TurnOf(p, p.in_channels * p.pose_inner, false), &candidates);
  return Choose<Plan>(kBackpropWeights, candidates);
}

CAPSOPS_SHARED_PRODUCTS(template)

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ConvPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanForwardBiasRelu, BiasReluPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropInput, ConvPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropWeights, ConvPlan, GpuExec)
#define CAPSOPS_INSTANTIATE(T)                                                     \
  template ConvPlan<GpuExec, T> fma::PlanProduct<T>(const char*, const GpuDevice&, \
                                                    const Problem&, Product);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv
