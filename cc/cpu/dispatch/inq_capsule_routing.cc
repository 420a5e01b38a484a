// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routing with coded weights. For few samples, each task decodes its weights in its
// core's cache in the first iteration, and the others read u_hat, which is smaller than
// the weights. Otherwise all weights are decoded first.
#include "cc/launch/inq_capsule_routing.h"

#include <algorithm>
#include <atomic>

#include "cc/cpu/dispatch/capsule_routing_forward.h"
#include "cc/cpu/dispatch/inq_codes.h"
#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/inq_decode.h"
#include "cc/launch/round.h"

namespace capsops::inq_decode {
CAPSOPS_SELECTED_KERNELS
}  // namespace capsops::inq_decode

namespace capsops::inq_capsule_routing {
namespace {

constexpr int64_t kTaskBytes = 512 << 10;  // most bytes of the weights of a task

}  // namespace

template <typename T>
ForwardPlan<CpuExec, T> PlanForward(const CpuExec&, const Problem& problem) {
  using A = Accumulator<T>;
  Problem p = problem;
  p.in_dim = capsule_routing::DropUnusedInDim(p).in_dim;
  const capsule_routing::Division d = capsule_routing::Selected<T>().divide(p);
  const int64_t all = p.weights();
  const int64_t task_weights = all == 0 ? 0 : all / p.in_caps * d.chunk_caps;
  const int64_t task_bytes = task_weights * sizeof(T);
  const bool by_task = d.u_hat > 0 && task_bytes <= kTaskBytes;
  const int64_t scratch_bytes =
      by_task ? RoundUp(d.sum_scratch, 64) + task_bytes : d.sum_scratch;
  // The workspace: of routing, and then u_hat or all weights.
  const int64_t routing = RoundUp(capsule_routing::Workspace<T>::Bytes(d, 0), 64);
  return CpuPlan<ForwardPlan<CpuExec, T>>(
      routing + (by_task ? d.u_hat * sizeof(A) : all * sizeof(T)),
      [=](const CpuExec& exec, const T* input, const uint8_t* codes,
          const int64_t* top_exponent, const T* logits, T* output, A* sums,
          void* workspace) {
        const A scale = PowerOfTwo<A>(*top_exponent);
        std::atomic<bool> fit = true;
        const auto decode = [&](const uint8_t* from, int64_t count, T* to) {
          const bool good = inq_decode::Selected<T>().decode({count, 1, p.bits}, 0,
                                                             count, from, &scale, to);
          if (!good) fit = false;
        };
        void* const rest = static_cast<char*>(workspace) + routing;
        T* const decoded = static_cast<T*>(rest);
        if (!by_task) {
          exec.parallel_for(all, 1, [&](int64_t begin, int64_t end) {
            if (begin < end) decode(codes + begin, end - begin, decoded + begin);
          });
        }
        A* const u_hat = by_task ? static_cast<A*>(rest) : nullptr;
        const auto weights = [&](int64_t iteration, int64_t task,
                                 void* scratch) -> const T* {
          if (!by_task) return capsule_routing::OfTask(p, d, task, decoded);
          if (iteration > 1) return nullptr;
          const uint8_t* const from = capsule_routing::OfTask(p, d, task, codes);
          char* const end = static_cast<char*>(scratch) + scratch_bytes;
          T* const to = reinterpret_cast<T*>(end - task_bytes);
          decode(from, std::min(task_weights, codes + all - from), to);
          return to;
        };
        const LaunchError error =
            capsule_routing::Route(exec, Forward::kName, p, d, scratch_bytes, input,
                                   weights, logits, output, sums, u_hat, workspace);
        if (fit) return error;
        return BadCode(Forward::kName, {p.in_caps, p.out_caps, p.out_dim, p.in_dim},
                       p.bits, codes);
      });
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, CpuExec)

}  // namespace capsops::inq_capsule_routing
