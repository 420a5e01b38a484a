// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels that reduce the results of passes: the partial sums of a group of windows,
// and the rows [position, k] of a capsule.
#include <algorithm>
#include <cstdint>

#include "cuda/capsule_moments/mma/plan.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments::mma {

// Adds the partial sums of each group that several blocks share. Block (x, y) computes
// elements 4 y to 4 y + 3 of the results of group x, one parent of a window per thread.
__global__ void __launch_bounds__(kThreads)
    FinishKernel(Inputs in, Division d, Gradient grad, Results out) {
  TriggerDependentLaunch();
  GridDependencySynchronize();
  const int group = blockIdx.x, h = blockIdx.y * 4;
  const int block0 = d.BlockOf(group * d.chunks);
  const int block1 = d.BlockOf((group + 1) * d.chunks - 1);
  const ThreadCoord coord(d);
  const int position = (group << d.windows_log2()) + coord.window;
  if (block0 == block1 || position >= d.positions || coord.parent >= d.outs) return;
  float sum = 0, first[4] = {}, second[4] = {};
  for (int block = block0; block <= block1; ++block) {
    const float* const partial =
        out.partial + int64_t{block + group} * kSums * kThreads + threadIdx.x;
    sum += partial[0];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      first[e] += partial[(1 + h + e) * kThreads];
      second[e] += partial[(1 + kSize + h + e) * kThreads];
    }
  }
  Finish(in, grad, out, out.gradients, int64_t{position} * d.outs + coord.parent, h,
         sum, first, second);
}

// One thread per capsule merges {max, scale} of its rows, as in an online softmax, and
// the sums of share dr.
__global__ void __launch_bounds__(kThreads)
    MergeKernel(Problem p, const float2* row_scales, const float* row_dots,
                float2* scales, float* dots) {
  TriggerDependentLaunch();
  GridDependencySynchronize();
  const int64_t capsules = Capsules(p), children = Children(p);
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= capsules) return;
  float maximum = -INFINITY, sum = 0, dot = 0;
  VisitWindows(p, i, [&](int64_t position, int64_t k) {
    maximum = fmaxf(maximum, row_scales[position * children + k].x);
  });
  VisitWindows(p, i, [&](int64_t position, int64_t k) {
    const float2 row = row_scales[position * children + k];
    const float part = ExpBelow(row.x, maximum) / row.y;
    sum += part;
    if (row_dots != nullptr) dot += part * row_dots[position * children + k];
  });
  scales[i] = {maximum, 1 / sum};
  if (row_dots != nullptr) dots[i] = dot / sum;
}

// Sums the gradients of poses and activations over each capsule's rows. A block has the
// capsules of one pixel, which the same windows see, and a thread one row of a pose.
template <int Q, typename N>
__global__ void __launch_bounds__(kThreads)
    CapsuleKernel(Problem p, const float* poses, const float* activations,
                  N* grad_poses, N* grad_activations) {
  TriggerDependentLaunch();
  Digits<int> d(blockIdx.x);
  const int x = d.Next(p.in_width), y = d.Next(p.in_height), n = d.rest;
  const int channels = static_cast<int>(p.in_channels);
  const int width = static_cast<int>(p.kernel_width);
  const int taps = static_cast<int>(p.kernel_height) * width;
  const int64_t children = taps * channels;
  GridDependencySynchronize();
  for (int first = 0; first < channels * kSide; first += blockDim.x) {
    const int i = first + threadIdx.x, c = i / kSide;
    float sums[Q] = {}, sum = 0;
    for (int tap0 = 0; tap0 < taps; tap0 += kLanes) {
      // Each lane finds the window that sees this pixel at the lane's tap.
      const int mine = tap0 + threadIdx.x % kLanes, kh = mine / width;
      const int out_y = WindowAtTap(y, kh, p.pad_top, p.stride_height,
                                    p.dilation_height, p.out_height);
      const int out_x = WindowAtTap(x, mine - kh * width, p.pad_left, p.stride_width,
                                    p.dilation_width, p.out_width);
      const int position =
          (n * static_cast<int>(p.out_height) + out_y) * static_cast<int>(p.out_width) +
          out_x;
      unsigned seen = __ballot_sync(~0u, mine < taps && out_y >= 0 && out_x >= 0);
      for (; seen != 0; seen &= seen - 1) {
        const int lane = __ffs(seen) - 1;
        const int64_t row =
            __shfl_sync(~0u, position, lane) * children + (tap0 + lane) * channels + c;
        if (c >= channels) continue;
        float numbers[Q];
        LoadRow(poses + (row * kSide + i % kSide) * Q, numbers);
#pragma unroll
        for (int q = 0; q < Q; ++q) sums[q] += numbers[q];
        if (grad_activations != nullptr && i % kSide == 0) sum += activations[row];
      }
    }
    if (c >= channels) continue;
    const int64_t capsule = int64_t{blockIdx.x} * channels + c;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      Narrow(sums[q], grad_poses + (capsule * kSide + i % kSide) * Q + q);
    }
    if (grad_activations != nullptr && i % kSide == 0) {
      Narrow(sum, grad_activations + capsule);
    }
  }
}

LaunchError FinishPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Division& d, const Gradient& grad, const Results& out) {
  return LaunchDependent(name, FinishKernel, dim3(d.groups, kSize / 4), kThreads, 0,
                         exec, in, d, grad, out);
}

LaunchError MergeRows(const GpuExec& exec, const char* name, const Problem& p,
                      const float2* row_scales, const float* row_dots, float2* scales,
                      float* dots) {
  return LaunchDependent(name, MergeKernel, CeilDivide(Capsules(p), kThreads), kThreads,
                         0, exec, p, row_scales, row_dots, scales, dots);
}

template <typename S>
LaunchError SumRows(const GpuExec& exec, const char* name, const Problem& p,
                    const float* poses, const float* activations, S* grad_poses,
                    S* grad_activations) {
  const int64_t threads = RoundUp(p.in_channels * kSide, kLanes);
  const auto kernel = p.pose_inner == 5 ? CapsuleKernel<5, S> : CapsuleKernel<4, S>;
  return LaunchDependent(name, kernel, Capsules(p) / p.in_channels,
                         std::min<int64_t>(threads, kThreads), 0, exec, p, poses,
                         activations, grad_poses, grad_activations);
}

#define CAPSOPS_INSTANTIATE(S)                                                 \
  template LaunchError SumRows<S>(const GpuExec&, const char*, const Problem&, \
                                  const float*, const float*, S*, S*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(__half)
CAPSOPS_INSTANTIATE(__nv_bfloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_moments::mma
