// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule moments of 4 x 4 poses, or 4 x 5 with coordinates, and up to 32 parents: the
// plans, and the launches that they make.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_FMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_FMA_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/fma/pass.cuh"
#include "cuda/capsule_moments/fma/votes.cuh"
#include "cuda/capsule_moments/samples.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments::fma {

// Bytes that are kept of rows at a time, unless one sample has more.
constexpr int64_t kRowBytes = int64_t{16} << 20;

// Blocks of a multiprocessor, as the kernels' launch bounds have it.
inline int BlocksEach(Kind kind, const Problem& p) {
  return kIsGradient(kind) || p.has_linear ? 1 : 2;
}

inline Division Divide(const Problem& p, const GpuExec& exec, int blocks_each) {
  Division d;
  d.outs = static_cast<int>(p.out_channels);
  d.lanes = d.outs <= kLanes / 2 ? kLanes / 2 : kLanes;
  d.windows = kThreads / d.lanes;
  d.positions = static_cast<int>(Positions(p));
  d.children = static_cast<int>(Children(p));
  d.groups = static_cast<int>(CeilDivide(d.positions, d.windows));
  d.chunks = static_cast<int>(CeilDivide(d.children, kChunk));
  d.blocks = static_cast<int>(
      std::min<int64_t>(d.Units(), int64_t{blocks_each} * exec.device.processors));
  return d;
}

inline bool HasLogits(const Problem& p) {
  return p.has_bias || p.has_linear || p.has_precision || p.has_prior;
}

template <typename T>
Inputs MakeInputs(const Problem& p, const Operands<T>& from) {
  const Element element = std::is_same_v<T, Float16>    ? Element::kHalf
                          : std::is_same_v<T, BFloat16> ? Element::kBfloat16
                                                        : Element::kFloat;
  const Rule rule = p.normalize == kNone                      ? Rule::kLogit
                    : HasLogits(p) && p.normalize == kParents ? Rule::kSoftmax
                                                              : Rule::kGiven;
  return {p,
          element,
          rule,
          p.out_channels <= kLanes / 2 ? kLanes / 2 : kLanes,
          from.poses,
          from.activations,
          from.weights,
          from.bias,
          from.linear,
          from.precision,
          from.center,
          from.prior,
          nullptr,
          nullptr};
}

template <Kind kKind, bool kLinear, bool kPrecision, int Q>
LaunchError LaunchPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Division& d, const Gradient& grad, const Results& out) {
  constexpr auto kKernel = PassKernel<kKind, kLinear, kPrecision, Q>;
  const LaunchError error = AllowShared<kKernel>(exec, name);
  if (!error.empty()) return error;
  const int shared = 2 * StageSize<Q>(d) * sizeof(float);
  kKernel<<<d.blocks, kThreads, shared, exec.stream>>>(in, d, grad, out);
  return CheckLaunch(name);
}

// Makes one pass, and adds up what its blocks leave.
template <Kind kKind, int Q>
LaunchError Pass(const GpuExec& exec, const char* name, const Inputs& in,
                 const Gradient& grad, Results out) {
  const Problem& p = in.p;
  const Division d = Divide(p, exec, BlocksEach(kKind, p));
  out.kind = kKind;
  constexpr bool kSums = kKind != Kind::kScales && kKind != Kind::kDots;
  LaunchError error;
  if (p.has_linear || kKind == Kind::kDots) {
    error = LaunchPass<kKind, true, true, Q>(exec, name, in, d, grad, out);
  } else if (p.has_precision || !kSums) {
    if constexpr (kKind != Kind::kDots) {
      error = LaunchPass<kKind, false, true, Q>(exec, name, in, d, grad, out);
    }
  } else if constexpr (kSums) {
    error = LaunchPass<kKind, false, false, Q>(exec, name, in, d, grad, out);
  }
  const bool whole = d.Units() % (int64_t{d.blocks} * d.chunks) == 0;
  if (!error.empty() || !kSums || whole) return error;
  FinishKernel<<<dim3(d.groups, kSize), kThreads, 0, exec.stream>>>(in, d, grad, out);
  return CheckLaunch(name);
}

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

  Workspace(const Problem& p, const GpuExec& exec, bool backward) {
    const bool merges = p.normalize == kAll && HasLogits(p);
    const int64_t pose = kSide * p.pose_inner * sizeof(float);
    const int64_t row = (merges ? sizeof(float2) + sizeof(float) : 0) +
                        (backward ? sizeof(Facts) + sizeof(float) + pose : 0);
    const int64_t sample = p.out_height * p.out_width * Children(p);
    const int64_t most =
        std::clamp<int64_t>(kRowBytes / std::max<int64_t>(1, sample * row), 1, p.batch);
    samples = CeilDivide(p.batch, CeilDivide(p.batch, most));
    Problem part = p;
    part.batch = samples;
    const int64_t rows = samples * sample, capsules = Capsules(part);
    const int64_t merged = merges ? rows : 0, seen = merges ? capsules : 0;
    const int64_t mine = backward ? rows : 0;
    const int blocks = Divide(part, exec, backward ? 1 : 2).blocks;
    Room room;
    row_scales = room.Take(merged * sizeof(float2));
    row_dots = room.Take(backward ? merged * sizeof(float) : 0);
    scales = room.Take(seen * sizeof(float2));
    dots = room.Take(backward ? seen * sizeof(float) : 0);
    partial = room.Take(int64_t{2} * blocks * kSums * kThreads * sizeof(float));
    facts = room.Take(mine * sizeof(Facts));
    activations = room.Take(mine * sizeof(float));
    poses = room.Take(mine * pose);
    if (backward) {
      const Division d = Divide(part, exec, 2);
      const int64_t groups = CeilDivide(d.children, d.windows);
      parts = static_cast<int>(std::clamp<int64_t>(
          2 * exec.device.processors / groups, 1, CeilDivide(d.positions, kTogether)));
    }
    const int64_t matrices = parts * Children(p) * p.out_channels;
    weights = room.Take(matrices * p.pose_inner * kSide * sizeof(float));
    prior = room.Take(matrices * sizeof(float));
    size = room.size;
  }

  template <typename To>
  static To* In(void* workspace, int64_t at) {
    return reinterpret_cast<To*>(static_cast<char*>(workspace) + at);
  }
};

// Makes {most, scale} of each capsule, and where `dots` is not null the sums of dr too,
// for shares that are normalized over several windows.
template <int Q>
LaunchError Merge(const GpuExec& exec, const char* name, Inputs* in,
                  const Gradient* grad, const Workspace& parts, void* workspace) {
  const int64_t blocks = CeilDivide(Capsules(in->p), kThreads);
  Results out{};
  out.scales = Workspace::In<float2>(workspace, parts.row_scales);
  out.dots = Workspace::In<float>(workspace, parts.row_dots);
  float2* const scales = Workspace::In<float2>(workspace, parts.scales);
  float* const dots = Workspace::In<float>(workspace, parts.dots);
  in->rule = Rule::kSoftmax;
  LaunchError error = Pass<Kind::kScales, Q>(exec, name, *in, {}, out);
  if (!error.empty()) return error;
  MergeKernel<<<blocks, kThreads, 0, exec.stream>>>(in->p, out.scales, nullptr, scales,
                                                    nullptr);
  error = CheckLaunch(name);
  in->rule = Rule::kGiven;
  in->scales = scales;
  if (!error.empty() || grad == nullptr) return error;
  error = Pass<Kind::kDots, Q>(exec, name, *in, *grad, out);
  if (!error.empty()) return error;
  in->dots = dots;
  MergeKernel<<<blocks, kThreads, 0, exec.stream>>>(in->p, nullptr, out.dots, nullptr,
                                                    dots);
  return CheckLaunch(name);
}

// Calls run(Q).
template <typename Run>
LaunchError WithQ(const Problem& p, const Run& run) {
  if (p.pose_inner == 5) return run(std::integral_constant<int, 5>{});
  return run(std::integral_constant<int, 4>{});
}

// Why these kernels cannot do a problem, in words that complete a plan's refusal.
template <typename T>
std::string Obstacle(const Problem& p, const GpuExec& exec) {
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
        p.in_width + p.pad_left}) {
    if (number > kMost) return "a dimension is too large for 32-bit indices";
  }
  const Division d = Divide(p, exec, 1);
  const int floats = std::max(StageSize<5>(d), WindowStageSize<true, 5>(d));
  if (2 * floats * static_cast<int>(sizeof(float)) > exec.device.shared) {
    return "a block has too little shared memory";
  }
  return "";
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  const std::string obstacle = Obstacle<T>(p, exec);
  if (!obstacle.empty()) return Plan::Refuse(obstacle);
  if constexpr (std::is_same_v<S, float>) {
    const Workspace parts(p, exec, false);
    return Plan::Make(
        parts.size,
        [p, parts](const GpuExec& exec, const T* poses, const T* activations,
                   const T* weights, const S* bias, const S* linear, const S* precision,
                   const S* center, const S* prior, S* mass, S* first, S* second,
                   void* workspace) {
          const Operands<T> operands(p, poses, activations, weights, bias, linear,
                                     precision, center, prior);
          const Moments<S> moments(p, mass, first, second);
          const auto run = [&](const Problem& part, int64_t from, bool) {
            return WithQ(p, [&](auto q) -> LaunchError {
              Inputs in = MakeInputs<T>(part, operands.From(p, from));
              if (p.normalize == kAll && HasLogits(p)) {
                const LaunchError error =
                    Merge<q>(exec, Forward::kName, &in, nullptr, parts, workspace);
                if (!error.empty()) return error;
              }
              const Moments<S> to = moments.From(p, from);
              Results out{};
              out.mass = to.mass, out.first = to.first, out.second = to.second;
              out.partial = Workspace::In<float>(workspace, parts.partial);
              if (p.order == 2) {
                return Pass<Kind::kSecond, q>(exec, Forward::kName, in, {}, out);
              }
              return Pass<Kind::kFirst, q>(exec, Forward::kName, in, {}, out);
            });
          };
          return ForSamples(p, parts.samples, run);
        });
  }
  return {};
}

// Writes the gradients of the samples of `in`; those of weights and prior as parts.
template <int Q, typename T>
LaunchError Differentiate(const GpuExec& exec, Inputs in, const Gradient& grad,
                          const Moments<const float>& moments, const Gradients<T>& to,
                          const Workspace& parts, bool begins, void* workspace) {
  const char* const name = Backward::kName;
  const Problem& p = in.p;
  LaunchError error;
  if (p.normalize == kAll && HasLogits(p)) {
    error = Merge<Q>(exec, name, &in, &grad, parts, workspace);
    if (!error.empty()) return error;
  }
  Results out{};
  out.bias = to.statistics.bias, out.linear = to.statistics.linear;
  out.precision = to.statistics.precision, out.center = to.statistics.center;
  out.given_mass = moments.mass, out.given_first = moments.first;
  out.facts = Workspace::In<Facts>(workspace, parts.facts);
  if (to.activations != nullptr) {
    out.activations = Workspace::In<float>(workspace, parts.activations);
  }
  out.partial = Workspace::In<float>(workspace, parts.partial);
  error = Pass<Kind::kStatistics, Q>(exec, name, in, grad, out);
  if (!error.empty()) return error;
  const VoteSums sums{out.facts, Workspace::In<float>(workspace, parts.poses),
                      Workspace::In<float>(workspace, parts.weights),
                      Workspace::In<float>(workspace, parts.prior), begins};
  const Division d = Divide(p, exec, 1);
  const dim3 grid(CeilDivide(d.children, d.windows), parts.parts);
  const auto launch = [&](auto linear) -> LaunchError {
    constexpr auto kKernel = VoteKernel<linear, Q>;
    const LaunchError denied = AllowShared<kKernel>(exec, name);
    if (!denied.empty()) return denied;
    const int shared = 2 * WindowStageSize<linear, Q>(d) * sizeof(float);
    kKernel<<<grid, kThreads, shared, exec.stream>>>(in, d, grad, sums);
    return CheckLaunch(name);
  };
  error = p.has_linear ? launch(std::true_type{}) : launch(std::false_type{});
  if (!error.empty()) return error;
  CapsuleKernel<Q>
      <<<CeilDivide(Capsules(p) * kSide, kThreads), kThreads, 0, exec.stream>>>(
          p, sums.poses, out.activations, to.poses, to.activations);
  return CheckLaunch(name);
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  using S = Statistic<T>;
  const std::string obstacle = Obstacle<T>(p, exec);
  if (!obstacle.empty()) return Plan::Refuse(obstacle);
  if constexpr (std::is_same_v<S, float>) {
    const Workspace parts(p, exec, true);
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
            return WithQ(p, [&](auto q) {
              return Differentiate<q, T>(exec, in, grad, moments.From(p, from),
                                         out.From(p, from), parts, from == 0,
                                         workspace);
            });
          };
          const LaunchError error = ForSamples(p, parts.samples, run);
          if (!error.empty()) return error;
          const int64_t matrices = Children(p) * p.out_channels;
          const int64_t numbers = matrices * p.pose_inner * kSide;
          PartsKernel<<<CeilDivide(numbers, kThreads), kThreads, 0, exec.stream>>>(
              numbers, matrices, parts.parts,
              Workspace::In<const float>(workspace, parts.weights),
              Workspace::In<const float>(workspace, parts.prior), out.weights,
              out.prior);
          return CheckLaunch(Backward::kName);
        });
  }
  return {};
}

}  // namespace capsops::capsule_moments::fma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_FMA_LAUNCH_CUH_
