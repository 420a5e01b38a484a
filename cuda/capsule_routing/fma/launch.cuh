// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule routing of any sizes and types, also empty ones, in FMA: how the work is cut,
// and the launches. The functions are those of the boundary,
// cc/launch/capsule_routing.h.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_LAUNCH_CUH_

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/fma/gradients.cuh"
#include "cuda/capsule_routing/fma/pass.cuh"
#include "cuda/capsule_routing/fma/vectors.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::general {

// Workspace that is spent to have more blocks, in bytes.
constexpr int64_t kBlocksBytes = int64_t{64} << 20;
// Input capsules of a chunk at least.
constexpr int64_t kChunkCaps = 4;

inline int64_t RoundUp(int64_t value, int64_t multiple) {
  return CeilDivide(value, multiple) * multiple;
}

template <typename A>
Sizes SizesOf(const Problem& p) {
  Sizes z{};
  z.batch = p.batch;
  z.padded = RoundUp(p.batch, kSamples);
  z.in_caps = p.in_caps;
  z.out_caps = static_cast<int>(p.out_caps);
  z.out_dim = static_cast<int>(p.out_dim);
  z.in_dim = static_cast<int>(p.in_dim);
  z.depth = static_cast<int>(RoundUp(p.in_dim, kPack<A>));
  z.row_blocks = static_cast<int>(CeilDivide(p.out_dim, kBlockRows));
  z.epsilon = p.epsilon;
  z.matrix = p.out_dim * p.in_dim;
  z.matrices = p.out_caps * z.matrix;
  z.length = z.padded * p.out_caps * p.out_dim;
  return z;
}

// Warps of a block, such that few of them idle and multiprocessors have about
// kMaxWarps.
struct Teams {
  int warps = 1;
  int each;        // blocks that run at a time on a multiprocessor
  int64_t blocks;  // and on the device

  explicit Teams(const Sizes& z) {
    double best = 0;
    const int items = std::max(1, z.items());
    for (int w = kMaxWarps; w >= std::min(4, items); --w) {
      const double busy = static_cast<double>(items) / RoundUp(items, w);
      const double score = busy * (kMaxWarps / w * w);
      if (score > best) {
        best = score;
        warps = w;
      }
    }
    each = kMaxWarps / warps;
    blocks = int64_t{each} * std::max(1, Attribute(cudaDevAttrMultiProcessorCount));
  }

  // What a block may take of shared memory, if all take half of it: the first-level
  // cache has work for the rest.
  int64_t SharedBytes() const {
    return std::min(Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                    Attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 / each);
  }

 private:
  static int Attribute(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, attribute, device);
    return value;
  }
};

// How a pass is cut into blocks.
template <typename A>
struct PassPlan {
  Sizes z;
  Teams teams;
  int tile;
  int64_t groups, chunks;
  int64_t elements;  // that a block works on
  bool spills;       // those lie in the workspace

  PassPlan(const Problem& p, bool gradient) : z(SizesOf<A>(p)), teams(z) {
    groups = z.padded / kSamples;
    const int64_t of_capsule =
        z.depth * kPitch<A> + int64_t{gradient ? 2 : 1} * z.out_caps * kSamples;
    const int64_t fits = teams.SharedBytes() / (of_capsule * sizeof(A));
    spills = fits < 2;
    tile = spills ? 4 : static_cast<int>(std::min(fits, int64_t{16}));
    elements = tile * of_capsule;
    const int64_t block_bytes =
        (z.length / groups + (spills ? elements : 1)) * sizeof(A);
    chunks = std::max(int64_t{1}, std::min({teams.blocks / groups,
                                            kBlocksBytes / block_bytes / groups,
                                            CeilDivide(z.in_caps, kChunkCaps)}));
  }

  int shared() const { return spills ? 0 : elements * sizeof(A); }
  int64_t scratch() const { return spills ? chunks * groups * elements : 0; }
};

// How the gradients are.
template <typename S, typename A>
struct GradientsPlan {
  Sizes z;
  Teams teams;
  GradientsLayout layout;
  bool spills;
  int64_t blocks;

  explicit GradientsPlan(const Problem& p) : z(SizesOf<A>(p)), teams(z) {
    const int adders = std::min(teams.warps, z.items());
    const auto with = [&](int tile) {
      layout = GradientsLayout::Of<A>(z, tile, p.iterations, adders);
      layout.size = RoundUp(layout.size, kPack<A>);
      return layout.size * static_cast<int64_t>(sizeof(A)) <= teams.SharedBytes();
    };
    spills = !with(4) && !with(2) && !with(1);
    if (spills) with(2);
    blocks = CeilDivide(z.in_caps, layout.tile);
    if (block_scratch() > 0) {
      const int64_t affordable = kBlocksBytes / (block_scratch() * sizeof(A));
      blocks =
          std::min(blocks, std::max(int64_t{1}, std::min(affordable, teams.blocks)));
    }
  }

  int64_t weights_scratch() const {
    return std::is_same_v<S, A> ? 0 : layout.tile * z.matrices;
  }
  int64_t block_scratch() const {
    return (spills ? layout.size : 0) + weights_scratch();
  }
  int shared() const { return spills ? 0 : layout.size * sizeof(A); }
};

inline bool Empty(const Problem& p) {
  return std::min({p.batch, p.in_caps, p.out_caps, p.out_dim, p.in_dim}) == 0;
}

// All there is: the limit is the kernel's, and another thread may be about to launch
// it.
template <typename Kernel>
LaunchError AllowShared(const char* name, Kernel* kernel, int bytes) {
  if (bytes <= 48 << 10) return {};
  return CheckLaunch(
      name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 CurrentDevice().shared));
}

template <typename T>
LaunchError Clear(const GpuExec& exec, const char* name, T* to, int64_t count) {
  if (count == 0) return {};
  return CheckLaunch(name, cudaMemsetAsync(to, 0, count * sizeof(T), exec.stream));
}

template <typename A, typename T>
bool VectorWeights(const Problem& p, const T* weights) {
  return p.in_dim % kPack<A> == 0 && Aligned16(weights);
}

template <typename T, bool kGradient, typename A = Accumulator<T>>
LaunchError RunPass(const GpuExec& exec, const char* name, const PassPlan<A>& plan,
                    const T* input, const T* weights, const T* logits, const A* vectors,
                    A* partial, T* coefficients, A* scratch) {
  auto* const kernel = &PassKernel<CudaType<T>, A, kGradient>;
  for (const LaunchError& error : {CheckGrid(name, plan.groups * plan.z.out_caps),
                                   AllowShared(name, kernel, plan.shared())}) {
    if (!error.empty()) return error;
  }
  const dim3 grid(plan.groups, plan.chunks);
  kernel<<<grid, plan.teams.warps * kLanes, plan.shared(), exec.stream>>>(
      plan.z, plan.tile, Native(input), Native(weights), Native(logits), vectors,
      partial, Native(coefficients), plan.spills ? scratch : nullptr, plan.elements);
  return CheckLaunch(name);
}

template <typename T, typename A = Accumulator<T>>
int64_t ForwardWorkspace(const Problem& p) {
  if (Empty(p)) return 0;
  const PassPlan<A> plan(p, false);
  return ((plan.chunks + 2) * plan.z.length + plan.scratch()) * sizeof(A);
}

template <typename T, typename A = Accumulator<T>>
int64_t BackwardWorkspace(const Problem& p) {
  if (Empty(p)) return 0;
  const PassPlan<A> plan(p, true);
  const GradientsPlan<T, A> gradients(p);
  const int64_t pass = plan.chunks * plan.z.length + plan.scratch();
  return (2 * p.iterations * plan.z.length +
          std::max(pass, gradients.blocks * gradients.block_scratch())) *
         sizeof(A);
}

template <typename T, typename A = Accumulator<T>>
int64_t CoefficientsWorkspace(const Problem& p) {
  if (p.batch == 0 || p.in_caps == 0 || p.out_caps == 0) return 0;
  const PassPlan<A> plan(p, false);
  return (plan.z.length + plan.scratch()) * sizeof(A);
}

template <typename T>
LaunchError Forward(const GpuExec& exec, const Problem& p, const T* input,
                    const T* weights, const T* logits, T* output, Sum<T>* sums,
                    void* workspace) {
  using A = Accumulator<T>;
  const char* const name = "CapsuleRouting";
  const int64_t outputs = p.batch * p.out_caps * p.out_dim;
  if (Empty(p)) {
    const LaunchError error = Clear(exec, name, output, outputs);
    return error.empty() ? Clear(exec, name, sums, p.iterations * outputs) : error;
  }
  PassPlan<A> plan(p, false);
  plan.z.vector = VectorWeights<A>(p, weights);
  const int64_t length = plan.z.length;
  A* const v = static_cast<A*>(workspace);
  A* const partial = v + 2 * length;
  for (int64_t r = 0; r < p.iterations; ++r) {
    const A* const now = r > 0 ? v + r % 2 * length : nullptr;
    LaunchError error =
        RunPass<T, false>(exec, name, plan, input, weights, logits, now, partial,
                          static_cast<T*>(nullptr), partial + plan.chunks * length);
    if (!error.empty()) return error;
    FinishKernel<<<plan.groups * p.out_caps, kFinishWarps * kLanes, 0, exec.stream>>>(
        plan.z, plan.chunks, partial, now, v + (r + 1) % 2 * length, sums + r * outputs,
        r + 1 == p.iterations ? Native(output) : nullptr);
    error = CheckLaunch(name);
    if (!error.empty()) return error;
  }
  return {};
}

template <typename T>
LaunchError Backward(const GpuExec& exec, const Problem& p, const T* grad,
                     const T* input, const T* weights, const T* logits,
                     const Sum<T>* sums, T* grad_input, T* grad_weights, T* grad_logits,
                     void* workspace) {
  using A = Accumulator<T>;
  const char* const name = "CapsuleRoutingGrad";
  const int64_t outputs = p.batch * p.out_caps * p.out_dim;
  if (Empty(p)) {
    for (const LaunchError& error :
         {Clear(exec, name, grad_input, p.batch * p.in_caps * p.in_dim),
          Clear(exec, name, grad_weights,
                p.in_caps * p.out_caps * p.out_dim * p.in_dim),
          Clear(exec, name, grad_logits, p.in_caps * p.out_caps)}) {
      if (!error.empty()) return error;
    }
    return {};
  }
  PassPlan<A> plan(p, true);
  plan.z.vector = VectorWeights<A>(p, weights);
  const int64_t length = plan.z.length;
  const int64_t columns = plan.groups * p.out_caps;
  // Iteration 1 has no V: dv is in its place.
  A* const vectors = static_cast<A*>(workspace);
  A* const dv = vectors;
  A* const rest = vectors + 2 * p.iterations * length;
  LaunchError error = CheckGrid(name, columns);
  if (!error.empty()) return error;
  PrepareKernel<<<columns, kFinishWarps * kLanes, 0, exec.stream>>>(
      plan.z, p.iterations, sums, Native(grad), vectors);
  error = CheckLaunch(name);
  for (int64_t r = p.iterations - 1; r > 0 && error.empty(); --r) {
    error = RunPass<T, true>(exec, name, plan, input, weights, logits,
                             vectors + 2 * r * length, rest, static_cast<T*>(nullptr),
                             rest + plan.chunks * length);
    if (!error.empty()) break;
    FinishBackwardKernel<<<columns, kFinishWarps * kLanes, 0, exec.stream>>>(
        plan.z, plan.chunks, rest, sums + (r - 1) * outputs, r + 1 == p.iterations, dv,
        vectors + (2 * r - 1) * length);
    error = CheckLaunch(name);
  }
  if (!error.empty()) return error;
  const GradientsPlan<T, A> last(p);
  auto* const kernel = &GradientsKernel<CudaType<T>, A>;
  for (const LaunchError& check :
       {CheckGrid(name, last.blocks), AllowShared(name, kernel, last.shared())}) {
    if (!check.empty()) return check;
  }
  kernel<<<last.blocks, last.teams.warps * kLanes, last.shared(), exec.stream>>>(
      plan.z, last.layout, Native(input), Native(weights), Native(logits), vectors,
      Native(grad_input), Native(grad_weights), Native(grad_logits),
      last.spills ? rest : nullptr,
      rest + (last.spills ? last.blocks * last.layout.size : 0));
  return CheckLaunch(name);
}

template <typename T>
LaunchError Coefficients(const GpuExec& exec, const Problem& p, const T* input,
                         const T* weights, const T* logits, const Sum<T>* sums,
                         T* coefficients, void* workspace) {
  using A = Accumulator<T>;
  const char* const name = "CapsuleRoutingCoefficients";
  if (p.batch == 0 || p.in_caps == 0 || p.out_caps == 0) return {};
  PassPlan<A> plan(p, false);
  plan.z.vector = VectorWeights<A>(p, weights);
  A* const v = static_cast<A*>(workspace);
  const bool agreed = p.iterations > 0 && p.out_dim > 0 && p.in_dim > 0;
  if (agreed) {
    const LaunchError error = CheckGrid(name, plan.groups * p.out_caps);
    if (!error.empty()) return error;
    PrepareKernel<CudaType<T>>
        <<<plan.groups * p.out_caps, kFinishWarps * kLanes, 0, exec.stream>>>(
            plan.z, p.iterations, sums, nullptr, v);
    const LaunchError launch_error = CheckLaunch(name);
    if (!launch_error.empty()) return launch_error;
  }
  return RunPass<T, false>(exec, name, plan, input, weights, logits,
                           agreed ? v : nullptr, static_cast<A*>(nullptr), coefficients,
                           v + plan.z.length);
}

}  // namespace capsops::capsule_routing::general

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_LAUNCH_CUH_
