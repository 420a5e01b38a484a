// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Between the passes of capsule routing of any sizes: adding up their partial sums,
// squash and its gradient. A block has one output capsule and one group of samples; a
// lane has a sample, and kFinishWarps warps share out its elements.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_VECTORS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_VECTORS_CUH_

#include "cuda/capsule_routing/fma/pass.cuh"
#include "cuda/capsule_routing/squash.cuh"

namespace capsops::capsule_routing::fma {

constexpr int kFinishWarps = 16;

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

  // Each of x summed over the threads of a sample.
  template <int N, typename A>
  __device__ void Sum(A (&x)[N]) const {
    __shared__ A parts[N][kFinishWarps][kLanes];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; ++n) parts[n][warp][lane] = x[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; ++n) {
      x[n] = 0;
#pragma unroll
      for (int w = 0; w < kFinishWarps; ++w) x[n] += parts[n][w][lane];
    }
  }

  // Of the vector whose elements s(d) gives.
  template <typename A, typename Read>
  __device__ Squash<A> SquashOf(const Read& s) const {
    A squares[2] = {};
    Each([&](int d) {
      const A x = s(d), small = x * kShrink<A>;
      squares[0] += x * x;
      squares[1] += small * small;
    });
    Sum(squares);
    return {squares[0], squares[1], A{z.epsilon}};
  }
};

// ds from s and dv, arrays that are read through s(d) and dv(d). Samples past the last
// get zeros.
template <typename A, typename Read, typename ReadGrad>
__device__ void SquashGradient(const Column& column, const Read& s, const ReadGrad& dv,
                               A* ds) {
  const Squash<A> squash = column.SquashOf<A>(s);
  A products[2] = {};
  column.Each([&](int d) {
    products[0] += s(d) * dv(d);
    products[1] += s(d) * kShrink<A> * dv(d);
  });
  column.Sum(products);
  const A slope = squash.Slope(products[0], products[1]);
  column.Each([&](int d) {
    ds[column.in_vector(d)] =
        column.inside ? squash.gain * dv(d) + slope * squash.Along(s(d)) : A{0};
  });
}

// Ends an iteration: sums = s, and either output = squash(s), or v, which is V of this
// iteration and anything in the `first`, becomes that of the next, V + squash(s).
template <typename S, typename A>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    FinishKernel(Sizes z, int64_t chunks, const A* __restrict__ partial, bool first,
                 A* v, A* sums, S* __restrict__ output) {
  const Column column{z};
  const Squash<A> squash = column.SquashOf<A>([&](int d) {
    if (!column.inside) return A{0};
    return sums[column.in_array(d)] = column.SumPartials(partial, chunks, d);
  });
  column.Each([&](int d) {
    const A squashed =
        column.inside ? squash.Along(sums[column.in_array(d)]) * squash.factor : A{0};
    if (output == nullptr) {
      const int64_t at = column.in_vector(d);
      v[at] = first ? squashed : v[at] + squashed;
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
    const Squash<A> squash = column.SquashOf<A>(s);
    const A* const v = grad != nullptr ? vectors + 2 * (r - 1) * z.length : vectors;
    A* const next_v = grad != nullptr ? vectors + 2 * r * z.length : vectors;
    column.Each([&](int d) {
      const int64_t at = column.in_vector(d);
      const A squashed = squash.factor * squash.Along(s(d));
      next_v[at] = r > 1 ? v[at] + squashed : squashed;
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

}  // namespace capsops::capsule_routing::fma

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_VECTORS_CUH_
