// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans of kernels that keep a parent in a thread's registers (mma). A row is a pair
// [position, k] of a window and one of its children. A path is a struct:
//   kRowBytes      limit of the workspace for rows, unless one sample needs more
//   Obstacle       why the path refuses a problem that Obstacle() below allows
//   Slots          number of partial sums of moments or of statistics' gradients
//   Parts          number of partial sums of the gradients of weights and prior
//   Pass           writes Results. They are the moments; or the statistics' gradients,
//                  with the state, activation and pose gradients of rows; or {max,
//                  scale} of each row, with the sum over parents of share dr, where the
//                  shares are those of the row's own softmax
//   Weights        writes WeightSums
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/inputs.cuh"
#include "cuda/capsule_moments/samples.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/product/split_k.cuh"

namespace capsops::capsule_moments {

// Launchers of rows.cu.cc, where S is float, __half or __nv_bfloat16.

// Merges {max, scale} of each capsule's rows, and the sums of share dr that were made
// with each row's own shares. Null `row_dots` are skipped.
LaunchError MergeRows(const GpuExec& exec, const char* name, const Problem& p,
                      const float2* row_scales, const float* row_dots, float2* scales,
                      float* dots);

// Adds up the gradients of each capsule's pose and activation over its rows.
// `grad_activations` may be null.
template <typename S>
LaunchError SumRows(const GpuExec& exec, const char* name, const Problem& p,
                    const float* poses, const float* activations, S* grad_poses,
                    S* grad_activations);

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

// Computes {max, scale} of each capsule for shares that are normalized over several
// windows, and where `grad` is not null also the sums of share dr.
template <typename Path>
LaunchError Merge(const GpuExec& exec, const char* name, Inputs* in,
                  const Gradient* grad, const Workspace& parts, void* workspace) {
  float2* const row_scales = Workspace::In<float2>(workspace, parts.row_scales);
  float2* const scales = Workspace::In<float2>(workspace, parts.scales);
  in->rule = Rule::kSoftmax;
  float* const dots = Workspace::In<float>(workspace, parts.dots);
  Results out{};
  out.gradients = grad != nullptr;
  out.scales = row_scales;
  if (out.gradients) out.dots = Workspace::In<float>(workspace, parts.row_dots);
  CAPSOPS_RETURN_IF_ERROR(
      Path::Pass(exec, name, *in, out.gradients ? *grad : Gradient{}, out));
  CAPSOPS_RETURN_IF_ERROR(
      MergeRows(exec, name, in->p, row_scales, out.dots, scales, dots));
  in->rule = Rule::kGiven;
  in->scales = scales;
  if (out.gradients) in->dots = dots;
  return {};
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

template <typename T, typename Path>
ForwardPlan<GpuExec, T> PlanForwardBy(Path, const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  CAPSOPS_REFUSE_IF(Obstacle<T>(p));
  CAPSOPS_REFUSE_IF(Path::Obstacle(p, exec, false));
  if constexpr (std::is_same_v<S, float>) {
    const Workspace parts(Path(), p, exec, false);
    return PlanSlices<T>(
        p, parts.samples, parts.size,
        [parts](const GpuExec& exec, const Problem& p, const Operands<T>& operands,
                const Moments<S>& to, void* workspace) -> LaunchError {
          Inputs in = MakeInputs<T>(p, operands);
          if (p.normalize == kAll && HasLogits(p)) {
            CAPSOPS_RETURN_IF_ERROR(
                Merge<Path>(exec, Forward::kName, &in, nullptr, parts, workspace));
          }
          Results out{};
          out.mass = to.mass, out.first = to.first, out.second = to.second;
          out.partial = Workspace::In<float>(workspace, parts.partial);
          return Path::Pass(exec, Forward::kName, in, {}, out);
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
  const auto buffer = [&](int64_t at) { return Workspace::In<float>(workspace, at); };
  Results out{};
  out.gradients = true;
  out.bias = to.statistics.bias, out.linear = to.statistics.linear;
  out.precision = to.statistics.precision, out.center = to.statistics.center;
  out.given_mass = moments.mass, out.given_first = moments.first;
  out.state = Workspace::In<RowState>(workspace, parts.state);
  out.activations = to.activations != nullptr ? buffer(parts.activations) : nullptr;
  out.poses = buffer(parts.poses), out.partial = buffer(parts.partial);
  CAPSOPS_RETURN_IF_ERROR(Path::Pass(exec, name, in, grad, out));
  const WeightSums sums{out.state, buffer(parts.weights), buffer(parts.prior),
                        overwrite};
  CAPSOPS_RETURN_IF_ERROR(Path::Weights(exec, name, in, grad, sums, parts.parts));
  return SumRows(exec, name, p, out.poses, out.activations, to.poses, to.activations);
}

template <typename T, typename Path>
BackwardPlan<GpuExec, T> PlanBackwardBy(Path, const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  CAPSOPS_REFUSE_IF(Obstacle<T>(p));
  CAPSOPS_REFUSE_IF(Path::Obstacle(p, exec, true));
  if constexpr (std::is_same_v<S, float>) {
    const Workspace parts(Path(), p, exec, true);
    return PlanGradientSlices<T>(
        p, parts.samples, parts.size,
        [parts](const GpuExec& exec, const Problem& p, bool first, bool,
                const Operands<T>& operands, const Moments<const S>& grad,
                const Moments<const S>& moments, const Gradients<T>& to,
                void* workspace) {
          return Differentiate<Path, T>(exec, MakeInputs<T>(p, operands),
                                        {grad.mass, grad.first, grad.second}, moments,
                                        to, parts, first, workspace);
        },
        [parts, matrices = Children(p) * p.out_channels, size = p.pose_inner * kSide](
            const GpuExec& exec, const Gradients<T>& to,
            void* workspace) -> LaunchError {
          const auto sum = [&](int64_t elements, int64_t at, auto* gradient) {
            return ReduceSplits(exec, Backward::kName, elements, parts.parts,
                                Workspace::In<const float>(workspace, at), gradient);
          };
          CAPSOPS_RETURN_IF_ERROR(sum(matrices * size, parts.weights, to.weights));
          if (to.prior == nullptr) return {};
          return sum(matrices, parts.prior, to.prior);
        });
  }
  return {};
}

}  // namespace capsops::capsule_moments
