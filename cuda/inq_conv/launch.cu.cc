// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A convolution is a capsule convolution whose poses have one row, and is computed by
// the same products on tensor cores; its filter is packed from codes. Powers of two are
// exact in every type, so that in float only the activations are split where TF32 is
// not allowed: in two parts of TF32, or in three of bfloat16 for products of
// warpgroups, which are twice as fast and lose nothing.
#include "cc/launch/inq_conv.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/tensor_cores.cuh"
#include "cuda/inq_conv/codes.cuh"

namespace capsops::capsule_conv::tiled {
CAPSOPS_SHARED_PRODUCTS(extern template)
}  // namespace capsops::capsule_conv::tiled

namespace capsops::inq_conv {
namespace {

using capsule_conv::tiled::Task;

// InqConv, or its input gradient.
struct Convolution {
  bool backward;
  int levels;
  int64_t codes, source, target;  // elements
  std::vector<Task> tasks;        // none where they do not fit tensor cores' kernels
  capsule_conv::Problem poses;    // with weights in their own layout

  Convolution(const Problem& p, bool backward)
      : backward(backward),
        levels(1 << (p.bits - 2)),
        codes(p.kernel_height * p.kernel_width * p.in_channels * p.out_channels),
        source(p.batch * p.in_height * p.in_width * p.in_channels),
        target(p.batch * p.out_height * p.out_width * p.out_channels) {
    using capsule_conv::kQuad;
    const int64_t in = p.in_channels % kQuad == 0 ? kQuad : p.in_channels;
    const int64_t out = p.out_channels % kQuad == 0 ? kQuad : p.out_channels;
    if (backward) std::swap(source, target);
    if (source > 0 && target > 0) {
      const capsule_conv::Problem quads = AsPoses(p, in, out);
      tasks = backward ? capsule_conv::tiled::InputGradientTasks(quads)
                       : capsule_conv::tiled::ForwardTasks(quads);
      poses = AsPoses(p, p.in_channels, p.out_channels);
    } else {
      poses = AsPoses(p, 1, 1);
    }
    for (Task& task : tasks) {
      capsule_conv::Filter& filter = task.filter;
      filter.tap = p.in_channels * p.out_channels;
      filter.channel = in * p.out_channels;
      filter.element = p.out_channels;
      filter.out_channel = out;
      filter.out_element = 1;
      if (backward) {
        std::swap(filter.channel, filter.out_channel);
        std::swap(filter.element, filter.out_element);
      }
    }
  }
};

// Of float where TF32 is not allowed.
constexpr Tf32 kFull = Tf32::kSplitLeft;

// Bytes of the packed filter, -1 where tensor cores' kernels do not do.
template <typename T>
int64_t PackedBytes(const GpuExec& exec, const Convolution& conv) {
  // More powers of two than float16 has.
  if (std::is_same_v<T, Float16> && conv.levels > 16) return -1;
  return capsule_conv::tiled::Workspace<T, kFull>(exec, conv.tasks);
}

template <typename T>
LaunchError RunTiled(const GpuExec& exec, const Convolution& conv, const uint8_t* codes,
                     int32_t top_exponent, const T* source, T* target,
                     void* workspace) {
  using S = CudaType<T>;
  const Exponents exponents = Exponents::Of<S>(top_exponent, conv.levels);
  const CodedWeights<S> weights{codes, conv.levels, exponents.top};
  uint32_t* const packed = static_cast<uint32_t*>(workspace);
  using namespace capsule_conv::tiled;
  return WithPrecision<T, kFull>(exec, [&](auto precision) -> LaunchError {
    for (const Task& task : conv.tasks) {
      LaunchError error = PackTask<S, precision.value>(exec, task, weights, packed);
      if (error.empty()) {
        error = MultiplyPacked<S, precision.value>(exec, task, Native(source), packed,
                                                   Native(target), exponents.scale());
      }
      if (!error.empty()) return error;
    }
    return {};
  });
}

int64_t Rounded(int64_t bytes) { return CeilDivide(bytes, 64) * 64; }

// The rest: 16-bit types in float, float and double by capsule convolution of decoded
// weights.
template <typename T>
constexpr bool kWidened = !std::is_same_v<T, float> && !std::is_same_v<T, double>;

// Numbers of 16 bits are exact in TF32.
GpuExec WideExec(GpuExec exec) {
  exec.tf32 = true;
  return exec;
}

template <typename T>
int64_t Workspace(const GpuExec& exec, const Convolution& conv) {
  const int64_t packed = PackedBytes<T>(exec, conv);
  if (packed >= 0) return packed;
  if constexpr (kWidened<T>) {
    return Rounded(conv.source * 4) + Rounded(conv.target * 4) +
           Workspace<float>(WideExec(exec), conv);
  } else {
    const int64_t bytes =
        conv.backward ? capsule_conv::BackpropInputWorkspace<T>(exec, conv.poses)
                      : capsule_conv::ForwardWorkspace<T>(exec, conv.poses);
    return Rounded(conv.codes * sizeof(T)) + bytes;
  }
}

template <typename T>
LaunchError Run(const GpuExec& exec, const Convolution& conv, const uint8_t* codes,
                int32_t top_exponent, const T* source, T* target, void* workspace);

template <typename T>
LaunchError RunWidened(const GpuExec& exec, const Convolution& conv,
                       const uint8_t* codes, int32_t top_exponent, const T* source,
                       T* target, char* workspace) {
  float* const wide_source = reinterpret_cast<float*>(workspace);
  workspace += Rounded(conv.source * 4);
  float* const wide_target = reinterpret_cast<float*>(workspace);
  workspace += Rounded(conv.target * 4);
  LaunchError error = ForEach(exec, conv.source, ConvertKernel<CudaType<T>, float>,
                              Native(source), conv.source, wide_source);
  if (error.empty()) {
    error = Run<float>(WideExec(exec), conv, codes, top_exponent, wide_source,
                       wide_target, workspace);
  }
  if (error.empty()) {
    error = ForEach(exec, conv.target, ConvertKernel<float, CudaType<T>>, wide_target,
                    conv.target, Native(target));
  }
  return error;
}

template <typename T>
LaunchError RunDecoded(const GpuExec& exec, const Convolution& conv,
                       const uint8_t* codes, int32_t top_exponent, const T* source,
                       T* target, char* workspace) {
  const Exponents exponents = Exponents::Of<T>(top_exponent, conv.levels);
  T* const weights = reinterpret_cast<T*>(workspace);
  workspace += Rounded(conv.codes * sizeof(T));
  LaunchError error =
      ForEach(exec, conv.codes, DecodeKernel<T>,
              CodedWeights<T>{codes, conv.levels, exponents.top}, conv.codes, weights);
  if (error.empty()) {
    error = conv.backward ? capsule_conv::BackpropInput(exec, conv.poses, weights,
                                                        source, target, workspace)
                          : capsule_conv::Forward(exec, conv.poses, source, weights,
                                                  target, workspace);
  }
  if (error.empty() && exponents.shift != 0) {
    error = ForEach(exec, conv.target, ScaleKernel<T>, exponents.shift, conv.target,
                    target);
  }
  return error;
}

template <typename T>
LaunchError Run(const GpuExec& exec, const Convolution& conv, const uint8_t* codes,
                int32_t top_exponent, const T* source, T* target, void* workspace) {
  if constexpr (!std::is_same_v<T, double>) {
    if (PackedBytes<T>(exec, conv) >= 0) {
      return RunTiled(exec, conv, codes, top_exponent, source, target, workspace);
    }
  }
  char* const bytes = static_cast<char*>(workspace);
  if constexpr (kWidened<T>) {
    return RunWidened(exec, conv, codes, top_exponent, source, target, bytes);
  } else {
    return RunDecoded(exec, conv, codes, top_exponent, source, target, bytes);
  }
}

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const GpuExec& exec, const Problem& problem) {
  return Workspace<T>(exec, Convolution(problem, false));
}

template <typename T>
int64_t BackpropInputWorkspace(const GpuExec& exec, const Problem& problem) {
  return Workspace<T>(exec, Convolution(problem, true));
}

template <typename T>
LaunchError Forward(const GpuExec& exec, const Problem& problem, const T* input,
                    const uint8_t* codes, int32_t top_exponent, T* output,
                    void* workspace) {
  return Run(exec, Convolution(problem, false), codes, top_exponent, input, output,
             workspace);
}

template <typename T>
LaunchError BackpropInput(const GpuExec& exec, const Problem& problem,
                          const uint8_t* codes, int32_t top_exponent, const T* grad,
                          T* grad_input, void* workspace) {
  return Run(exec, Convolution(problem, true), codes, top_exponent, grad, grad_input,
             workspace);
}

#define CAPSOPS_INSTANTIATE(T)                                                       \
  template int64_t ForwardWorkspace<T>(const GpuExec&, const Problem&);              \
  template int64_t BackpropInputWorkspace<T>(const GpuExec&, const Problem&);        \
  template LaunchError Forward(const GpuExec&, const Problem&, const T*,             \
                               const uint8_t*, int32_t, T*, void*);                  \
  template LaunchError BackpropInput(const GpuExec&, const Problem&, const uint8_t*, \
                                     int32_t, const T*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::inq_conv
