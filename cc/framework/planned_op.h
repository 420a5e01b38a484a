// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What every OpKernel does between its shapes and its launch: it finds the plan that it
// made for these shapes before, or makes one, allocates the workspace and runs.
#ifndef CAPSOPS_CC_FRAMEWORK_PLANNED_OP_H_
#define CAPSOPS_CC_FRAMEWORK_PLANNED_OP_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"

#include "cc/framework/device.h"
#include "cc/launch/choice.h"
#include "cc/launch/plan.h"

namespace capsops {

// What a plan depends on beside the problem.
inline bool PlansAlike(const CpuExec&, const CpuExec&) { return true; }
inline bool PlansAlike(const GpuExec& a, const GpuExec& b) {
  return a.tf32 == b.tf32 && a.device == b.device;
}

// An OpKernel whose Compute() ends in RunPlan(). `Exec` is CpuExec or GpuExec.
template <typename Exec>
class PlannedOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

 protected:
  // The op's name in TF_CAPSOPS_KERNEL, by which its kernels are also recorded.
  virtual std::string planned_name() const { return type_string(); }

  // Runs the plan that planner(exec, problem) makes on `pointers`.
  template <typename Problem, typename Planner, typename... Pointers>
  absl::Status RunPlan(tensorflow::OpKernelContext* ctx, const Problem& problem,
                       const Planner& planner, Pointers... pointers) {
    Exec exec;
    TF_RETURN_IF_ERROR(MakeExec(ctx, &exec));
    using Plan = decltype(planner(exec, problem));
    const std::shared_ptr<const Plan> plan = Find<Plan>(exec, problem, planner);
    if (!plan->run) return ToStatus(plan->error);
    tensorflow::Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateWorkspace(ctx, plan->workspace, &workspace));
    if (RecordsKernels()) {
      RecordKernel(planned_name(), plan->kernel, plan->workspace);
#if TF_CAPSOPS_CUDA
      if constexpr (std::is_same_v<Exec, CpuExec>) {
        RecordPretended(problem, planner);
      }
#endif
    }
    return ToStatus(
        plan->run(exec, pointers..., plan->workspace > 0 ? workspace.data() : nullptr));
  }

 private:
  // Outside of graphs, all calls with the same attributes share an OpKernel: those of a
  // network's layers, whose shapes differ, and of whole and last batches.
  static constexpr int kKept = 64;
  struct Entry {
    Exec exec;
    uint64_t generation = 0;  // none yet
    std::string problem;      // its bytes
    std::shared_ptr<const void> plan;
  };

  template <typename Plan, typename Problem, typename Planner>
  std::shared_ptr<const Plan> Find(const Exec& exec, const Problem& problem,
                                   const Planner& planner) {
    // Without padding and floating-point members, equal problems have equal bytes.
    static_assert(std::has_unique_object_representations_v<Problem>);
    const uint64_t generation = ChoiceGeneration();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Entry& entry : entries_) {
        if (entry.generation == generation && PlansAlike(entry.exec, exec) &&
            std::memcmp(entry.problem.data(), &problem, sizeof(Problem)) == 0) {
          return std::static_pointer_cast<const Plan>(entry.plan);
        }
      }
    }
    auto plan = std::make_shared<const Plan>(planner(exec, problem));
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_[next_++ % kKept] = {
        exec, generation,
        std::string(reinterpret_cast<const char*>(&problem), sizeof(Problem)), plan};
    return plan;
  }

#if TF_CAPSOPS_CUDA
  // Where TF_CAPSOPS_DEVICE describes a GPU, tests see on a CPU what it would run.
  template <typename Problem, typename Planner>
  void RecordPretended(const Problem& problem, const Planner& planner) const {
    GpuExec exec;
    exec.tf32 = tensorflow::tensor_float_32_execution_enabled();
    bool pretended = false;
    const LaunchError error = PretendDevice(&exec.device, &pretended);
    if (!pretended || !error.empty()) return;
    const auto plan = planner(exec, problem);
    RecordKernel(planned_name() + "@GPU", plan.run ? plan.kernel : "none",
                 plan.workspace);
  }
#endif

  std::mutex mutex_;
  Entry entries_[kKept];
  unsigned next_ = 0;
};

}  // namespace capsops

#endif  // CAPSOPS_CC_FRAMEWORK_PLANNED_OP_H_
