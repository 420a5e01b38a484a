// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Replaces the votes of pixels by their gradients, with the votes in registers. A group
// of lanes handles a pixel (lanes.cuh). It first routes the pixel, and keeps the
// results of all iterations in shared memory; then it goes back through the iterations.
// Each lane reads only what it stored itself, so that these results need no barriers.
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/lanes.cuh"
#include "cuda/capsule_conv_routing/slabs/pixels.h"

namespace capsops::capsule_conv_routing::slabs {

// A lane's shared memory, in slots of 16 bytes; functions return slot numbers. The
// lanes of a block interleave their slots, which avoids bank conflicts. For each
// iteration r, counted from 0, there are sums, shares, gradients of logits and, except
// for the last, totals, which give the shares of iteration r + 1. Numbers of types are
// padded to whole slots. After these come the
// gradients of bias and logits that the lane adds up over its pixels.
template <int kTypes, int kQuads>
class Kept {
 public:
  __device__ explicit Kept(const Tiling& z) : iterations_(z.iterations) {}

  __device__ static float4* Block() {
    extern __shared__ float4 kept[];
    return kept;
  }
  __device__ int sums(int r) const { return r * kStep; }
  __device__ int shares(int r) const { return r * kStep + kQuads; }
  __device__ int logit_grads(int r) const { return shares(r) + kTypeQuads; }
  __device__ int totals(int r) const { return logit_grads(r) + kTypeQuads; }
  __device__ int bias_sums() const { return iterations_ * kStep - kQuads; }
  __device__ int logit_sums() const { return bias_sums() + kQuads; }
  // Returns the end of this memory.
  __device__ float4* End() const {
    return Block() + (logit_sums() + kTypeQuads) * kLaneThreads;
  }

  template <int kCount>
  __device__ static void Store(const float (&from)[kCount], int at) {
#pragma unroll
    for (int n = 0; n < kCount; n += 4) {
      float quad[4] = {};
#pragma unroll
      for (int e = 0; e < 4 && n + e < kCount; ++e) quad[e] = from[n + e];
      Mine(at + n / 4) = make_float4(quad[0], quad[1], quad[2], quad[3]);
    }
  }
  template <int kCount>
  __device__ static void Load(int at, float (&to)[kCount]) {
#pragma unroll
    for (int n = 0; n < kCount; n += 4) {
      const float4 quad = Mine(at + n / 4);
      const float numbers[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int e = 0; e < 4 && n + e < kCount; ++e) to[n + e] = numbers[e];
    }
  }
  template <int kCount>
  __device__ static void Add(const float (&numbers)[kCount], int at) {
    float sums[kCount];
    Load(at, sums);
#pragma unroll
    for (int n = 0; n < kCount; ++n) sums[n] += numbers[n];
    Store(sums, at);
  }

 private:
  static constexpr int kTypeQuads = (kTypes + 3) / 4;
  static constexpr int kStep = 2 * (kQuads + kTypeQuads);

  __device__ static float4& Mine(int at) {
    return Block()[at * kLaneThreads + threadIdx.x];
  }

  const int iterations_;
};

// Routes as in forward_lanes.cu.cc, and keeps the results of all iterations.
template <typename Pixel, typename Kept, typename S, int kTypes>
__device__ void RouteLane(Pixel& at, const Kept& kept, const S* bias,
                          float (&shares)[kTypes]) {
  float totals[Pixel::kNumbers] = {};
  for (int r = 0;; ++r) {
    float sums[Pixel::kNumbers];
    at.Load(bias, at.exists, sums);
    at.AddVotes(shares, sums);
    kept.Store(sums, kept.sums(r));
    if (r == at.z.iterations - 1) return;
    const auto squash = at.SquashOf(sums);
#pragma unroll
    for (int n = 0; n < Pixel::kNumbers; ++n) {
      totals[n] += squash.factor * squash.Along(sums[n]);
    }
    kept.Store(totals, kept.totals(r));
    at.Dots(totals, shares);
    at.Softmax(shares);
    kept.Store(shares, kept.shares(r + 1));
  }
}

// Replaces sums by their gradients, given `grads`, the gradients of the parents.
template <typename Pixel, int kNumbers>
__device__ void SumGrads(const Pixel& at, const float (&grads)[kNumbers],
                         float (&sums)[kNumbers]) {
  const auto squash = at.SquashOf(sums);
  float product[1] = {at.Product(sums, grads)}, small[1] = {};
  at.AddLanes(product);
  if (__any_sync(~0u, squash.huge)) {
    small[0] = at.Product(sums, grads, capsule_routing::kShrink<float>);
    at.AddLanes(small);
  }
  const float slope = squash.Slope(product[0], small[0]);
#pragma unroll
  for (int n = 0; n < kNumbers; ++n) {
    sums[n] = squash.gain * grads[n] + slope * squash.Along(sums[n]);
  }
}

// Adds the gradients of the bias and of logits to the block's part of the partial sums,
// in this order. Each lane has summed those of its pixels.
template <typename Kept>
__device__ void AddSums(const Tiling& z, const Kept& kept, float* part) {
  __syncthreads();
  const int columns = z.columns(), size = columns + z.types * z.parents;
  for (int n = threadIdx.x; n < size; n += kLaneThreads) {
    int slot, lane, e;
    if (n < columns) {
      const int parent = n / z.dim, quad = (n - parent * z.dim) / 4;
      slot = kept.bias_sums() + quad / z.lanes;
      lane = parent * z.lanes + quad % z.lanes;
      e = n % 4;
    } else {
      const int type = (n - columns) / z.parents, own = type % z.lane_types;
      slot = kept.logit_sums() + own / 4;
      lane = (n - columns - type * z.parents) * z.lanes +
             (type - own) / z.lane_types * kLanes;
      e = own % 4;
    }
    // If warps share the types of a pixel, each has the sums of the bias, but only its
    // own types' sums of logits.
    const int end = z.divided ? lane / kLanes * kLanes + kLanes : kLaneThreads;
    float sum = 0;
    for (; lane < end; lane += z.group) {
      sum +=
          reinterpret_cast<const float*>(&kept.Block()[slot * kLaneThreads + lane])[e];
    }
    part[n] += sum;
  }
}

// Routes the block's pixels, replaces their votes by gradients, and adds the gradients
// of bias and logits to the block's part.
template <typename S, int kTypes, int kQuads>
__global__ void __launch_bounds__(kLaneThreads, LaneBlocks(kTypes, kQuads, true))
    RouteLanesBackwardKernel(const Tiling z, const Places places, const S* grad,
                             const S* bias, const S* logits, S* votes, float* parts) {
  using Pixel = PixelLanes<S, kTypes, kQuads>;
  constexpr int kNumbers = Pixel::kNumbers;
  GridDependencySynchronize();
  const Kept<kTypes, kQuads> kept(z);
  Pixel at(z, logits, kept.End());
  float first_shares[kTypes] = {};
  const float zeros[kNumbers] = {};
  kept.Store(zeros, kept.bias_sums());
  kept.Store(first_shares, kept.logit_sums());
  at.Softmax(first_shares);
  kept.Store(first_shares, kept.shares(0));
  ForPixels(z, places.pixels, [&](int64_t pixel) {
    const bool valid = at.exists && pixel < places.pixels;
    S* const own = votes + pixel * z.types * z.columns();
    at.LoadVotes(own, valid);
    float shares[kTypes], grads[kNumbers];
    kept.Load(kept.shares(0), shares);
    RouteLane(at, kept, bias, shares);
    at.Load(valid ? grad + places.At(pixel) * z.columns() : grad, valid, grads);
    for (int r = z.iterations - 1;; --r) {
      float sums[kNumbers], dots[kTypes], means[kTypes];
      kept.Load(kept.sums(r), sums);
      SumGrads(at, grads, sums);
      kept.Store(sums, kept.sums(r));
      if (valid) kept.Add(sums, kept.bias_sums());
      at.Dots(sums, dots);
      kept.Load(kept.shares(r), shares);
#pragma unroll
      for (int i = 0; i < kTypes; ++i) means[i] = shares[i] * dots[i];
      at.AddParents(means);
#pragma unroll
      for (int i = 0; i < kTypes; ++i) dots[i] = shares[i] * (dots[i] - means[i]);
      kept.Store(dots, kept.logit_grads(r));
      if (valid) kept.Add(dots, kept.logit_sums());
      if (r == 0) break;
      // The gradient of V adds to the gradients of the outputs of all earlier
      // iterations. These do not include the gradient of the last output, `grad`.
      if (r == z.iterations - 1) {
#pragma unroll
        for (int n = 0; n < kNumbers; ++n) grads[n] = 0;
      }
      at.AddVotes(dots, grads);
    }
    // The gradients replace the votes in registers.
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
#pragma unroll
      for (int n = 0; n < kNumbers; ++n) at.votes[i][n] = 0;
    }
    const auto add = [&](int coefficients, int vectors) {
      float vector[kNumbers];
      kept.Load(coefficients, shares);
      kept.Load(vectors, vector);
#pragma unroll
      for (int i = 0; i < kTypes; ++i) {
#pragma unroll
        for (int n = 0; n < kNumbers; ++n) at.votes[i][n] += shares[i] * vector[n];
      }
    };
    for (int r = 0; r < z.iterations; ++r) {
      add(kept.shares(r), kept.sums(r));
      if (r > 0) add(kept.logit_grads(r), kept.totals(r - 1));
    }
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < kTypes; ++i) {
      if (at.HasType(i)) at.Store(at.votes[i], own + (at.first + i) * z.columns());
    }
  });
  AddSums(z, kept, parts + blockIdx.x * int64_t{z.columns() + z.types * z.parents});
}

template <typename T>
LaunchError RouteLanesBackward(const GpuExec& exec, const char* op,
                               const Tiling& tiling, const Places& places,
                               const T* grad, const T* bias, const T* logits, T* votes,
                               float* parts) {
  return WithLanes(tiling, [&](auto types, auto quads) {
    constexpr auto kKernel =
        RouteLanesBackwardKernel<CudaType<T>, types.value, quads.value>;
    return LaunchDependent<kKernel>(op, dim3(tiling.Blocks(places.pixels)),
                                    kLaneThreads,
                                    tiling.KeptBytes() + tiling.ExchangedBytes(), exec,
                                    tiling, places, grad, bias, logits, votes, parts);
  });
}

#define CAPSOPS_INSTANTIATE(T)                                                       \
  template LaunchError RouteLanesBackward<T>(const GpuExec&, const char*,            \
                                             const Tiling&, const Places&, const T*, \
                                             const T*, const T*, T*, float*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
