// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A plan says how to run an op on a problem: the kernel's name, the size of the
// workspace, and a closure that holds the tile sizes and launches the kernel. Plans are
// values: one plan may run many times, in several threads, on any stream of its device.
#ifndef CAPSOPS_CC_LAUNCH_PLAN_H_
#define CAPSOPS_CC_LAUNCH_PLAN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cc/launch/choice.h"
#include "cc/launch/exec.h"

namespace capsops {

// `Pointers` are the pointers to the op's tensors.
template <typename ExecOf, typename... Pointers>
struct Plan {
  using Exec = ExecOf;
  using Run = std::function<LaunchError(const Exec&, Pointers..., void* workspace)>;

  std::string kernel;
  int64_t workspace = 0;  // bytes, aligned to 64
  Run run;                // null if there is an error
  LaunchError error;      // why there is no such plan

  // Returns a plan that cannot run; `why` completes "it cannot do this because ...".
  static Plan Refuse(std::string why) {
    Plan plan;
    plan.error = {std::move(why), Fault::kUnimplemented};
    return plan;
  }
  static Plan Make(int64_t workspace, Run run) {
    Plan plan;
    plan.workspace = workspace;
    plan.run = std::move(run);
    return plan;
  }
};

// A kernel path: its name, and its planner, which may refuse.
template <typename Plan>
struct Candidate {
  const char* kernel;
  std::function<Plan()> plan;
};

// Returns the plan of the first candidate that supports the problem, or of the
// candidate that the user forces (choice.h).
template <typename Plan>
Plan Choose(const char* op, const std::vector<Candidate<Plan>>& candidates) {
  std::string forced;
  Plan plan;
  plan.error = ForcedKernel(op, &forced);
  if (!plan.error.empty()) return plan;
  std::string refusals, names;
  for (const Candidate<Plan>& candidate : candidates) {
    names += (names.empty() ? "" : ", ") + std::string(candidate.kernel);
    if (!forced.empty() && forced != candidate.kernel) continue;
    plan = candidate.plan();
    plan.kernel = candidate.kernel;
    if (plan.run) return plan;
    refusals += (refusals.empty() ? "" : "; ") + plan.kernel +
                (forced.empty() ? "" : ", which") + " cannot do this because " +
                plan.error.text();
  }
  if (forced.empty()) {
    plan.error = {std::string(op) + ": no CUDA kernel can do this: " + refusals,
                  Fault::kUnimplemented};
  } else if (refusals.empty()) {
    plan.error = {std::string(op) + ": TF_CAPSOPS_KERNEL asks for the kernel " +
                      forced + ", but the kernels are " + names,
                  Fault::kInvalidArgument};
  } else {
    plan.error = {
        std::string(op) + ": TF_CAPSOPS_KERNEL asks for the kernel " + refusals,
        Fault::kInvalidArgument};
  }
  return plan;
}

}  // namespace capsops

#endif  // CAPSOPS_CC_LAUNCH_PLAN_H_
