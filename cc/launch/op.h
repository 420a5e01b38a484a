// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// An op at the boundary between frameworks and kernels: a struct with
//   kName      the op as plans are chosen, recorded and reported; several ops of
//              TensorFlow may be one here
//   Problem    plain data without padding, a multiple of 8 bytes: equal problems have
//              equal bytes
//   MakePlan   <T>(exec, problem) -> Plan<Exec, pointers of T...>
// The pointers of a plan are const for operands and mutable for results. Whoever runs
// an op, TensorFlow or XLA, needs no more than this to find and fill in its arguments.
#ifndef CAPSOPS_CC_LAUNCH_OP_H_
#define CAPSOPS_CC_LAUNCH_OP_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cc/launch/choice.h"
#include "cc/launch/exec.h"
#include "cc/launch/faults.h"
#include "cc/launch/plan.h"

namespace capsops {

template <typename ProblemOf>
struct OpOn {
  using Problem = ProblemOf;
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

// Calls visit(static_cast<P*>(nullptr)) for the type P of each argument of a plan, in
// order.
template <typename Exec, typename... Pointers, typename Visit>
void VisitArguments(const Plan<Exec, Pointers...>*, const Visit& visit) {
  (visit(static_cast<Pointers*>(nullptr)), ...);
}

// Runs `plan` on what `source` finds: Next<P>() is the next argument of the plan, and
// Workspace(bytes) comes after the last. Where source.failed(), which knows why,
// nothing is run. For faults.h a source also has op(), which is the plan's, and
// Elements(i), how many result `i` has.
template <typename Exec, typename... Pointers, typename Source>
LaunchError RunFrom(Source& source, const Plan<Exec, Pointers...>& plan,
                    const Exec& exec) {
  // Braces evaluate from left to right.
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

// What a plan depends on besides the problem.
inline bool PlansAlike(const CpuExec&, const CpuExec&) { return true; }
inline bool PlansAlike(const GpuExec& a, const GpuExec& b) {
  return a.tf32 == b.tf32 && a.device == b.device;
}

// The plans made last. Each OpKernel has a cache; outside of graphs, all calls with the
// same attributes share an OpKernel: those of a network's layers, whose shapes differ,
// and of whole and last batches. Under XLA all calls of the process share one.
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
        if (entry.generation == generation && PlansAlike(entry.exec, exec) &&
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

#endif  // CAPSOPS_CC_LAUNCH_OP_H_
