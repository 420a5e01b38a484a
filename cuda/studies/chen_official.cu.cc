// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// "Official APIs" of Chen et al.'s Table 1, its Algorithms 3 and 4: copies the matrices
// of all products side by side, multiplies them as one strided batch by cuBLAS, and
// adds up the products. The paper does not mention batches; here as many samples as fit
// in kMaxBytes are computed at once.
#include <algorithm>

#include "cuda/studies/chen_steps.cuh"
#include "cuda/studies/cublas.h"

namespace capsops::studies::capsule_conv {
namespace {

constexpr int64_t kMaxBytes = 1 << 30;

// Assigns consecutive buffers of floats, aligned to 64 bytes, in a workspace.
class Buffers {
 public:
  explicit Buffers(void* workspace) : base_(static_cast<float*>(workspace)) {}

  float* Take(int64_t elements) {
    const int64_t begin = used_;
    used_ += RoundUp(elements, 16);
    return base_ == nullptr ? nullptr : base_ + begin;
  }
  int64_t bytes() const { return used_ * sizeof(float); }

 private:
  float* base_;
  int64_t used_ = 0;
};

struct ForwardBuffers {
  float *flattened, *inputs, *weights, *outputs;

  ForwardBuffers(const Problem& p, int64_t samples, Buffers* buffers) {
    const Elements size(p);
    const Lengths length(p);
    flattened = buffers->Take(samples * length.flattened * size.input);
    inputs = buffers->Take(samples * length.products * size.input);
    weights = buffers->Take(samples * length.products * size.weights);
    outputs = buffers->Take(samples * length.products * size.output);
  }
};

struct BackwardBuffers : ForwardBuffers {
  float *sums, *ones;

  BackwardBuffers(const Problem& p, int64_t samples, Buffers* buffers)
      : ForwardBuffers(p, samples, buffers) {
    const int64_t position = Lengths(p).position;
    sums = buffers->Take(p.out_channels * position * Elements(p).weights);
    ones = buffers->Take(samples * p.out_height * p.out_width);
  }
};

template <typename B>
int64_t Bytes(const Problem& p, int64_t samples) {
  Buffers buffers(nullptr);
  B(p, samples, &buffers);
  return buffers.bytes();
}
template <typename B>
int64_t Samples(const Problem& p) {
  if (p.batch == 0) return 0;
  const int64_t fit = kMaxBytes / std::max<int64_t>(1, Bytes<B>(p, 1));
  return std::min(p.batch, std::max<int64_t>(1, fit));
}
template <typename B>
int64_t Workspace(const Problem& p) {
  return Bytes<B>(p, Samples<B>(p));
}

// Calls body(problem, first sample) for each group of samples.
template <typename B, typename Body>
LaunchError ForEachGroup(const Problem& p, const Body& body) {
  const int64_t samples = Samples<B>(p);
  LaunchError error;
  for (int64_t n = 0; error.empty() && n < p.batch; n += samples) {
    Problem group = p;
    group.batch = std::min(samples, p.batch - n);
    error = body(group, n);
  }
  return error;
}

// Runs steps one after the other, and keeps the first error.
class Steps {
 public:
  Steps(const GpuExec& exec, const char* name) : exec_(exec), name_(name) {}

  template <typename Step>
  Steps& operator()(int64_t count, const Step& step) {
    if (error_.empty()) error_ = ForEach(exec_, name_, count, step);
    return *this;
  }
  const LaunchError& error() const { return error_; }

 private:
  const GpuExec& exec_;
  const char* name_;
  LaunchError error_;
};

bool Empty(const Problem& p) {
  return p.batch * Lengths(p).products * p.pose_rows * p.pose_inner * p.pose_columns ==
         0;
}

LaunchError Forward(const GpuExec& exec, const Problem& p, const float* input,
                    const float* weights, float* output, void* workspace) {
  const Elements size(p);
  if (Empty(p)) return ZeroOutput(exec, p, output);
  Cublas cublas(exec);
  if (!cublas.error().empty()) return cublas.error();
  return ForEachGroup<ForwardBuffers>(p, [&](const Problem& group, int64_t n) {
    Buffers buffers(workspace);
    const ForwardBuffers b(group, group.batch, &buffers);
    const Lengths length(group);
    const int64_t flattened = group.batch * length.flattened * size.input;
    const int64_t products = group.batch * length.products;
    const float* const images = input + n * InputMatrices(p) / p.batch * size.input;
    float* const results = output + n * OutputMatrices(p) / p.batch * size.output;
    Steps steps(exec, kForward);
    steps(flattened, CapsuleIm2col{group, images, b.flattened});
    steps(products * size.input, InputExtend{flattened, b.flattened, b.inputs});
    steps(products * size.weights,
          KernelExtend{group, length.position, weights, b.weights});
    cublas.MultiplyStrided(products, p.pose_rows, p.pose_columns, p.pose_inner,
                           {b.inputs, false, size.input},
                           {b.weights, false, size.weights}, b.outputs, size.output,
                           false);
    steps(OutputMatrices(group) * size.output,
          OutputReduce{group, length.position, b.outputs, results});
    return steps.error().empty() ? cublas.error() : steps.error();
  });
}

// Recomputes the extended input, which Algorithm 4 reuses: ops keep no state.
LaunchError Backward(const GpuExec& exec, const Problem& p, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights, void* workspace) {
  const Elements size(p);
  const int64_t all_inputs = InputMatrices(p) * size.input;
  const int64_t all_weights = WeightsMatrices(p) * size.weights;
  if (Empty(p)) return ZeroGradients(exec, p, grad_input, grad_weights);
  Cublas cublas(exec);
  if (!cublas.error().empty()) return cublas.error();
  const float* sums = nullptr;
  const LaunchError error =
      ForEachGroup<BackwardBuffers>(p, [&](const Problem& group, int64_t n) {
        Buffers buffers(workspace);
        // Uses the layout of the largest group, so that `sums` keeps its address.
        const BackwardBuffers b(group, Samples<BackwardBuffers>(p), &buffers);
        const Lengths length(group);
        const int64_t flattened = group.batch * length.flattened * size.input;
        const int64_t products = group.batch * length.products;
        const int64_t pixels = group.batch * p.out_height * p.out_width;
        const int64_t row = length.position * size.weights;
        const float* const images = input + n * all_inputs / p.batch;
        const float* const above = grad + n * OutputMatrices(p) / p.batch * size.output;
        sums = b.sums;
        Steps steps(exec, kBackward);
        steps(flattened, CapsuleIm2col{group, images, b.flattened});
        steps(products * size.input, InputExtend{flattened, b.flattened, b.inputs});
        steps(products * size.output,
              OutputExtend{group, length.position, above, b.outputs});
        cublas.MultiplyStrided(products, p.pose_inner, p.pose_columns, p.pose_rows,
                               {b.inputs, true, size.input},
                               {b.outputs, false, size.output}, b.weights, size.weights,
                               false);
        steps(pixels, Ones{b.ones});
        cublas.MultiplyStrided(p.out_channels, 1, row, pixels, {b.ones},
                               {b.weights, false, pixels * row}, b.sums, row, n > 0);
        steps(products * size.weights,
              KernelExtend{group, length.position, weights, b.weights});
        cublas.MultiplyStrided(products, p.pose_rows, p.pose_inner, p.pose_columns,
                               {b.outputs, false, size.output},
                               {b.weights, true, size.weights}, b.inputs, size.input,
                               false);
        steps(flattened, InputReduce{p.out_channels, flattened, b.inputs, b.flattened});
        steps(InputMatrices(group) * size.input,
              CapsuleCol2im{group, length.position, b.flattened,
                            grad_input + n * all_inputs / p.batch});
        return steps.error().empty() ? cublas.error() : steps.error();
      });
  if (!error.empty()) return error;
  return ForEach(exec, kBackward, all_weights,
                 KernelTranspose{p, Lengths(p).position, sums, grad_weights});
}

}  // namespace

const Scheme kChenOfficial = {
    "official", Any, Workspace<ForwardBuffers>, Forward, Workspace<BackwardBuffers>,
    Backward};

}  // namespace capsops::studies::capsule_conv
