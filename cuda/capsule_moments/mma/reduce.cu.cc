// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels that reduce the results of passes: the partial sums of a group of windows,
// the rows [position, k] of a capsule, and the blocks' gradients of weights and prior.
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
  const int blocks = block1 - block0 + 1, parts = d.Sets() * blocks;
  if (parts == 1 || position >= d.positions || coord.parent >= d.outs) return;
  float sum = 0, first[4] = {}, second[4] = {};
#pragma unroll 4
  for (int i = 0; i < parts; ++i) {
    const int slot = d.Slot(i / blocks, block0 + i % blocks, group);
    const float* const partial =
        out.partial + int64_t{slot} * kSums * kThreads + threadIdx.x;
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

// The rows [position, k] of a pixel's capsules.
class PixelRows {
 public:
  const int channels;

  __device__ PixelRows(const Problem& p, int pixel)
      : channels(static_cast<int>(p.in_channels)), p_(p) {
    Digits<int> d(pixel);
    x_ = d.Next(p.in_width), y_ = d.Next(p.in_height), n_ = d.rest;
  }

  // Calls visit(rows, count) for the rows of the pixel's first capsule in order of k,
  // up to four at a time. Add c to a row for the pixel's capsule c. Whole warps must
  // call this.
  template <typename Visit>
  __device__ void ForRows(const Visit& visit) const {
    const int width = static_cast<int>(p_.kernel_width);
    const int taps = static_cast<int>(p_.kernel_height) * width;
    const int64_t children = taps * channels;
    for (int tap0 = 0; tap0 < taps; tap0 += kLanes) {
      // Each lane finds the window that sees this pixel at the lane's tap.
      const int mine = tap0 + threadIdx.x % kLanes, kh = mine / width;
      const int out_y = WindowAtTap(y_, kh, p_.pad_top, p_.stride_height,
                                    p_.dilation_height, p_.out_height);
      const int out_x = WindowAtTap(x_, mine - kh * width, p_.pad_left, p_.stride_width,
                                    p_.dilation_width, p_.out_width);
      const int position = (n_ * static_cast<int>(p_.out_height) + out_y) *
                               static_cast<int>(p_.out_width) +
                           out_x;
      unsigned seen = __ballot_sync(~0u, mine < taps && out_y >= 0 && out_x >= 0);
      while (seen != 0) {
        int64_t rows[4];
        int count = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int lane = seen != 0 ? __ffs(seen) - 1 : 0;
          rows[i] =
              __shfl_sync(~0u, position, lane) * children + (tap0 + lane) * channels;
          count += seen != 0;
          seen &= seen - 1;
        }
        visit(rows, count);
      }
    }
  }

 private:
  const Problem& p_;
  int x_, y_, n_;
};

// Merges {max, scale} of each capsule's rows, as in an online softmax, and the sums of
// share dr. A block has the capsules of one pixel.
__global__ void __launch_bounds__(kThreads)
    MergeKernel(Problem p, const float2* row_scales, const float* row_dots,
                float2* scales, float* dots) {
  TriggerDependentLaunch();
  const PixelRows pixel(p, blockIdx.x);
  GridDependencySynchronize();
  for (int first = 0; first < pixel.channels; first += blockDim.x) {
    const int c = min(first + static_cast<int>(threadIdx.x), pixel.channels - 1);
    float maximum = -INFINITY, sum = 0, dot = 0;
    pixel.ForRows([&](const int64_t (&rows)[4], int count) {
      float2 scale[4];
      float row_dot[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) scale[i] = row_scales[rows[i] + c];
        if (i < count && row_dots != nullptr) row_dot[i] = row_dots[rows[i] + c];
      }
      float greater = maximum;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) greater = fmaxf(greater, scale[i].x);
      }
      const float factor = sum == 0 ? 0 : ExpBelow(maximum, greater);
      sum *= factor, dot *= factor, maximum = greater;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= count) continue;
        const float part = ExpBelow(scale[i].x, maximum) / scale[i].y;
        sum += part, dot += part * row_dot[i];
      }
    });
    const int64_t capsule = int64_t{blockIdx.x} * pixel.channels + c;
    scales[capsule] = {maximum, 1 / sum};
    if (row_dots != nullptr) dots[capsule] = dot / sum;
  }
}

// Sums the gradients of poses and activations over each capsule's rows. A block has the
// capsules of one pixel, which the same windows see, and a thread one row of a pose.
template <int Q, typename N>
__global__ void __launch_bounds__(kThreads)
    CapsuleKernel(Problem p, const float* poses, const float* activations,
                  N* grad_poses, N* grad_activations) {
  TriggerDependentLaunch();
  const PixelRows pixel(p, blockIdx.x);
  const int channels = pixel.channels;
  GridDependencySynchronize();
  for (int first = 0; first < channels * kSide; first += blockDim.x) {
    const int i = first + threadIdx.x, c = i / kSide;
    float sums[Q] = {}, sum = 0;
    pixel.ForRows([&](const int64_t (&rows)[4], int count) {
      if (c >= channels) return;
      float numbers[4][Q] = {}, active[4] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e >= count) continue;
        LoadRow(poses + ((rows[e] + c) * kSide + i % kSide) * Q, numbers[e]);
        if (grad_activations != nullptr && i % kSide == 0) {
          active[e] = activations[rows[e] + c];
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int q = 0; q < Q; ++q) sums[q] += numbers[e][q];
        sum += active[e];
      }
    });
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

// Adds up the blocks' WeightSums. A thread adds up one vector of the warps with the
// same four parents, over all blocks of a range.
template <int Q, typename N>
__global__ void __launch_bounds__(kThreads)
    WeightKernel(Division d, bool has_prior, const float4* sums, N* weights,
                 float* prior) {
  TriggerDependentLaunch();
  GridDependencySynchronize();
  const WeightSums<Q> layout(d, has_prior);
  const int vector = blockIdx.x * kThreads + threadIdx.x;
  const int warp = blockIdx.y, warps = d.lanes() / kFour, range = blockIdx.z;
  if (vector >= layout.vectors) return;
  const float4* from =
      sums + (int64_t{range} * d.blocks * kWarps + warp) * layout.vectors + vector;
  float total[4] = {};
#pragma unroll 16
  for (int i = warp; i < d.blocks * kWarps;
       i += warps, from += warps * layout.vectors) {
    const float4 part = *from;
    total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
  }
  const int first_child = range * layout.children, first_parent = warp * kFour;
  const int priors_at = layout.Prior() / 4;
  if (vector >= priors_at) {
    const int k = first_child + vector - priors_at;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int o = first_parent + e;
      if (k < d.children && o < d.outs) prior[int64_t{k} * d.outs + o] = total[e];
    }
    return;
  }
  const int lane = vector % kLanes, g = lane / kFour, t = lane % kFour;
  const int o = first_parent + g % kFour;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int column = 2 * t + e % 2, r = g / kFour + e / 2 * 2;
    const int k = first_child + vector / kLanes * kPair<Q> + column / Q;
    if (column >= kPair<Q> * Q || k >= d.children || o >= d.outs) continue;
    const int64_t row = (int64_t{k} * d.outs + o) * Q + column % Q;
    Narrow(total[e], weights + row * kSide + r);
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
  const int64_t threads = RoundUp(p.in_channels, kLanes);
  return LaunchDependent(name, MergeKernel, Capsules(p) / p.in_channels,
                         std::min<int64_t>(threads, kThreads), 0, exec, p, row_scales,
                         row_dots, scales, dots);
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

template <typename S>
LaunchError SumWeights(const GpuExec& exec, const char* name, const Problem& p,
                       const Division& d, const float* sums, S* grad_weights,
                       float* grad_prior) {
  const auto run = [&](auto q, auto kernel) {
    const WeightSums<q> layout(d, p.has_prior);
    const dim3 grid(CeilDivide(layout.vectors, kThreads), CeilDivide(d.outs, kFour),
                    d.ranges);
    return LaunchDependent(name, kernel, grid, kThreads, 0, exec, d, p.has_prior,
                           reinterpret_cast<const float4*>(sums), grad_weights,
                           grad_prior);
  };
  if (p.pose_inner == 5) {
    return run(std::integral_constant<int, 5>(), WeightKernel<5, S>);
  }
  return run(std::integral_constant<int, 4>(), WeightKernel<4, S>);
}

#define CAPSOPS_INSTANTIATE(S)                                                    \
  template LaunchError SumRows<S>(const GpuExec&, const char*, const Problem&,    \
                                  const float*, const float*, S*, S*);            \
  template LaunchError SumWeights<S>(const GpuExec&, const char*, const Problem&, \
                                     const Division&, const float*, S*, float*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(__half)
CAPSOPS_INSTANTIATE(__nv_bfloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_moments::mma
