// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routing with coded weights, which are decoded into the workspace first.
#include <algorithm>

#include "cc/launch/inq_capsule_routing.h"
#include "cc/launch/round.h"
#include "cuda/common/launch.cuh"

namespace capsops::inq_capsule_routing {

template <typename T>
ForwardPlan<GpuExec, T> PlanDecoded(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  const auto decode = inq_decode::PlanDecode<T>(exec, {p.weights(), 1, p.bits});
  const auto route = capsule_routing::PlanForward<T>(exec, p);
  if (!decode.run) return Plan::Refuse(decode.error.text());
  if (!route.run) return Plan::Refuse(route.error.text());
  const int64_t bytes = RoundUp(p.weights() * sizeof(T), 64);
  return Plan::Make(
      bytes + std::max(decode.workspace, route.workspace),
      [=](const GpuExec& exec, const T* input, const uint8_t* codes,
          const int64_t* top_exponent, const T* logits, T* output,
          capsule_routing::Sum<T>* sums, void* workspace) -> LaunchError {
        T* const weights = static_cast<T*>(workspace);
        void* const rest = static_cast<char*>(workspace) + bytes;
        CAPSOPS_RETURN_IF_ERROR(decode.run(exec, codes, top_exponent, weights, rest));
        return route.run(exec, input, weights, logits, output, sums, rest);
      });
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<ForwardPlan<GpuExec, T>>(
      Forward::kName, {{"decode", [&] { return PlanDecoded<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)

}  // namespace capsops::inq_capsule_routing
