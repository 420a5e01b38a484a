// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// An op at the boundary between frameworks and kernels is a struct with
//   kName      the name under which plans are chosen, recorded and reported; several
//              ops of TensorFlow may share it
//   Problem    plain data without padding, a multiple of 8 bytes long, so that equal
//              problems have equal bytes
//   MakePlan   <T>(exec, problem) -> Plan<Exec, pointers of T...>
// In a plan, pointers to operands are const and pointers to results are mutable. The
// adapters for TensorFlow and XLA need no more than these types to pass the arguments.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cc/launch/choice.h"
#include "cc/launch/exec.h"
#include "cc/launch/faults.h"
#include "cc/launch/plan.h"

namespace capsops {

template <typename ProblemOf>
struct OpBase {
  using Problem = ProblemOf;
};

// Declares an op's planners for CPU and GPU, Plan##Op, and its struct (see above).
#define CAPSOPS_OP(Op, name, PlanOf)                                 \
  CAPSOPS_DECLARE_PLANNER(Plan##Op, PlanOf, CpuExec)                 \
  CAPSOPS_DECLARE_PLANNER(Plan##Op, PlanOf, GpuExec)                 \
  struct Op : OpBase<Problem> {                                      \
    static constexpr const char* kName = name;                       \
    template <typename T, typename Exec>                             \
    static auto MakePlan(const Exec& exec, const Problem& problem) { \
      return Plan##Op<T>(exec, problem);                             \
    }                                                                \
  };

template <typename Op, typename T, typename Exec>
using PlanOf = decltype(Op::template MakePlan<T>(std::declval<const Exec&>(),
                                                 std::declval<typename Op::Problem>()));

template <typename P>
inline constexpr bool kIsOperand =
    std::is_pointer_v<P> && std::is_const_v<std::remove_pointer_t<P>>;
template <typename P>
inline constexpr bool kIsResult =
    std::is_pointer_v<P> && !std::is_const_v<std::remove_pointer_t<P>>;

// Calls visit(static_cast<P*>(nullptr)) for each argument type P of a plan, in order.
template <typename Exec, typename... Pointers, typename Visit>
void VisitArguments(const Plan<Exec, Pointers...>*, const Visit& visit) {
  (visit(static_cast<Pointers*>(nullptr)), ...);
}

// Runs `plan` on the arguments that `source` provides: Next<P>() returns the plan's
// next argument, and Workspace(bytes) follows the last one. Runs nothing if
// source.failed(); the source then knows why. For faults.h a source also has op(), the
// plan's op, and Elements(i), the number of elements of result `i`.
template <typename Exec, typename... Pointers, typename Source>
LaunchError RunPlan(Source& source, const Plan<Exec, Pointers...>& plan,
                    const Exec& exec) {
  // A braced list evaluates from left to right.
  const std::tuple<Pointers...> arguments{source.template Next<Pointers>()...};
  void* const workspace = source.Workspace(plan.workspace);
  if (source.failed()) return {};
  const auto run = [&](Pointers... pointers) {
    LaunchError error = MaybeFailLaunch(exec, source, plan.kernel);
    if (error.empty()) error = plan.run(exec, pointers..., workspace);
    if (error.empty()) error = MaybeSpoil(exec, source, plan.kernel, pointers...);
    return error;
  };
  return std::apply(run, arguments);
}

// Returns whether plans for both execs are equal for every problem.
inline bool HaveEqualPlans(const CpuExec&, const CpuExec&) { return true; }
inline bool HaveEqualPlans(const GpuExec& a, const GpuExec& b) {
  return a.tf32 == b.tf32 && a.device == b.device;
}

// A cache of the most recent plans. Each OpKernel has one. In eager mode, calls with
// the same attributes share an OpKernel, so one cache serves layers of different
// shapes, and full and partial batches. Under XLA, all calls of the process share one.
template <typename Op, typename T, typename Exec>
class PlanCache {
 public:
  using Plan = PlanOf<Op, T, Exec>;
  using Problem = typename Op::Problem;

  std::shared_ptr<const Plan> Find(const Exec& exec, const Problem& problem) {
    // Without padding and floating-point members, equal problems have equal bytes.
    static_assert(std::has_unique_object_representations_v<Problem>);
    const uint64_t generation = ChoiceGeneration();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Entry& entry : entries_) {
        if (entry.generation == generation && HaveEqualPlans(entry.exec, exec) &&
            std::memcmp(&entry.problem, &problem, sizeof(Problem)) == 0) {
          return entry.plan;
        }
      }
    }
    auto plan = std::make_shared<const Plan>(Op::template MakePlan<T>(exec, problem));
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[next_++ % kKept];
    entry = {{}, generation, problem, plan};
    if constexpr (std::is_same_v<Exec, GpuExec>) entry.exec = exec;
    return plan;
  }

 private:
  static constexpr int kKept = 64;
  struct Entry {
    Exec exec;
    uint64_t generation = 0;  // none yet
    Problem problem;
    std::shared_ptr<const Plan> plan;
  };

  std::mutex mutex_;
  Entry entries_[kKept];
  unsigned next_ = 0;
};

}  // namespace capsops
