// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the steps of the moments of votes and divides each among threads. The number of
// threads never changes a result: no sum crosses a task, and partial sums are added in
// the order of the pixels.
#include "cc/cpu/capsule_moments.h"

#include <algorithm>
#include <cstring>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"

namespace capsops::capsule_moments {
namespace {

CAPSOPS_SELECTED_KERNELS

template <typename S>
S* IfPresent(int64_t present, S* tensor) {
  return present == 1 ? tensor : nullptr;
}

// Returns the operands with null for absent tensors.
template <typename T>
Operands<T> PresentOperands(const Problem& p, Operands<T> in) {
  return {in.poses,
          IfPresent(p.has_activations, in.activations),
          in.weights,
          IfPresent(p.has_bias, in.bias),
          IfPresent(p.has_linear, in.linear),
          IfPresent(p.has_precision, in.precision),
          IfPresent(p.has_center, in.center),
          IfPresent(p.has_prior, in.prior)};
}

// Returns the approximate cycles of all work on the votes of `children` children.
int64_t Cost(const Problem& p, int64_t children) {
  const double vote = VoteSize(p) * (p.pose_inner + 8.) + 16;
  const double cycles = children * (vote * p.out_channels) / 16;
  return static_cast<int64_t>(std::min(std::max(cycles, 1.), 1e15));
}
int64_t WindowsCost(const Problem& p, const Division& d) {
  return Cost(p, d.windows * Children(p));
}

// Returns whether there are votes. Without windows or parents, all sums are empty.
bool HasVotes(const Problem& p) { return NumWindows(p) > 0 && p.out_channels > 0; }

// Returns whether neither logits nor moments depend on votes.
bool VotesAreUnused(const Problem& p) {
  return p.order == 0 && !p.has_linear && !p.has_precision;
}

// Returns the problem without votes that are empty or that no result depends on. This
// avoids iterating over them: if poses or weights have no elements, the other
// dimensions may be so large that votes would not fit in memory.
Problem DropUnusedVotes(Problem p) {
  if (VoteSize(p) == 0) p.order = p.has_linear = p.has_precision = 0;
  if (VotesAreUnused(p)) {
    p.pose_rows = p.pose_columns = 1;
    p.pose_inner = p.has_center = 0;
  }
  return p;
}

int64_t Poses(const Problem& p) {
  return p.batch * p.in_height * p.in_width * p.in_channels;
}

// The workspace: packed weights, normalizers of kAll, and partial sums of gradients.
template <typename T>
struct Workspace {
  using S = Statistic<T>;

  Workspace(const Problem& p, const Division& d, int64_t per_pose, void* data)
      : packed(static_cast<S*>(data)) {
    S* const all = packed + d.packed;
    const int64_t poses = p.normalize == kAll ? Poses(p) : 0;
    normalizers = {all, all + poses, all + 2 * poses};
    parts = all + per_pose * poses;
  }
  static int64_t Bytes(const Problem& p, const Division& d, int64_t per_pose,
                       int64_t parts) {
    const int64_t poses = p.normalize == kAll ? Poses(p) : 0;
    return ((1 + parts) * d.packed + per_pose * poses) * sizeof(S);
  }

  S* packed;
  Normalizers<S> normalizers;
  S* parts;
};

constexpr int64_t kForwardPerPose = 2, kBackwardPerPose = 3;  // normalizers per pose

// Packs weights and prior and, for kAll, computes the normalizers.
template <typename T>
LaunchError Prepare(const CpuExec& exec, const char* op, const Problem& p,
                    const Division& d, const Operands<T>& in,
                    const Moments<const Statistic<T>>& grads,
                    const Workspace<T>& space) {
  const CpuKernels<T>& kernels = Selected<T>();
  if (d.pairs > 0) {
    exec.parallel_for(d.pairs, std::max<int64_t>(d.packed / d.pairs, 1),
                      [&](int64_t begin, int64_t end) {
                        kernels.pack(p, d, {begin, end}, in.weights, in.prior,
                                     space.packed);
                      });
  }
  if (p.normalize != kAll) return {};
  const int64_t cost = Cost(p, NumWindows(p) * Children(p)) / (d.normalize_tasks + 1);
  return ForTasks(exec, op, d.normalize_tasks, cost + 1, d.normalize_scratch,
                  [&](int64_t task, void* scratch) {
                    kernels.normalize(p, d, task, in, space.packed, grads,
                                      space.normalizers, scratch);
                  });
}

// Computes shares if `shares` is not null, and otherwise moments.
template <typename T>
LaunchError RunForward(const CpuExec& exec, const char* op, const Problem& p,
                       const Division& d, const Operands<T>& in,
                       const Moments<Statistic<T>>& to, Statistic<T>* shares,
                       void* workspace) {
  if (!HasVotes(p)) return {};
  const Workspace<T> space(p, d, kForwardPerPose, workspace);
  CAPSOPS_RETURN_IF_ERROR(Prepare(exec, op, p, d, in, {}, space));
  return ForTasks(exec, op, d.window_tasks, WindowsCost(p, d), d.forward_scratch,
                  [&](int64_t task, void* scratch) {
                    Selected<T>().forward(p, d, task, in, space.packed,
                                          space.normalizers, to, shares, scratch);
                  });
}

// Zeros the gradients that no window contributes to, or that depend on unused votes.
template <typename T>
void ClearGradients(const Problem& p, const Gradients<T>& to) {
  const auto clear = [](auto* first, int64_t count) {
    if (first != nullptr && count > 0) std::memset(first, 0, count * sizeof(*first));
  };
  const int64_t pairs = p.out_channels == 0 ? 0 : Children(p) * p.out_channels;
  clear(to.poses, Poses(p) * p.pose_rows * p.pose_inner);
  clear(to.activations, Poses(p));
  clear(to.weights, pairs * p.pose_inner * p.pose_columns);
  clear(to.prior, pairs);
  clear(to.center, NumWindows(p) * p.out_channels * VoteSize(p));
}

}  // namespace

template <typename T>
ForwardPlan<CpuExec, T> PlanForward(const CpuExec&, const Problem& problem) {
  using S = Statistic<T>;
  const Problem p = DropUnusedVotes(problem);
  const Division d = Selected<T>().divide(p);
  return CpuPlan<ForwardPlan<CpuExec, T>>(
      Workspace<T>::Bytes(p, d, kForwardPerPose, 0),
      [p, d](const CpuExec& exec, const T* poses, const T* activations,
             const T* weights, const S* bias, const S* linear, const S* precision,
             const S* center, const S* prior, S* mass, S* first, S* second,
             void* workspace) {
        const Operands<T> in = PresentOperands<T>(
            p, {poses, activations, weights, bias, linear, precision, center, prior});
        return RunForward<T>(exec, Forward::kName, p, d, in, {mass, first, second},
                             nullptr, workspace);
      });
}

template <typename T>
SharesPlan<CpuExec, T> PlanShares(const CpuExec&, const Problem& problem) {
  using S = Statistic<T>;
  Problem without_moments = problem;
  without_moments.order = 0;
  const Problem p = DropUnusedVotes(without_moments);
  const Division d = Selected<T>().divide(p);
  return CpuPlan<SharesPlan<CpuExec, T>>(
      Workspace<T>::Bytes(p, d, kForwardPerPose, 0),
      [p, d](const CpuExec& exec, const T* poses, const T* activations,
             const T* weights, const S* bias, const S* linear, const S* precision,
             const S* center, const S* prior, S* shares,
             void* workspace) -> LaunchError {
        if (p.in_channels == 0) return {};
        const Operands<T> in = PresentOperands<T>(
            p, {poses, activations, weights, bias, linear, precision, center, prior});
        return RunForward<T>(exec, Shares::kName, p, d, in, {}, shares, workspace);
      });
}

template <typename T>
BackwardPlan<CpuExec, T> PlanBackward(const CpuExec&, const Problem& problem) {
  using S = Statistic<T>;
  const Problem p = DropUnusedVotes(problem);
  const Division d = Selected<T>().divide(p);
  return CpuPlan<BackwardPlan<CpuExec, T>>(
      Workspace<T>::Bytes(p, d, kBackwardPerPose, d.parts),
      [problem, p, d](const CpuExec& exec, const S* grad_mass, const S* grad_first,
                      const S* grad_second, const T* poses, const T* activations,
                      const T* weights, const S* bias, const S* linear,
                      const S* precision, const S* center, const S* prior,
                      const S* mass, const S* first, T* grad_poses, T* grad_activations,
                      T* grad_weights, S* grad_bias, S* grad_linear, S* grad_precision,
                      S* grad_center, S* grad_prior, void* workspace) -> LaunchError {
        const char* const op = Backward::kName;
        const Operands<T> in = PresentOperands<T>(
            p, {poses, activations, weights, bias, linear, precision, center, prior});
        Gradients<T> to{grad_poses,
                        IfPresent(p.has_activations, grad_activations),
                        grad_weights,
                        IfPresent(p.has_bias, grad_bias),
                        IfPresent(p.has_linear, grad_linear),
                        IfPresent(p.has_precision, grad_precision),
                        IfPresent(problem.has_center, grad_center),
                        IfPresent(p.has_prior, grad_prior)};
        if (!HasVotes(p) || p.in_channels == 0 || VotesAreUnused(p)) {
          ClearGradients(problem, to);
        }
        if (!HasVotes(p)) return {};
        to.center = IfPresent(p.has_center, to.center);
        const Moments<const S> grads{grad_mass, IfPresent(p.order >= 1, grad_first),
                                     IfPresent(p.order == 2, grad_second)};
        const Moments<const S> moments{mass, IfPresent(p.order >= 1, first), nullptr};
        const CpuKernels<T>& kernels = Selected<T>();
        const Workspace<T> space(p, d, kBackwardPerPose, workspace);
        LaunchError error = Prepare(exec, op, p, d, in, grads, space);
        if (!error.empty()) return error;
        if (p.has_bias + p.has_linear + p.has_precision + p.has_center > 0) {
          error = ForTasks(exec, op, d.window_tasks, 2 * WindowsCost(p, d),
                           d.statistics_scratch, [&](int64_t task, void* scratch) {
                             kernels.statistics(p, d, task, in, space.packed,
                                                space.normalizers, grads, moments, to,
                                                scratch);
                           });
          if (!error.empty()) return error;
        }
        error = ForTasks(
            exec, op, d.children_tasks,
            3 * Cost(p, NumWindows(p) * Children(p)) / (d.children_tasks + 1) + 1,
            d.children_scratch, [&](int64_t task, void* scratch) {
              kernels.children(p, d, task, in, space.packed, space.normalizers, grads,
                               to, space.parts, scratch);
            });
        if (!error.empty() || d.pairs == 0) return error;
        exec.parallel_for(d.pairs, d.parts * d.packed / d.pairs + 1,
                          [&](int64_t begin, int64_t end) {
                            kernels.finish(p, d, {begin, end}, space.parts, to);
                          });
        return {};
      });
}

CAPSOPS_INSTANTIATE_PATH(CpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanShares, SharesPlan, CpuExec)

}  // namespace capsops::capsule_moments
