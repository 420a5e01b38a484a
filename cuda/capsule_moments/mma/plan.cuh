// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Host code that forward.cu.cc and backward.cu.cc share: which problems these kernels
// support, how a pass is divided into blocks, the layout of the workspace, and the
// launch of a pass. A row is a pair [position, k] of a window and one of its children.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/mma/inputs.cuh"
#include "cuda/capsule_moments/mma/pass.cuh"
#include "cuda/capsule_moments/samples.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments::mma {

// Launchers of reduce.cu.cc, where S is float, __half or __nv_bfloat16.

// Adds the partial sums of groups that several blocks share, and writes the results.
LaunchError FinishPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Division& d, const Gradient& grad, const Results& out);

// Merges {max, scale} of each capsule's rows and, unless `row_dots` is null, the rows'
// sums of share dr, in which each row has used the shares of its own softmax.
LaunchError MergeRows(const GpuExec& exec, const char* name, const Problem& p,
                      const float2* row_scales, const float* row_dots, float2* scales,
                      float* dots);

// Adds up the gradients of each capsule's pose and activation over its rows.
// `grad_activations` may be null.
template <typename S>
LaunchError SumRows(const GpuExec& exec, const char* name, const Problem& p,
                    const float* poses, const float* activations, S* grad_poses,
                    S* grad_activations);

// Returns PassKernel's shared memory in bytes.
template <bool kGradient>
int PassBytes(const Problem& p, const Division& d) {
  const int floats =
      p.pose_inner == 5 ? SharedSize<kGradient, 5>(d) : SharedSize<kGradient, 4>(d);
  return floats * static_cast<int>(sizeof(float));
}

// Returns the work split of a pass.
template <bool kGradient>
Division Divide(const Problem& p, const GpuExec& exec) {
  Division d;
  d.image = Image(p);
  d.outs = static_cast<int>(p.out_channels);
  // If shared memory is small, pads the parents more, so that a group has fewer
  // windows.
  for (d.lanes_log2 = 3;
       d.lanes() < d.outs ||
       (d.lanes() < kLanes && PassBytes<kGradient>(p, d) > exec.device.shared);) {
    ++d.lanes_log2;
  }
  d.positions = static_cast<int>(NumWindows(p));
  d.children = static_cast<int>(Children(p));
  d.groups = static_cast<int>(CeilDivide(d.positions, d.windows()));
  d.chunks = static_cast<int>(CeilDivide(d.children, kChunk));
  const int blocks_per_sm = kGradient || p.has_linear ? 1 : 2;
  d.blocks = static_cast<int>(
      std::min<int64_t>(d.Units(), int64_t{blocks_per_sm} * exec.device.processors));
  return d;
}

constexpr char kTooLittleShared[] = "a block has too little shared memory";

// Returns why the passes cannot handle a problem, as the end of a refusal's sentence,
// or "".
template <typename T, bool kGradient>
std::string Refusal(const Problem& p, const GpuExec& exec) {
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
  const int bytes = PassBytes<kGradient>(p, Divide<kGradient>(p, exec));
  return bytes > exec.device.shared ? kTooLittleShared : "";
}

// Offsets of a plan's buffers in bytes. They hold one slice of the batch at a time.
struct Workspace {
  int64_t samples;  // samples per slice
  int64_t row_scales, row_dots, scales, dots, partial;
  int64_t state, activations, poses, weights, prior;
  int parts;  // number of partial sums of the gradients of weights and prior
  int64_t size = 0;

  // Allocates a buffer, and returns its offset.
  int64_t Take(int64_t bytes) {
    const int64_t at = size;
    size += RoundUp(bytes, 64);
    return at;
  }
  template <typename To>
  static To* In(void* workspace, int64_t at) {
    return reinterpret_cast<To*>(static_cast<char*>(workspace) + at);
  }
};

// Limit in bytes of the buffers that have an entry per row, unless one sample needs
// more. It keeps the whole workspace under 32 MiB, above which TensorFlow may allocate
// 64.
constexpr int64_t kRowBytes = int64_t{19} << 20;

// Lays out the workspace. `count_parts(slice)` returns the number of partial sums of
// the gradients of weights and prior.
template <bool kGradient, typename CountParts>
Workspace LayOut(const Problem& p, const GpuExec& exec, const CountParts& count_parts) {
  const bool merges = p.normalize == kAll && HasLogits(p);
  const int64_t pose = kSide * p.pose_inner * sizeof(float);
  const int64_t row = (merges ? sizeof(float2) + sizeof(float) : 0) +
                      (kGradient ? sizeof(RowState) + sizeof(float) + pose : 0);
  const int64_t sample = p.out_height * p.out_width * Children(p);
  const int64_t maximum =
      std::clamp<int64_t>(kRowBytes / std::max<int64_t>(1, sample * row), 1, p.batch);
  Workspace w;
  w.samples = CeilDivide(p.batch, CeilDivide(p.batch, maximum));
  Problem slice = p;
  slice.batch = w.samples;
  const int64_t rows = w.samples * sample, capsules = Capsules(slice);
  const int64_t merged = merges ? rows : 0, seen = merges ? capsules : 0;
  const int64_t mine = kGradient ? rows : 0;
  const int64_t slots = Divide<kGradient>(slice, exec).Slots();
  w.row_scales = w.Take(merged * sizeof(float2));
  w.row_dots = w.Take(kGradient ? merged * sizeof(float) : 0);
  w.scales = w.Take(seen * sizeof(float2));
  w.dots = w.Take(kGradient ? seen * sizeof(float) : 0);
  w.partial = w.Take(slots * kSums * kThreads * sizeof(float));
  w.state = w.Take(mine * sizeof(RowState));
  w.activations = w.Take(mine * sizeof(float));
  w.poses = w.Take(mine * pose);
  w.parts = count_parts(slice);
  const int64_t matrices = w.parts * Children(p) * p.out_channels;
  w.weights = w.Take(matrices * p.pose_inner * kSide * sizeof(float));
  w.prior = w.Take(p.has_prior * matrices * sizeof(float));
  return w;
}

// Calls run(second, logit, Q) with the kernels' compile-time parameters.
template <typename Run>
LaunchError WithVariant(const Problem& p, bool second, const Run& run) {
  const int logit = p.has_linear || p.has_prior            ? 2
                    : HasLogits(p) || p.normalize == kNone ? 1
                                                           : 0;
  return WithConstant<0, 1, 2>(logit, [&](auto logit) {
    return WithConstant<4, 5>(p.pose_inner, [&](auto q) {
      return second ? run(std::true_type(), logit, q)
                    : run(std::false_type(), logit, q);
    });
  });
}

// Launches one pass, and FinishKernel if blocks share groups. tile.cuh explains kSplit.
template <bool kGradient, bool kSplit>
LaunchError LaunchPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Gradient& grad, const Results& out) {
  const Problem& p = in.p;
  const Division d = Divide<kGradient>(p, exec);
  const auto run = [&](auto second, auto logit, auto q) -> LaunchError {
    const auto launch = [&](auto direct) {
      constexpr auto kKernel = PassKernel<kGradient, second, logit, q, kSplit, direct>;
      return LaunchDependent<kKernel>(
          name, d.blocks, kThreads, PassBytes<kGradient>(p, d), exec, in, d, grad, out);
    };
    if constexpr (logit > 0) {
      if (in.rule == Rule::kSoftmax) return launch(std::false_type{});
    }
    return launch(std::true_type{});
  };
  const bool sums = out.scales == nullptr;
  const LaunchError error = WithVariant(p, p.order == 2 && (kGradient || sums), run);
  // FinishKernel has no work if no group is split between blocks, or if only `center`
  // has a gradient, which PassKernel writes itself.
  const bool whole = d.Units() % (int64_t{d.blocks} * d.chunks) == 0;
  const bool finished = whole || (kGradient && !HasLogits(p) && p.normalize != kNone);
  if (!error.empty() || !sums || finished) return error;
  return FinishPass(exec, name, in, d, grad, out);
}

// If the shares are normalized over several windows, computes {max, scale} of each
// capsule, and if kGradient also the sums of share dr, and sets their pointers in `in`.
template <bool kGradient, bool kSplit>
LaunchError Merge(const GpuExec& exec, const char* name, Inputs* in,
                  const Gradient& grad, const Workspace& at, void* workspace) {
  if (in->p.normalize != kAll || !HasLogits(in->p)) return {};
  float2* const scales = Workspace::In<float2>(workspace, at.scales);
  float* const dots = Workspace::In<float>(workspace, at.dots);
  in->rule = Rule::kSoftmax;
  Results out{};
  out.gradients = kGradient;
  out.scales = Workspace::In<float2>(workspace, at.row_scales);
  if (kGradient) out.dots = Workspace::In<float>(workspace, at.row_dots);
  CAPSOPS_RETURN_IF_ERROR(LaunchPass<kGradient, kSplit>(exec, name, *in, grad, out));
  CAPSOPS_RETURN_IF_ERROR(
      MergeRows(exec, name, in->p, out.scales, out.dots, scales, dots));
  in->rule = Rule::kGiven;
  in->scales = scales;
  if (kGradient) in->dots = dots;
  return {};
}

// Calls plan(split) with std::true_type if float32 must not be rounded to TF32.
template <typename T, typename Plan>
auto WithSplit(const GpuExec& exec, const Plan& plan) {
  if constexpr (std::is_same_v<T, float>) {
    if (!exec.tf32) return plan(std::true_type());
  }
  return plan(std::false_type());
}

}  // namespace capsops::capsule_moments::mma
