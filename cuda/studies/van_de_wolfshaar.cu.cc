// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The three kernels of van de Wolfshaar, "Cuda, TensorFlow And Capsule Networks": a
// thread computes an element of the result, finds its indices by division, and loads
// everything from global memory through the read-only cache. The launch is that of
// TensorFlow's GetCudaLaunchConfig: one block of 1024 threads per multiprocessor, whose
// threads loop over the elements. docs/notebook/papers.md describes how we read it.
#include <algorithm>
#include <cstdint>

#include "cc/launch/round.h"
#include "cuda/common/launch.cuh"
#include "cuda/studies/capsule_prediction.h"

namespace capsops::studies::capsule_prediction {
namespace {

constexpr int kThreads = 1024;

// Strides, by tensor (weights, input x, output) and axis.
struct Strides {
  int64_t w_d0, w_d1, w_d2;
  int64_t x_d0, x_d1;
  int64_t o_d0, o_d1, o_d2;
};

// CUDA_1D_KERNEL_LOOP with a 64-bit index.
template <typename Body>
__device__ void ForEachElement(int64_t size, const Body& body) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += int64_t{blockDim.x} * gridDim.x) {
    body(i);
  }
}

__global__ void PredictionKernel(const float* in, const float* weights, float* out,
                                 Strides s, int64_t in_dim, int64_t output_size) {
  ForEachElement(output_size, [&](int64_t i) {
    const int64_t b = i / s.o_d0;
    const int64_t ci = (i % s.o_d0) / s.o_d1;
    const int64_t cj = (i % s.o_d1) / s.o_d2;
    const int64_t e_out = i % s.o_d2;

    int64_t in_idx = b * s.x_d0 + ci * s.x_d1;
    int64_t w_idx = ci * s.w_d0 + cj * s.w_d1 + e_out * s.w_d2;
    float result = 0;
    for (int64_t v = 0; v < in_dim; ++v) {
      result += __ldg(in + in_idx++) * __ldg(weights + w_idx++);
    }
    out[i] = result;
  });
}

__global__ void InputGradKernel(const float* grad, const float* weights,
                                float* grad_input, Strides s, int64_t out_caps,
                                int64_t out_dim, int64_t in_dim, int64_t output_size) {
  ForEachElement(output_size, [&](int64_t i) {
    const int64_t b = i / s.x_d0;
    const int64_t ci = (i % s.x_d0) / s.x_d1;
    const int64_t e_in = i % s.x_d1;

    int64_t w_idx = ci * s.w_d0 + e_in;
    int64_t grad_idx = b * s.o_d0 + ci * s.o_d1;
    float result = 0;
    for (int64_t cj = 0; cj < out_caps; ++cj) {
      for (int64_t e_out = 0; e_out < out_dim; ++e_out) {
        result += __ldg(grad + grad_idx++) * __ldg(weights + w_idx);
        w_idx += in_dim;
      }
    }
    grad_input[i] = result;
  });
}

__global__ void WeightsGradKernel(const float* grad, const float* input,
                                  float* grad_weights, Strides s, int64_t batch_size,
                                  int64_t output_size) {
  ForEachElement(output_size, [&](int64_t i) {
    const int64_t ci = i / s.w_d0;
    const int64_t cj = (i % s.w_d0) / s.w_d1;
    const int64_t e_out = (i % s.w_d1) / s.w_d2;
    const int64_t e_in = i % s.w_d2;

    int64_t input_idx = ci * s.x_d1 + e_in;
    int64_t grad_idx = ci * s.o_d1 + cj * s.o_d2 + e_out;
    float result = 0;
    for (int64_t b = 0; b < batch_size; b++) {
      result += __ldg(grad + grad_idx) * __ldg(input + input_idx);
      input_idx += s.x_d0;
      grad_idx += s.o_d0;
    }
    grad_weights[i] = result;
  });
}

Strides StridesOf(const Problem& p) {
  const int64_t columns = p.out_caps * p.out_dim;
  return {columns * p.in_dim, p.out_dim * p.in_dim, p.in_dim, p.in_caps * p.in_dim,
          p.in_dim,           p.in_caps * columns,  columns,  p.out_dim};
}

// Launches a kernel whose last argument is the size of its result, unless that is 0.
template <typename... Parameters, typename... Arguments>
LaunchError Launch(const char* name, const GpuExec& exec, void (*kernel)(Parameters...),
                   int64_t size, const Arguments&... arguments) {
  if (size == 0) return {};
  const int64_t blocks =
      std::min<int64_t>(CeilDivide(size, kThreads), exec.device.processors);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, exec.stream>>>(arguments...,
                                                                      size);
  return CheckLaunch(name);
}

}  // namespace

LaunchError Forward(const GpuExec& exec, const Problem& p, const float* input,
                    const float* weights, float* output) {
  return Launch("CapsulePredictionStudy", exec, PredictionKernel,
                p.batch * p.in_caps * p.out_caps * p.out_dim, input, weights, output,
                StridesOf(p), p.in_dim);
}

LaunchError Backward(const GpuExec& exec, const Problem& p, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights) {
  const char* name = "CapsulePredictionStudyGrad";
  const Strides strides = StridesOf(p);
  CAPSOPS_RETURN_IF_ERROR(Launch(name, exec, InputGradKernel,
                                 p.batch * p.in_caps * p.in_dim, grad, weights,
                                 grad_input, strides, p.out_caps, p.out_dim, p.in_dim));
  return Launch(name, exec, WeightsGradKernel,
                p.in_caps * p.out_caps * p.out_dim * p.in_dim, grad, input,
                grad_weights, strides, p.batch);
}

}  // namespace capsops::studies::capsule_prediction
