// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// "GPU" of Chen et al.'s Table 1, the paper's baseline: the loops of Algorithm 2 on the
// host, and one call of cuBLAS per small product, as in the authors' published layers.
#include "cuda/studies/chen.cuh"
#include "cuda/studies/cublas.h"

namespace capsops::studies::capsule_conv {
namespace {

// Calls body(place) for every product that reads a pixel of the image.
template <typename Body>
void ForEachProduct(const Problem& p, const Body& body) {
  Place at;
  for (at.n = 0; at.n < p.batch; ++at.n) {
    for (at.o = 0; at.o < p.out_channels; ++at.o) {
      for (at.y = 0; at.y < p.out_height; ++at.y) {
        for (at.x = 0; at.x < p.out_width; ++at.x) {
          for (at.c = 0; at.c < p.in_channels; ++at.c) {
            for (at.kh = 0; at.kh < p.kernel_height; ++at.kh) {
              for (at.kw = 0; at.kw < p.kernel_width; ++at.kw) {
                for (at.g = 0; at.g < p.pose_depth; ++at.g) {
                  if (InputIndex(p, at) >= 0) body(at);
                }
              }
            }
          }
        }
      }
    }
  }
}

// cuBLAS refuses empty matrices; their products add nothing.
bool Empty(const Problem& p) {
  return p.pose_rows * p.pose_inner * p.pose_columns == 0;
}

LaunchError Forward(const GpuExec& exec, const Problem& p, const float* input,
                    const float* weights, float* output, void*) {
  const Elements size(p);
  const LaunchError error = ZeroOutput(exec, p, output);
  if (!error.empty() || Empty(p)) return error;
  Cublas cublas(exec);
  ForEachProduct(p, [&](const Place& at) {
    cublas.Multiply(p.pose_rows, p.pose_columns, p.pose_inner,
                    {input + InputIndex(p, at) * size.input},
                    {weights + WeightsIndex(p, at) * size.weights},
                    output + OutputIndex(p, at) * size.output, true);
  });
  return cublas.error();
}

LaunchError Backward(const GpuExec& exec, const Problem& p, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights, void*) {
  const Elements size(p);
  const LaunchError error = ZeroGradients(exec, p, grad_input, grad_weights);
  if (!error.empty() || Empty(p)) return error;
  Cublas cublas(exec);
  ForEachProduct(p, [&](const Place& at) {
    const int64_t i = InputIndex(p, at) * size.input;
    const int64_t w = WeightsIndex(p, at) * size.weights;
    const float* const above = grad + OutputIndex(p, at) * size.output;
    cublas.Multiply(p.pose_inner, p.pose_columns, p.pose_rows, {input + i, true},
                    {above}, grad_weights + w, true);
    cublas.Multiply(p.pose_rows, p.pose_inner, p.pose_columns, {above},
                    {weights + w, true}, grad_input + i, true);
  });
  return cublas.error();
}

}  // namespace

const Scheme kChenGemms = {"gemms", Any, NoWorkspace, Forward, NoWorkspace, Backward};

}  // namespace capsops::studies::capsule_conv
