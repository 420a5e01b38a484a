// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A convolution is a capsule convolution whose poses have one row, and is computed by
// the same products: on tensor cores with a filter packed from codes, in FMA with
// decoded weights. Powers of two are exact in every type, so that in float only the
// activations are split where TF32 is not allowed: in two parts of TF32, or in three of
// bfloat16 for wgmma, which is twice as fast and loses nothing. Where tensor cores do
// not do in a 16-bit type, the image is widened to float.
#include "cuda/capsule_conv/fma/launch.cuh"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/inq_conv.h"
#include "cuda/capsule_conv/tensor_cores.cuh"
#include "cuda/inq_conv/codes.cuh"

namespace capsops::capsule_conv {
CAPSOPS_SHARED_PRODUCTS(extern template)
extern template ConvPlan<GpuExec, float> fma::PlanProduct<float>(const char*,
                                                                 const GpuDevice&,
                                                                 const Problem&,
                                                                 Product);
extern template ConvPlan<GpuExec, double> fma::PlanProduct<double>(const char*,
                                                                   const GpuDevice&,
                                                                   const Problem&,
                                                                   Product);
}  // namespace capsops::capsule_conv

namespace capsops::inq_conv {
namespace {

namespace fma = capsule_conv::fma;

// InqConv, or its input gradient.
struct Convolution {
  const char* op;
  int levels;
  int64_t codes, source, target;  // elements
  capsule_conv::Tasks tasks;
  capsule_conv::Problem poses;  // with weights in their own layout
  fma::Product product;         // of them

  Convolution(const Problem& p, bool backward)
      : op(backward ? "InqConvBackpropInput" : "InqConv"),
        levels(1 << (p.bits - 2)),
        codes(p.kernel_height * p.kernel_width * p.in_channels * p.out_channels),
        source(p.batch * p.in_height * p.in_width * p.in_channels),
        target(p.batch * p.out_height * p.out_width * p.out_channels) {
    using capsule_conv::kQuad;
    const int64_t in = p.in_channels % kQuad == 0 ? kQuad : p.in_channels;
    const int64_t out = p.out_channels % kQuad == 0 ? kQuad : p.out_channels;
    const capsule_conv::Problem quads = AsPoses(p, in, out);
    tasks = backward ? InputGradientTasks(quads) : ForwardTasks(quads);
    for (capsule_conv::Task& task : tasks.tasks) {
      capsule_conv::Filter& filter = task.filter;
      filter.tap = p.in_channels * p.out_channels;
      filter.channel = in * p.out_channels;
      filter.element = p.out_channels;
      filter.out_channel = out;
      filter.out_element = 1;
      if (backward) {
        std::swap(filter.channel, filter.out_channel);
        std::swap(filter.element, filter.out_element);
      }
    }
    const bool empty = source == 0 || target == 0;
    poses = empty ? AsPoses(p, 1, 1) : AsPoses(p, p.in_channels, p.out_channels);
    product = backward ? fma::InputProduct(poses) : fma::ForwardProduct(poses);
    if (backward) std::swap(source, target);
  }
};

template <typename T>
InqPlan<GpuExec, T> ByTensorCores(const GpuExec& exec, const Convolution& conv,
                                  bool wgmma) {
  using Plan = InqPlan<GpuExec, T>;
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("it has no products of double");
  } else {
    if (std::is_same_v<T, Float16> && conv.levels > 16) {
      return Plan::Refuse("float16 does not have " + std::to_string(conv.levels) +
                          " powers of two");
    }
    return WithPrecision<T, Tf32::kSplitLeft>(exec, [&](auto precision) {
      using S = CudaType<T>;
      using Products = capsule_conv::Products<S, precision.value, CodedWeights<S>>;
      const Products products = wgmma ? Products::ByWgmma(conv.tasks, exec.device)
                                      : Products::ByMma(conv.tasks, exec.device);
      if (!products.refusal().empty()) return Plan::Refuse(products.refusal());
      return Plan::Make(
          products.workspace(),
          [op = conv.op, levels = conv.levels, products](
              const GpuExec& exec, const T* source, const uint8_t* codes,
              int32_t top_exponent, T* target, void* workspace) {
            const Exponents exponents = Exponents::Of<S>(top_exponent, levels);
            const CodedWeights<S> weights{codes, levels, exponents.top};
            return products.Run(exec, op, Native(source), weights, Native(target),
                                workspace, exponents.scale());
          });
    });
  }
}

// Of float and double.
template <typename T>
InqPlan<GpuExec, T> ByFma(const GpuExec& exec, const Convolution& conv) {
  using Plan = InqPlan<GpuExec, T>;
  const char* const op = conv.op;
  const auto product = fma::PlanProduct<T>(op, exec.device, conv.poses, conv.product);
  if (!product.run) return Plan::Refuse(product.error.text());
  const int64_t decoded = RoundUp(conv.codes * sizeof(T), 64);
  return Plan::Make(
      decoded + product.workspace,
      [op, product, decoded, levels = conv.levels, count = conv.codes,
       results = conv.target](const GpuExec& exec, const T* source,
                              const uint8_t* codes, int32_t top_exponent, T* target,
                              void* workspace) {
        const Exponents exponents = Exponents::Of<T>(top_exponent, levels);
        T* const weights = static_cast<T*>(workspace);
        LaunchError error =
            ForEach(exec, op, count, DecodeKernel<T>,
                    CodedWeights<T>{codes, levels, exponents.top}, count, weights);
        if (error.empty()) {
          error = product.run(exec, source, weights, target,
                              static_cast<char*>(workspace) + decoded);
        }
        if (error.empty() && exponents.shift != 0) {
          error = ForEach(exec, op, results, ScaleKernel<T>, exponents.shift, results,
                          target);
        }
        return error;
      });
}

template <typename T>
InqPlan<GpuExec, T> Widened(const GpuExec& exec, const Convolution& conv);

template <typename T>
std::vector<Candidate<InqPlan<GpuExec, T>>> Candidates(const GpuExec& exec,
                                                       const Convolution& conv) {
  const auto by_wgmma = [&] { return ByTensorCores<T>(exec, conv, true); };
  const auto by_mma = [&] { return ByTensorCores<T>(exec, conv, false); };
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    const auto by_fma = [&] { return ByFma<T>(exec, conv); };
    return {{"wgmma", by_wgmma}, {"mma", by_mma}, {"fma", by_fma}};
  } else {
    const auto widened = [&] { return Widened<T>(exec, conv); };
    return {{"wgmma", by_wgmma}, {"mma", by_mma}, {"widened", widened}};
  }
}

// Of 16-bit types, by the first kernel of float that can do it.
template <typename T>
InqPlan<GpuExec, T> Widened(const GpuExec& exec, const Convolution& conv) {
  using Plan = InqPlan<GpuExec, T>;
  GpuExec exact = exec;
  exact.tf32 = true;  // numbers of 16 bits are exact in TF32
  InqPlan<GpuExec, float> plan;
  for (const auto& candidate : Candidates<float>(exact, conv)) {
    plan = candidate.plan();
    if (plan.run) break;
  }
  if (!plan.run) return Plan::Refuse(plan.error.text());
  const int64_t source_bytes = RoundUp(conv.source * sizeof(float), 64);
  const int64_t target_bytes = RoundUp(conv.target * sizeof(float), 64);
  return Plan::Make(
      source_bytes + target_bytes + plan.workspace,
      [=, op = conv.op, from = conv.source, to = conv.target](
          const GpuExec& exec, const T* source, const uint8_t* codes,
          int32_t top_exponent, T* target, void* workspace) {
        char* const bytes = static_cast<char*>(workspace);
        float* const wide_source = reinterpret_cast<float*>(bytes);
        float* const wide_target = reinterpret_cast<float*>(bytes + source_bytes);
        LaunchError error = ForEach(exec, op, from, ConvertKernel<CudaType<T>, float>,
                                    Native(source), from, wide_source);
        if (error.empty()) {
          error = plan.run(exec, wide_source, codes, top_exponent, wide_target,
                           bytes + source_bytes + target_bytes);
        }
        if (!error.empty()) return error;
        return ForEach(exec, op, to, ConvertKernel<float, CudaType<T>>, wide_target, to,
                       Native(target));
      });
}

template <typename T>
InqPlan<GpuExec, T> PlanAny(const GpuExec& exec, const Convolution& conv) {
  return Choose<InqPlan<GpuExec, T>>(conv.op, Candidates<T>(exec, conv));
}

}  // namespace

template <typename T>
InqPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem) {
  return PlanAny<T>(exec, Convolution(problem, false));
}

template <typename T>
InqPlan<GpuExec, T> PlanBackpropInput(const GpuExec& exec, const Problem& problem) {
  return PlanAny<T>(exec, Convolution(problem, true));
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, InqPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropInput, InqPlan, GpuExec)

}  // namespace capsops::inq_conv
