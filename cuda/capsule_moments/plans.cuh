// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans of the paths that keep a parent in a thread's registers (mma and fma). A row is
// a pair [position, k] of a window and one of its children. A path is a struct:
//   kRowBytes      limit of the workspace for rows, unless one sample needs more
//   Obstacle       why the path refuses a problem that Obstacle() below allows
//   Slots          number of partial sums of moments or of statistics' gradients
//   Parts          number of partial sums of the gradients of weights and prior
//   Scales         writes {max, scale} of each row
//   Dots           writes the sum over parents of share dr of each row: with the final
//                  shares, or if kDotsWithScales with the shares of the row's own
//                  softmax, and then {max, scale} of the row as well
//   Sum            writes the moments
//   Differentiate  writes the statistics' gradients, and Rows
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/inputs.cuh"
#include "cuda/capsule_moments/samples.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments {

// Launchers of rows.cu.cc, where S is float, __half or __nv_bfloat16.

// Merges {max, scale} of each capsule's rows, and the sums of share dr that were made
// with each row's own shares. With null `row_scales` it adds up `row_dots`, which were
// then made with the final shares. Null `row_dots` are skipped.
LaunchError MergeRows(const GpuExec& exec, const char* name, const Problem& p,
                      const float2* row_scales, const float* row_dots, float2* scales,
                      float* dots);

// Adds up the gradients of each capsule's pose and activation over its rows.
// `grad_activations` may be null.
template <typename S>
LaunchError SumRows(const GpuExec& exec, const char* name, const Problem& p,
                    const float* poses, const float* activations, S* grad_poses,
                    S* grad_activations);

// Adds up the partial gradients of weights and prior. `grad_prior` may be null.
template <typename S>
LaunchError SumParts(const GpuExec& exec, const char* name, const Problem& p, int parts,
                     const float* weights, const float* prior, S* grad_weights,
                     float* grad_prior);

// Assigns offsets in a workspace, in bytes.
struct WorkspaceLayout {
  int64_t size = 0;
  int64_t Take(int64_t bytes) {
    const int64_t at = size;
    size += RoundUp(bytes, 64);
    return at;
  }
};

// Offsets of a plan's buffers, which hold one slice of the batch at a time.
struct Workspace {
  int64_t samples;  // samples of a slice
  int64_t row_scales, row_dots, scales, dots, partial;
  int64_t state, activations, poses, weights, prior;
  int parts = 0;  // partial sums of the gradient of weights
  int64_t size;

  template <typename Path>
  Workspace(Path, const Problem& p, const GpuExec& exec, bool backward) {
    const bool merges = p.normalize == kAll && HasLogits(p);
    const int64_t pose = kSide * p.pose_inner * sizeof(float);
    const int64_t row = (merges ? sizeof(float2) + sizeof(float) : 0) +
                        (backward ? sizeof(RowState) + sizeof(float) + pose : 0);
    const int64_t sample = p.out_height * p.out_width * Children(p);
    const int64_t maximum = std::clamp<int64_t>(
        Path::kRowBytes / std::max<int64_t>(1, sample * row), 1, p.batch);
    samples = CeilDivide(p.batch, CeilDivide(p.batch, maximum));
    Problem part = p;
    part.batch = samples;
    const int64_t rows = samples * sample, capsules = Capsules(part);
    const int64_t merged = merges ? rows : 0, seen = merges ? capsules : 0;
    const int64_t mine = backward ? rows : 0;
    const int64_t slots = Path::Slots(part, exec, backward);
    WorkspaceLayout layout;
    row_scales = layout.Take(merged * sizeof(float2));
    row_dots = layout.Take(backward ? merged * sizeof(float) : 0);
    scales = layout.Take(seen * sizeof(float2));
    dots = layout.Take(backward ? seen * sizeof(float) : 0);
    partial = layout.Take(slots * kSums * kThreads * sizeof(float));
    state = layout.Take(mine * sizeof(RowState));
    activations = layout.Take(mine * sizeof(float));
    poses = layout.Take(mine * pose);
    if (backward) parts = Path::Parts(part, exec);
    const int64_t matrices = parts * Children(p) * p.out_channels;
    weights = layout.Take(matrices * p.pose_inner * kSide * sizeof(float));
    prior = layout.Take(p.has_prior * matrices * sizeof(float));
    size = layout.size;
  }

  template <typename To>
  static To* In(void* workspace, int64_t at) {
    return reinterpret_cast<To*>(static_cast<char*>(workspace) + at);
  }
};

// Outputs of Path::Differentiate for the kernels of rows.cuh. Unless `overwrite`, it
// adds to the partial sums that are there.
struct Rows {
  RowState* state;
  float *activations, *poses, *weights, *prior;  // activations may be null
  bool overwrite;
};

// Computes {max, scale} of each capsule for shares that are normalized over several
// windows, and where `grad` is not null also the sums of share dr.
template <typename Path>
LaunchError Merge(const GpuExec& exec, const char* name, Inputs* in,
                  const Gradient* grad, const Workspace& parts, void* workspace) {
  float2* const row_scales = Workspace::In<float2>(workspace, parts.row_scales);
  float2* const scales = Workspace::In<float2>(workspace, parts.scales);
  in->rule = Rule::kSoftmax;
  const bool together = grad != nullptr && Path::kDotsWithScales;
  float* const row_dots = Workspace::In<float>(workspace, parts.row_dots);
  float* const dots = Workspace::In<float>(workspace, parts.dots);
  const auto merge = [&](const float2* row_scales, const float* row_dots) {
    return MergeRows(exec, name, in->p, row_scales, row_dots, scales, dots);
  };
  LaunchError error = together
                          ? Path::Dots(exec, name, *in, *grad, row_scales, row_dots)
                          : Path::Scales(exec, name, *in, row_scales);
  if (!error.empty()) return error;
  error = merge(row_scales, together ? row_dots : nullptr);
  in->rule = Rule::kGiven;
  in->scales = scales;
  if (error.empty() && grad != nullptr && !together) {
    error = Path::Dots(exec, name, *in, *grad, nullptr, row_dots);
    if (error.empty()) error = merge(nullptr, row_dots);
  }
  if (grad != nullptr) in->dots = dots;
  return error;
}

// Returns why no such path can do a problem, as the end of a refusal's sentence, or "".
template <typename T>
std::string Obstacle(const Problem& p) {
  if (std::is_same_v<T, double>) return "T is double";
  if (p.pose_rows != kSide || p.pose_columns != kSide ||
      (p.pose_inner != 4 && p.pose_inner != 5)) {
    return "poses are not 4x4 or 4x5 and weights not of 4 columns";
  }
  if (p.out_channels < 1 || p.out_channels > kLanes) {
    return "out_channels is not from 1 to 32";
  }
  if (NumWindows(p) == 0 || Capsules(p) == 0 || Children(p) == 0) {
    return "there are no votes";
  }
  constexpr int64_t kMax = int64_t{1} << 28;
  for (const int64_t number :
       {NumWindows(p), Capsules(p), Children(p) * p.out_channels * p.pose_inner,
        p.out_height * p.stride_height + p.pad_top,
        p.out_width * p.stride_width + p.pad_left, p.in_height + p.pad_top,
        p.in_width + p.pad_left, p.kernel_height * p.dilation_height,
        p.kernel_width * p.dilation_width, NumWindows(p) * Children(p) / kLanes}) {
    if (number > kMax) return "a dimension is too large for 32-bit indices";
  }
  return "";
}

template <typename Path, typename T>
ForwardPlan<GpuExec, T> PlanForwardBy(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  CAPSOPS_REFUSE_IF(Obstacle<T>(p));
  CAPSOPS_REFUSE_IF(Path::template Obstacle<T>(p, exec));
  if constexpr (std::is_same_v<S, float>) {
    const Workspace parts(Path(), p, exec, false);
    return Plan::Make(
        parts.size,
        [p, parts](const GpuExec& exec, const T* poses, const T* activations,
                   const T* weights, const S* bias, const S* linear, const S* precision,
                   const S* center, const S* prior, S* mass, S* first, S* second,
                   void* workspace) {
          const Operands<T> operands(p, poses, activations, weights, bias, linear,
                                     precision, center, prior);
          const Moments<S> moments(p, mass, first, second);
          const auto run = [&](const Problem& part, int64_t from, bool) -> LaunchError {
            Inputs in = MakeInputs<T>(part, operands.From(p, from));
            if (p.normalize == kAll && HasLogits(p)) {
              CAPSOPS_RETURN_IF_ERROR(
                  Merge<Path>(exec, Forward::kName, &in, nullptr, parts, workspace));
            }
            return Path::Sum(exec, Forward::kName, in, moments.From(p, from),
                             Workspace::In<float>(workspace, parts.partial));
          };
          return ForEachSlice(p, parts.samples, run);
        });
  }
  return {};
}

// Writes the gradients of one slice; those of weights and prior as partial sums.
template <typename Path, typename T>
LaunchError Differentiate(const GpuExec& exec, Inputs in, const Gradient& grad,
                          const Moments<const float>& moments, const Gradients<T>& to,
                          const Workspace& parts, bool overwrite, void* workspace) {
  const char* const name = Backward::kName;
  const Problem& p = in.p;
  if (p.normalize == kAll && HasLogits(p)) {
    CAPSOPS_RETURN_IF_ERROR(Merge<Path>(exec, name, &in, &grad, parts, workspace));
  }
  Rows rows{Workspace::In<RowState>(workspace, parts.state),
            nullptr,
            Workspace::In<float>(workspace, parts.poses),
            Workspace::In<float>(workspace, parts.weights),
            Workspace::In<float>(workspace, parts.prior),
            overwrite};
  if (to.activations != nullptr) {
    rows.activations = Workspace::In<float>(workspace, parts.activations);
  }
  CAPSOPS_RETURN_IF_ERROR(
      Path::Differentiate(exec, name, in, grad, moments, to.statistics, rows,
                          parts.parts, Workspace::In<float>(workspace, parts.partial)));
  return SumRows(exec, name, p, rows.poses, rows.activations, to.poses, to.activations);
}

template <typename Path, typename T>
BackwardPlan<GpuExec, T> PlanBackwardBy(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  CAPSOPS_REFUSE_IF(Obstacle<T>(p));
  CAPSOPS_REFUSE_IF(Path::template Obstacle<T>(p, exec));
  if constexpr (std::is_same_v<S, float>) {
    const Workspace parts(Path(), p, exec, true);
    return Plan::Make(
        parts.size,
        [p, parts](const GpuExec& exec, const S* grad_mass, const S* grad_first,
                   const S* grad_second, const T* poses, const T* activations,
                   const T* weights, const S* bias, const S* linear, const S* precision,
                   const S* center, const S* prior, const S* mass, const S* first,
                   T* grad_poses, T* grad_activations, T* grad_weights, S* grad_bias,
                   S* grad_linear, S* grad_precision, S* grad_center, S* grad_prior,
                   void* workspace) {
          const Operands<T> operands(p, poses, activations, weights, bias, linear,
                                     precision, center, prior);
          const Moments<const S> grads(p, grad_mass, grad_first, grad_second);
          const Moments<const S> moments(p, mass, first, nullptr);
          const Gradients<T> out(p, grad_poses, grad_activations, grad_weights,
                                 grad_bias, grad_linear, grad_precision, grad_center,
                                 grad_prior);
          const auto run = [&](const Problem& part, int64_t from, bool) {
            const Inputs in = MakeInputs<T>(part, operands.From(p, from));
            const Moments<const S> mine = grads.From(p, from);
            const Gradient grad{mine.mass, mine.first, mine.second};
            return Differentiate<Path, T>(exec, in, grad, moments.From(p, from),
                                          out.From(p, from), parts, from == 0,
                                          workspace);
          };
          CAPSOPS_RETURN_IF_ERROR(ForEachSlice(p, parts.samples, run));
          return SumParts(exec, Backward::kName, p, parts.parts,
                          Workspace::In<const float>(workspace, parts.weights),
                          Workspace::In<const float>(workspace, parts.prior),
                          out.weights, out.prior);
        });
  }
  return {};
}

}  // namespace capsops::capsule_moments
