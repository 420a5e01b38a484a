// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A plan says how to run an op on a problem: the kernel's name, the size of the
// workspace, and a closure that holds the tile sizes and launches the kernel. Plans are
// values: one plan may run many times, in several threads, on any stream of its device.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
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
  int64_t workspace = 0;  // bytes; the memory must be aligned to 64 bytes
  Run run;                // null if there is an error
  LaunchError error;      // why the plan cannot run

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

// A row in a table of kernel paths, best first: the path's name, its planner, which may
// refuse, and whether to try the row when no kernel is forced. A path may have several
// rows: first those that are preferred under a condition, then an unconditional one.
template <typename Plan>
struct Candidate {
  const char* kernel;
  std::function<Plan()> plan;
  bool preferred = true;
};

// Lists the names of the kernels, each once.
template <typename Plan>
std::string Names(const std::vector<Candidate<Plan>>& candidates) {
  std::set<std::string> named;
  std::string names;
  for (const Candidate<Plan>& candidate : candidates) {
    if (!named.insert(candidate.kernel).second) continue;
    names += (names.empty() ? "" : ", ") + std::string(candidate.kernel);
  }
  return names;
}

// Returns the plan of the first preferred candidate that supports the problem, or of
// the candidate that the user forces (choice.h). While candidates are recorded, also
// plans the candidates after the chosen one.
template <typename Plan>
Plan Choose(const char* op, const std::vector<Candidate<Plan>>& candidates) {
  std::string forced;
  Plan chosen;
  chosen.error = ForcedKernel(op, &forced);
  if (!chosen.error.empty()) return chosen;
  std::set<std::string> planned;
  std::string refusals;
  for (const Candidate<Plan>& candidate : candidates) {
    const std::string kernel = candidate.kernel;
    const bool wanted = forced.empty() ? candidate.preferred : forced == kernel;
    if (!wanted || !planned.insert(kernel).second) continue;
    Plan plan = candidate.plan();
    plan.kernel = kernel;
    if (RecordsCandidates()) RecordCandidate(op, kernel, plan.error.text());
    if (!plan.run) {
      refusals += (refusals.empty() ? "" : "; ") + kernel +
                  (forced.empty() ? "" : ", which") + " cannot do this because " +
                  plan.error.text();
    } else if (!chosen.run) {
      chosen = std::move(plan);
      if (!RecordsCandidates()) break;
    }
  }
  if (chosen.run) return chosen;
  if (forced.empty()) {
    chosen.error = {std::string(op) + ": no CUDA kernel can do this: " + refusals,
                    Fault::kUnimplemented};
  } else if (refusals.empty()) {
    chosen.error = {std::string(op) + ": TF_CAPSOPS_KERNEL asks for the kernel " +
                        forced + ", but the kernels are " + Names(candidates),
                    Fault::kInvalidArgument};
  } else {
    chosen.error = {
        std::string(op) + ": TF_CAPSOPS_KERNEL asks for the kernel " + refusals,
        Fault::kInvalidArgument};
  }
  return chosen;
}

}  // namespace capsops
