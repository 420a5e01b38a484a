// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Between the passes of capsule routing of any sizes: adding up their partial sums,
// squash and its gradient. A block has one output capsule and one group of samples; a
// lane has a sample, and kFinishWarps warps share out its elements.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_VECTORS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_VECTORS_CUH_

#include "cuda/capsule_routing/fma/pass.cuh"

namespace capsops::capsule_routing::general {

constexpr int kFinishWarps = 16;

// squash(s) = s f(|s|^2).
template <typename A>
__device__ A SquashScale(A q, A epsilon) {
  return q / (1 + q) * rsqrt(q + epsilon);
}
// 2 f'(|s|^2).
template <typename A>
__device__ A SquashSlope(A q, A epsilon) {
  const A root = rsqrt(q + epsilon);
  return root / (1 + q) * (2 / (1 + q) - q * root * root);
}

// Where a thread of such a block stands.
struct Column {
  const Sizes& z;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int j = blockIdx.x % z.out_caps;
  const int64_t b = int64_t{blockIdx.x} / z.out_caps * kSamples + lane;
  const bool inside = b < z.batch;

  // Index of element d in a vector of output capsules, and in [batch, out_caps, D].
  __device__ int64_t in_vector(int d) const {
    return (int64_t{j} * z.out_dim + d) * z.padded + b;
  }
  __device__ int64_t in_array(int d) const {
    return (b * z.out_caps + j) * z.out_dim + d;
  }

  // Calls visit(d) for each element of the thread.
  template <typename Visit>
  __device__ void Each(const Visit& visit) const {
    for (int d = warp; d < z.out_dim; d += kFinishWarps) visit(d);
  }

  // Element d of the sum of `chunks` partial vectors.
  template <typename A>
  __device__ A SumPartials(const A* partial, int64_t chunks, int d) const {
    A sum = 0;
#pragma unroll 8
    for (int64_t c = 0; c < chunks; ++c) sum += partial[c * z.length + in_vector(d)];
    return sum;
  }

  // The sum of x over the threads of a sample.
  template <typename A>
  __device__ A Sum(A x) const {
    __shared__ A parts[kFinishWarps][kLanes];
    __syncthreads();
    parts[warp][lane] = x;
    __syncthreads();
    A sum = 0;
#pragma unroll
    for (int w = 0; w < kFinishWarps; ++w) sum += parts[w][lane];
    return sum;
  }
};

// ds from s and dv, arrays that are read through s(d) and dv(d). Samples past the last
// get zeros.
template <typename A, typename Read, typename ReadGrad>
__device__ void SquashGradient(const Column& column, const Read& s, const ReadGrad& dv,
                               A* ds) {
  A square = 0, product = 0;
  column.Each([&](int d) {
    square += s(d) * s(d);
    product += s(d) * dv(d);
  });
  square = column.Sum(square);
  product = column.Sum(product);
  const A epsilon = column.z.epsilon;
  const A scale = SquashScale(square, epsilon);
  const A along = SquashSlope(square, epsilon) * product;
  column.Each([&](int d) {
    ds[column.in_vector(d)] = column.inside ? scale * dv(d) + along * s(d) : A{0};
  });
}

// Ends an iteration: sums = s, and either output = squash(s), or the next iteration's
// V, which is `v` (zero where null) plus squash(s).
template <typename S, typename A>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    FinishKernel(Sizes z, int64_t chunks, const A* __restrict__ partial, const A* v,
                 A* next_v, A* sums, S* __restrict__ output) {
  const Column column{z};
  A square = 0;
  column.Each([&](int d) {
    if (!column.inside) return;
    const A s = column.SumPartials(partial, chunks, d);
    sums[column.in_array(d)] = s;
    square += s * s;
  });
  const A scale = SquashScale(column.Sum(square), A{z.epsilon});
  column.Each([&](int d) {
    A squashed = column.inside ? sums[column.in_array(d)] * scale : A{0};
    if (output == nullptr) {
      const int64_t at = column.in_vector(d);
      next_v[at] = v != nullptr ? v[at] + squashed : squashed;
    } else if (column.inside) {
      Narrow(squashed, output + column.in_array(d));
    }
  });
}

// V of iterations 2, 3, ... `iterations` and ds of the last. The vectors of iteration
// r (from 1) begin at vectors + 2 (r - 1) times the length of one: V, then ds. Without
// `grad`, only the V of iteration `iterations` + 1 is made, at `vectors`.
template <typename S, typename A>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    PrepareKernel(Sizes z, int64_t iterations, const A* __restrict__ sums,
                  const S* __restrict__ grad, A* vectors) {
  const Column column{z};
  const auto s = [&](int d) { return column.inside ? sums[column.in_array(d)] : A{0}; };
  for (int64_t r = 1; r < iterations + (grad == nullptr); ++r) {
    A square = 0;
    column.Each([&](int d) { square += s(d) * s(d); });
    const A scale = SquashScale(column.Sum(square), A{z.epsilon});
    const A* const v = grad != nullptr ? vectors + 2 * (r - 1) * z.length : vectors;
    A* const next_v = grad != nullptr ? vectors + 2 * r * z.length : vectors;
    column.Each([&](int d) {
      const int64_t at = column.in_vector(d);
      next_v[at] = r > 1 ? v[at] + scale * s(d) : scale * s(d);
    });
    sums += z.batch * z.out_caps * z.out_dim;
  }
  if (grad == nullptr) return;
  SquashGradient(
      column, s,
      [&](int d) { return column.inside ? Widen(grad[column.in_array(d)]) : A{0}; },
      vectors + (2 * iterations - 1) * z.length);
}

// From an iteration's dV back to the iteration before: dv, zero before where `first`,
// += dV, and ds from that dv and the `sums` of that iteration.
template <typename A>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    FinishBackwardKernel(Sizes z, int64_t chunks, const A* __restrict__ partial,
                         const A* __restrict__ sums, bool first, A* dv, A* ds) {
  const Column column{z};
  column.Each([&](int d) {
    const int64_t at = column.in_vector(d);
    const A sum = column.SumPartials(partial, chunks, d);
    dv[at] = first ? sum : dv[at] + sum;
  });
  SquashGradient(
      column, [&](int d) { return column.inside ? sums[column.in_array(d)] : A{0}; },
      [&](int d) { return dv[column.in_vector(d)]; }, ds);
}

}  // namespace capsops::capsule_routing::general

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_VECTORS_CUH_
