// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The plans of the paths that keep a parent in a thread's registers. A path is a
// struct:
//   kRowBytes      bytes that are kept of rows at a time, unless one sample has more
//   Obstacle       why it cannot do a problem that Obstacle() below allows
//   Slots, Parts   how many parts are made of the moments' sums, or of the gradients of
//                  statistics, and of the gradients of weights and prior
//   Scales         writes most and scale of each row
//   Dots           writes the sum of share dr of each row, with the final shares; if
//                  kDotsWithScales, with those within the row, and the row's scales
//   Sum            writes the moments
//   Differentiate  writes the statistics' gradients, and Rows
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_PLANS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_PLANS_CUH_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/rows.cuh"
#include "cuda/capsule_moments/samples.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments {

// Where the parts of a workspace are, in bytes.
struct Room {
  int64_t size = 0;
  int64_t Take(int64_t bytes) {
    const int64_t at = size;
    size += RoundUp(bytes, 64);
    return at;
  }
};

// The parts that each direction has: rows of one chunk of samples, and what is made of
// them.
struct Workspace {
  int64_t samples;  // at a time
  int64_t row_scales, row_dots, scales, dots, partial;
  int64_t facts, activations, poses, weights, prior;
  int parts = 0;  // of the windows, for the gradient of weights
  int64_t size;

  template <typename Path>
  Workspace(Path, const Problem& p, const GpuExec& exec, bool backward) {
    const bool merges = p.normalize == kAll && HasLogits(p);
    const int64_t pose = kSide * p.pose_inner * sizeof(float);
    const int64_t row = (merges ? sizeof(float2) + sizeof(float) : 0) +
                        (backward ? sizeof(Facts) + sizeof(float) + pose : 0);
    const int64_t sample = p.out_height * p.out_width * Children(p);
    const int64_t most = std::clamp<int64_t>(
        Path::kRowBytes / std::max<int64_t>(1, sample * row), 1, p.batch);
    samples = CeilDivide(p.batch, CeilDivide(p.batch, most));
    Problem part = p;
    part.batch = samples;
    const int64_t rows = samples * sample, capsules = Capsules(part);
    const int64_t merged = merges ? rows : 0, seen = merges ? capsules : 0;
    const int64_t mine = backward ? rows : 0;
    const int64_t slots = Path::Slots(part, exec, backward);
    Room room;
    row_scales = room.Take(merged * sizeof(float2));
    row_dots = room.Take(backward ? merged * sizeof(float) : 0);
    scales = room.Take(seen * sizeof(float2));
    dots = room.Take(backward ? seen * sizeof(float) : 0);
    partial = room.Take(slots * kSums * kThreads * sizeof(float));
    facts = room.Take(mine * sizeof(Facts));
    activations = room.Take(mine * sizeof(float));
    poses = room.Take(mine * pose);
    if (backward) parts = Path::Parts(part, exec);
    const int64_t matrices = parts * Children(p) * p.out_channels;
    weights = room.Take(matrices * p.pose_inner * kSide * sizeof(float));
    prior = room.Take(p.has_prior * matrices * sizeof(float));
    size = room.size;
  }

  template <typename To>
  static To* In(void* workspace, int64_t at) {
    return reinterpret_cast<To*>(static_cast<char*>(workspace) + at);
  }
};

// What a path leaves of rows and parts for the kernels of rows.cuh. Where not `begins`,
// the sums of parts go on from what they are.
struct Rows {
  Facts* facts;
  float *activations, *poses, *weights, *prior;  // activations may be null
  bool begins;
};

// Makes {most, scale} of each capsule, and where `grad` is not null the sums of dr too,
// for shares that are normalized over several windows.
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

// Why no such path can do a problem, in words that complete a plan's refusal.
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
  if (Positions(p) == 0 || Capsules(p) == 0 || Children(p) == 0) {
    return "there are no votes";
  }
  constexpr int64_t kMost = int64_t{1} << 28;
  for (const int64_t number :
       {Positions(p), Capsules(p), Children(p) * p.out_channels * p.pose_inner,
        p.out_height * p.stride_height + p.pad_top,
        p.out_width * p.stride_width + p.pad_left, p.in_height + p.pad_top,
        p.in_width + p.pad_left, p.kernel_height * p.dilation_height,
        p.kernel_width * p.dilation_width, Positions(p) * Children(p) / kLanes}) {
    if (number > kMost) return "a dimension is too large for 32-bit indices";
  }
  return "";
}

template <typename Path, typename T>
ForwardPlan<GpuExec, T> PlanForwardBy(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  std::string obstacle = Obstacle<T>(p);
  if (obstacle.empty()) obstacle = Path::template Obstacle<T>(p, exec);
  if (!obstacle.empty()) return Plan::Refuse(obstacle);
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
              const LaunchError error =
                  Merge<Path>(exec, Forward::kName, &in, nullptr, parts, workspace);
              if (!error.empty()) return error;
            }
            return Path::Sum(exec, Forward::kName, in, moments.From(p, from),
                             Workspace::In<float>(workspace, parts.partial));
          };
          return ForSamples(p, parts.samples, run);
        });
  }
  return {};
}

// Writes the gradients of the samples of `in`; those of weights and prior as parts.
template <typename Path, typename T>
LaunchError Differentiate(const GpuExec& exec, Inputs in, const Gradient& grad,
                          const Moments<const float>& moments, const Gradients<T>& to,
                          const Workspace& parts, bool begins, void* workspace) {
  const char* const name = Backward::kName;
  const Problem& p = in.p;
  LaunchError error;
  if (p.normalize == kAll && HasLogits(p)) {
    error = Merge<Path>(exec, name, &in, &grad, parts, workspace);
    if (!error.empty()) return error;
  }
  Rows rows{Workspace::In<Facts>(workspace, parts.facts),
            nullptr,
            Workspace::In<float>(workspace, parts.poses),
            Workspace::In<float>(workspace, parts.weights),
            Workspace::In<float>(workspace, parts.prior),
            begins};
  if (to.activations != nullptr) {
    rows.activations = Workspace::In<float>(workspace, parts.activations);
  }
  error =
      Path::Differentiate(exec, name, in, grad, moments, to.statistics, rows,
                          parts.parts, Workspace::In<float>(workspace, parts.partial));
  if (!error.empty()) return error;
  return SumRows(exec, name, p, rows.poses, rows.activations, to.poses, to.activations);
}

template <typename Path, typename T>
BackwardPlan<GpuExec, T> PlanBackwardBy(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  std::string obstacle = Obstacle<T>(p);
  if (obstacle.empty()) obstacle = Path::template Obstacle<T>(p, exec);
  if (!obstacle.empty()) return Plan::Refuse(obstacle);
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
          const LaunchError error = ForSamples(p, parts.samples, run);
          if (!error.empty()) return error;
          return SumParts(exec, Backward::kName, p, parts.parts,
                          Workspace::In<const float>(workspace, parts.weights),
                          Workspace::In<const float>(workspace, parts.prior),
                          out.weights, out.prior);
        });
  }
  return {};
}

}  // namespace capsops::capsule_moments

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_PLANS_CUH_
