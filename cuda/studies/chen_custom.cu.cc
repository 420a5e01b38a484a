// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// "Custom APIs" of Chen et al.'s Table 1, its Algorithm 5: all products of small
// matrices in one parallel loop. Each thread finds its product's three indices and adds
// the result to the output with atomics, so that the last bits differ from run to run.
#include "cuda/studies/chen.cuh"

namespace capsops::studies::capsule_conv {
namespace {

// Decodes an index in the order of the loops of Algorithm 2.
__device__ Place PlaceOf(const Problem& p, int64_t index) {
  Axes axes{index};
  Place at;
  at.g = axes.Take(p.pose_depth);
  at.kw = axes.Take(p.kernel_width);
  at.kh = axes.Take(p.kernel_height);
  at.c = axes.Take(p.in_channels);
  at.x = axes.Take(p.out_width);
  at.y = axes.Take(p.out_height);
  at.o = axes.Take(p.out_channels);
  at.n = axes.rest;
  return at;
}

int64_t Products(const Problem& p) {
  return OutputMatrices(p) * p.kernel_height * p.kernel_width * p.in_channels;
}

// A matrix, with the strides of its rows and columns.
struct Matrix {
  const float* data;
  int row_stride, column_stride;
  __device__ float operator()(int row, int column) const {
    return data[row * row_stride + column * column_stride];
  }
};

// output[row, column] += the sum over i of a(row, i) b(i, column).
__device__ void MatrixMultiply(int rows, int columns, int inner, const Matrix& a,
                               const Matrix& b, float* output) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      float sum = 0;
      for (int i = 0; i < inner; ++i) sum += a(row, i) * b(i, column);
      atomicAdd(output + row * columns + column, sum);
    }
  }
}

// The product of each pass reads two of the three tensors and adds to the third.
struct Multiply {
  static __device__ void Add(const Problem& p, float* input, float* weights,
                             float* output) {
    const int rows = p.pose_rows, inner = p.pose_inner, columns = p.pose_columns;
    MatrixMultiply(rows, columns, inner, {input, inner, 1}, {weights, columns, 1},
                   output);
  }
};
struct BackpropWeights {
  static __device__ void Add(const Problem& p, float* input, float* grad_weights,
                             float* grad) {
    const int rows = p.pose_rows, inner = p.pose_inner, columns = p.pose_columns;
    MatrixMultiply(inner, columns, rows, {input, 1, inner}, {grad, columns, 1},
                   grad_weights);
  }
};
struct BackpropInput {
  static __device__ void Add(const Problem& p, float* grad_input, float* weights,
                             float* grad) {
    const int rows = p.pose_rows, inner = p.pose_inner, columns = p.pose_columns;
    MatrixMultiply(rows, inner, columns, {grad, columns, 1}, {weights, 1, columns},
                   grad_input);
  }
};

template <typename Pass>
struct Product {
  Problem p;
  float *input, *weights, *output;  // or their gradients

  __device__ void operator()(int64_t index) const {
    const Place at = PlaceOf(p, index);
    const int64_t i = InputIndex(p, at);
    if (i < 0) return;
    const Elements size(p);
    Pass::Add(p, input + i * size.input, weights + WeightsIndex(p, at) * size.weights,
              output + OutputIndex(p, at) * size.output);
  }
};

template <typename Pass>
LaunchError AddProducts(const GpuExec& exec, const char* name, const Problem& p,
                        const float* input, const float* weights, const float* output) {
  return ForEach(
      exec, name, Products(p),
      Product<Pass>{p, const_cast<float*>(input), const_cast<float*>(weights),
                    const_cast<float*>(output)});
}

LaunchError Forward(const GpuExec& exec, const Problem& p, const float* input,
                    const float* weights, float* output, void*) {
  CAPSOPS_RETURN_IF_ERROR(ZeroOutput(exec, p, output));
  return AddProducts<Multiply>(exec, kForward, p, input, weights, output);
}

LaunchError Backward(const GpuExec& exec, const Problem& p, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights, void*) {
  CAPSOPS_RETURN_IF_ERROR(ZeroGradients(exec, p, grad_input, grad_weights));
  CAPSOPS_RETURN_IF_ERROR(
      AddProducts<BackpropWeights>(exec, kBackward, p, input, grad_weights, grad));
  return AddProducts<BackpropInput>(exec, kBackward, p, grad_input, weights, grad);
}

}  // namespace

const Scheme kChenCustom = {"custom", Any, NoWorkspace, Forward, NoWorkspace, Backward};

}  // namespace capsops::studies::capsule_conv
