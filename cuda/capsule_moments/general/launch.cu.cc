// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule moments of any size: stores shares but no votes. The batch is sliced so that
// the shares fit in the workspace. A slice takes LogitKernel and SoftmaxKernel, and
// then MomentKernel or, backward, one kernel per gradient.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_moments/general/shares.cuh"
#include "cuda/capsule_moments/general/sums.cuh"
#include "cuda/capsule_moments/paths.h"
#include "cuda/capsule_moments/samples.cuh"

namespace capsops::capsule_moments::general {

// Limit of the stored shares in bytes, unless one sample needs more.
constexpr int64_t kStoredBytes = int64_t{16} << 20;

// Blocks for `items` threads, up to a limit; kernels loop over the rest.
inline int64_t Blocks(int64_t items) {
  return std::clamp<int64_t>(CeilDivide(items, kThreads), 1, 1 << 20);
}

// Blocks for SumSlices, with the same limit.
inline int64_t SumBlocks(int64_t numbers) {
  return std::clamp<int64_t>(CeilDivide(numbers, kLanes), 1, 1 << 20);
}

// Number of votes of one sample.
inline int64_t SampleVotes(const Problem& p) {
  return p.out_height * p.out_width * Children(p) * p.out_channels;
}

// Samples per slice, if each vote takes `bytes` of the workspace.
inline int64_t SamplesPerSlice(const Problem& p, int64_t bytes) {
  const int64_t sample = std::max<int64_t>(1, SampleVotes(p) * bytes);
  return std::min(std::max<int64_t>(1, kStoredBytes / sample), p.batch);
}

// Writes the shares of all votes of `p` and, if `dq` is not null, the gradients of
// activation * share.
template <typename T, typename S = Statistic<T>>
LaunchError Share(const GpuExec& exec, const char* name, const Problem& p,
                  const Operands<T>& in, const Moments<const S>& grad, S* shares,
                  S* dq = nullptr) {
  const int64_t votes = p.batch * SampleVotes(p);
  const LaunchError error = Launch(name, LogitKernel<T>, Blocks(votes), kThreads, 0,
                                   exec, p, in, grad, shares, dq);
  if (!error.empty() || p.normalize == kNone) return error;
  return Launch(name, SoftmaxKernel<S>, Blocks(Sets(p) * kLanes), kThreads, 0, exec, p,
                shares);
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec&, const Problem& p) {
  using S = Statistic<T>;
  const int64_t samples = SamplesPerSlice(p, sizeof(S));
  return PlanSlices<T>(
      p, samples, samples * SampleVotes(p) * sizeof(S),
      [](const GpuExec& exec, const Problem& p, const Operands<T>& in,
         const Moments<S>& out, void* workspace) -> LaunchError {
        S* const shares = static_cast<S*>(workspace);
        CAPSOPS_RETURN_IF_ERROR(Share<T>(exec, Forward::kName, p, in, {}, shares));
        return Launch(Forward::kName, MomentKernel<T>, Blocks(ParentNumbers(p)),
                      kThreads, 0, exec, p, in, shares, out);
      });
}

template <typename T>
SharesPlan<GpuExec, T> PlanShares(const GpuExec&, const Problem& p) {
  using S = Statistic<T>;
  return SharesPlan<GpuExec, T>::Make(
      0, [p](const GpuExec& exec, const T* poses, const T* activations,
             const T* weights, const S* bias, const S* linear, const S* precision,
             const S* center, const S* prior, S* shares, void*) {
        const Operands<T> in(p, poses, activations, weights, bias, linear, precision,
                             center, prior);
        return Share<T>(exec, Shares::kName, p, in, {}, shares);
      });
}

// Computes the gradients of one slice `p`; `first` and `last` tell whether it is the
// batch's first or last. In the workspace, `shares` and `dz` have one value per vote,
// and `sums` carries the gradient of weights from slice to slice.
template <typename T, typename S = Statistic<T>>
LaunchError Differentiate(const GpuExec& exec, const Problem& p, bool first, bool last,
                          const Operands<T>& in, const Moments<const S>& grad,
                          const Moments<const S>& moments, const Gradients<T>& out,
                          S* shares, S* dz, S* sums) {
  const char* const name = Backward::kName;
  const int64_t capsules = Capsules(p), poses = capsules * p.pose_rows * p.pose_inner;
  CAPSOPS_RETURN_IF_ERROR(Share<T>(exec, name, p, in, grad, shares, dz));
  if (out.activations != nullptr) {
    CAPSOPS_RETURN_IF_ERROR(Launch(name, ActivationKernel<S, CudaType<T>>,
                                   Blocks(capsules * kLanes), kThreads, 0, exec, p,
                                   shares, dz, out.activations));
  }
  CAPSOPS_RETURN_IF_ERROR(Launch(name, LogitGradientKernel<T>, Blocks(Sets(p) * kLanes),
                                 kThreads, 0, exec, p, in, shares, dz));
  CAPSOPS_RETURN_IF_ERROR(Launch(name, StatisticKernel<T>, Blocks(ParentNumbers(p)),
                                 kThreads, 0, exec, p, in, grad, moments, dz,
                                 out.statistics));
  constexpr int kSumThreads = kLanes * kSlices;
  CAPSOPS_RETURN_IF_ERROR(Launch(name, PoseKernel<T>, SumBlocks(poses), kSumThreads, 0,
                                 exec, p, in, grad, shares, dz, out.poses));
  const int64_t rows = Children(p) * p.out_channels;
  CAPSOPS_RETURN_IF_ERROR(Launch(
      name, WeightKernel<T>, SumBlocks(rows * p.pose_inner * p.pose_columns),
      kSumThreads, 0, exec, p, in, grad, shares, dz, first, last, sums, out.weights));
  if (out.prior == nullptr) return {};
  return Launch(name, PriorKernel<S>, SumBlocks(rows), kSumThreads, 0, exec, p, dz,
                first, out.prior);
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec&, const Problem& p) {
  using S = Statistic<T>;
  const int64_t samples = SamplesPerSlice(p, 2 * sizeof(S));
  const int64_t votes = samples * SampleVotes(p);
  const int64_t weights =
      samples < p.batch ? Children(p) * p.out_channels * p.pose_inner * p.pose_columns
                        : 0;
  return PlanGradientSlices<T>(
      p, samples, (2 * votes + weights) * sizeof(S),
      [votes](const GpuExec& exec, const Problem& p, bool first, bool last,
              const Operands<T>& in, const Moments<const S>& grad,
              const Moments<const S>& moments, const Gradients<T>& out,
              void* workspace) {
        S* const shares = static_cast<S*>(workspace);
        return Differentiate<T>(exec, p, first, last, in, grad, moments, out, shares,
                                shares + votes, shares + 2 * votes);
      },
      [](const GpuExec&, const Gradients<T>&, void*) { return LaunchError(); });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanShares, SharesPlan, GpuExec)

}  // namespace capsops::capsule_moments::general
