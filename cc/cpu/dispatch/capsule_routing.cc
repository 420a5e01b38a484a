// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the steps of capsule routing and divides each among threads. The number of
// threads never changes a result: no sum crosses a task, and partial sums are added in
// the order of the input capsules.
#include "cc/cpu/capsule_routing.h"

#include <algorithm>

#include "cc/cpu/dispatch/capsule_routing_forward.h"
#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"

namespace capsops::capsule_routing {

template <typename T>
ForwardPlan<CpuExec, T> PlanForward(const CpuExec&, const Problem& problem) {
  const Problem p = DropUnusedInDim(problem);
  const Division d = Selected<T>().divide(p);
  return CpuPlan<ForwardPlan<CpuExec, T>>(
      Workspace<T>::Bytes(d, 0),
      [p, d](const CpuExec& exec, const T* input, const T* weights, const T* logits,
             T* output, Accumulator<T>* sums, void* workspace) {
        const auto of_task = [&](int64_t, int64_t task, void*) {
          return OfTask(p, d, task, weights);
        };
        return Route(exec, kForwardName, p, d, d.sum_scratch, input, of_task, logits,
                     output, sums, nullptr, workspace);
      });
}

// Plans zero gradients, for problems that have no weights or no samples.
template <typename T>
BackwardPlan<CpuExec, T> PlanZeros(const Problem& p) {
  return CpuPlan<BackwardPlan<CpuExec, T>>(
      0,
      [p](const CpuExec&, const T*, const T*, const T*, const T*, const Accumulator<T>*,
          T* grad_input, T* grad_weights, T* grad_logits, void*) -> LaunchError {
        std::fill_n(grad_input, p.batch * p.in_caps * p.in_dim, T{});
        std::fill_n(grad_weights, p.in_caps * Columns(p) * p.in_dim, T{});
        std::fill_n(grad_logits, p.out_caps * p.in_caps, T{});
        return {};
      });
}

// Recomputes V of all iterations from the sums, goes through the iterations backward to
// compute each ds, and computes the gradients from all V and ds in one last step.
template <typename T>
BackwardPlan<CpuExec, T> PlanBackward(const CpuExec&, const Problem& p) {
  if (p.batch == 0 || p.in_caps == 0 || Columns(p) == 0) return PlanZeros<T>(p);
  const Division d = Selected<T>().divide(p);
  const int64_t tiles = 2 * p.iterations - 1;
  return CpuPlan<BackwardPlan<CpuExec, T>>(
      Workspace<T>::Bytes(d, tiles),
      [p, d, tiles](const CpuExec& exec, const T* grad, const T* input,
                    const T* weights, const T* logits, const Accumulator<T>* sums,
                    T* grad_input, T* grad_weights, T* grad_logits,
                    void* workspace) -> LaunchError {
        const CpuKernels<T>& kernels = Selected<T>();
        const Workspace<T> space(d, workspace, tiles);
        const auto sums_of = [&](int64_t r) {
          return sums + (r - 1) * p.batch * Columns(p);
        };
        const auto for_capsules = [&](int64_t read, const CpuExec::Body& body) {
          if (d.tile > 0) {
            exec.parallel_for(d.groups * p.out_caps, CapsuleCost(p, read), body);
          }
        };
        for_capsules(p.iterations + 1, [&](int64_t begin, int64_t end) {
          for (int64_t r = 2; r <= p.iterations; ++r) {
            kernels.advance(p, d, {begin, end}, sums_of(r - 1),
                            r == 2 ? nullptr : space.total(r - 1), space.total(r));
          }
          kernels.start_grad(p, d, {begin, end}, sums_of(p.iterations), grad,
                             space.running, space.sum_grad(p.iterations, p.iterations));
        });
        for (int64_t r = p.iterations; r >= 2 && d.tile > 0; --r) {
          const LaunchError error = ForTasks(
              exec, kBackwardName, d.sum_tasks, Cost(p, d.chunk_caps, d.range_groups),
              d.sum_scratch, [&](int64_t task, void* scratch) {
                kernels.add(p, d, task, input, OfTask(p, d, task, weights), logits,
                            space.total(r), space.sum_grad(p.iterations, r), nullptr,
                            space.parts, scratch);
              });
          if (!error.empty()) return error;
          for_capsules(d.chunks + 2, [&](int64_t begin, int64_t end) {
            kernels.step_grad(p, d, {begin, end}, r == p.iterations, sums_of(r - 1),
                              space.parts, space.running,
                              space.sum_grad(p.iterations, r - 1));
          });
        }
        return ForTasks(exec, kBackwardName, d.grad_tasks,
                        2 * Cost(p, d.grad_caps, d.groups + 1), d.grad_scratch,
                        [&](int64_t task, void* scratch) {
                          kernels.grad(p, d, task, input, weights, logits, space.tiles,
                                       grad_input, grad_weights, grad_logits, scratch);
                        });
      });
}

template <typename T>
CoefficientsPlan<CpuExec, T> PlanCoefficients(const CpuExec&, const Problem& problem) {
  Problem p = DropUnusedInDim(problem);
  const bool empty = p.batch == 0 || p.in_caps == 0 || p.out_caps == 0;
  if (empty || p.iterations == 0) p.in_dim = p.out_dim = 0;  // nothing is predicted
  const Division d = Selected<T>().divide(p);
  return CpuPlan<CoefficientsPlan<CpuExec, T>>(
      2 * d.tile * sizeof(Accumulator<T>),
      [p, d, empty](const CpuExec& exec, const T* input, const T* weights,
                    const T* logits, const Accumulator<T>* sums, T* coefficients,
                    void* workspace) -> LaunchError {
        if (empty) return {};
        const CpuKernels<T>& kernels = Selected<T>();
        // V of an iteration depends only on the previous one, so two tiles are enough.
        Accumulator<T>* const tiles = static_cast<Accumulator<T>*>(workspace);
        const auto total = [&](int64_t iteration) -> Accumulator<T>* {
          return iteration == 1 ? nullptr : tiles + iteration % 2 * d.tile;
        };
        if (d.tile > 0) {
          exec.parallel_for(d.groups * p.out_caps, CapsuleCost(p, p.iterations),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t r = 1; r <= p.iterations; ++r) {
                                kernels.advance(p, d, {begin, end},
                                                sums + (r - 1) * p.batch * Columns(p),
                                                total(r), total(r + 1));
                              }
                            });
        }
        return ForTasks(exec, kCoefficientsName, d.sum_tasks,
                        Cost(p, d.chunk_caps, d.range_groups), d.sum_scratch,
                        [&](int64_t task, void* scratch) {
                          kernels.coefficients(
                              p, d, task, input, OfTask(p, d, task, weights), logits,
                              total(p.iterations + 1), coefficients, scratch);
                        });
      });
}

CAPSOPS_INSTANTIATE_PATH(CpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanCoefficients, CoefficientsPlan, CpuExec)

}  // namespace capsops::capsule_routing
