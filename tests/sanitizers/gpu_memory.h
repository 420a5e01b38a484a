// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Device memory for calls. A CUDA error ends the program, since nothing runs after it.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/sanitizers/gpu_call.h"
#include "tests/sanitizers/gpu_paths.h"

namespace capsops {

inline void Need(cudaError_t error, const std::string& where) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", where.c_str(), cudaGetErrorString(error));
  std::_Exit(2);  // without destructors, since other threads are still running
}

// Device memory of `bytes` bytes that begins `shift` bytes into an allocation and ends
// with it, so that memcheck reports any access past its end.
class Memory {
 public:
  explicit Memory(int64_t bytes, int64_t shift = 0) : bytes_(bytes) {
    if (bytes == 0) return;
    Need(cudaMalloc(&allocated_, bytes + shift), "cudaMalloc");
    data_ = static_cast<char*>(allocated_) + shift;
  }
  Memory(Memory&& other) noexcept
      : allocated_(std::exchange(other.allocated_, nullptr)),
        data_(other.data_),
        bytes_(other.bytes_) {}
  ~Memory() { cudaFree(allocated_); }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // These run on `stream`, in order with its kernels.
  void Fill(int byte, cudaStream_t stream) const {
    if (bytes_ > 0) Need(cudaMemsetAsync(data_, byte, bytes_, stream), "memset");
  }
  void Set(const Bytes& bytes, cudaStream_t stream) const {
    if (bytes_ == 0) return;
    Need(cudaMemcpyAsync(data_, bytes.data(), bytes_, cudaMemcpyDefault, stream),
         "copy to the GPU");
  }
  Bytes Get(cudaStream_t stream) const {
    Bytes bytes(bytes_);
    if (bytes_ > 0) {
      Need(cudaMemcpyAsync(bytes.data(), data_, bytes_, cudaMemcpyDefault, stream),
           "copy from the GPU");
      Need(cudaStreamSynchronize(stream), "copy from the GPU");
    }
    return bytes;
  }

 private:
  void* allocated_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_;
};

class Stream {
 public:
  Stream() {
    Need(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_;
};

// A call with its tensors on the GPU.
struct LoadedCall {
  Path* path;
  Call call;
  std::vector<Memory> tensors;
  std::vector<void*> pointers;

  LoadedCall(Path* of, Call planned, Source& draw, cudaStream_t stream)
      : path(of), call(std::move(planned)) {
    const bool shifted = !path->aligned() && draw.Below(2) == 1;
    // Some exponents exceed what kernels multiply by at once, or what the type holds.
    call.top_exponent = draw.Pick({3, 3, 3, 70, -70, 1000, -1000});
    // InqConvInt8 has its zero point in this place. Below 128, clipping never leaves
    // |x| smaller than it leaves x, so the results for magnitudes bound the terms.
    if (path->op == "InqConvInt8") call.top_exponent = draw.Pick({0, 3, 100});
    for (Tensor& tensor : call.tensors) {
      tensors.emplace_back(tensor.bytes(), shifted ? tensor.element : 0);
      pointers.push_back(tensors.back().data());
      if (!tensor.operand) continue;
      tensor.Draw(draw);
      tensors.back().Set(tensor.numbers, stream);
    }
  }
  std::string text() const {
    std::string text = path->name() + "\tproblem";
    for (const int64_t number : call.problem) text += " " + std::to_string(number);
    return text;
  }
  void Fault(const std::string& what) const {
    ++path->faults;
    std::fprintf(stderr, "%s: %s\n", text().c_str(), what.c_str());
  }
  void FillResults(int byte, cudaStream_t stream) const {
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (!call.tensors[t].operand) tensors[t].Fill(byte, stream);
    }
  }
  void Run(GpuExec exec, cudaStream_t stream, const std::vector<void*>& on,
           void* workspace) const {
    exec.stream = stream;
    exec.tf32 = path->tf32;
    const LaunchError error = call.run(call, exec, on, workspace);
    if (error.empty()) return;
    std::fprintf(stderr, "%s: %s\n", text().c_str(), error.text().c_str());
    std::_Exit(2);  // without destructors, since other threads are still running
  }
  // Waits for the stream, and returns the results.
  std::vector<Bytes> Results(cudaStream_t stream) const {
    std::vector<Bytes> results;
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (!call.tensors[t].operand) results.push_back(tensors[t].Get(stream));
    }
    return results;
  }
  bool OperandsUnchanged(cudaStream_t stream) const {
    for (size_t t = 0; t < tensors.size(); ++t) {
      const Tensor& tensor = call.tensors[t];
      if (tensor.operand && tensors[t].Get(stream) != tensor.numbers) return false;
    }
    return true;
  }
  // Whether a value is large or infinite because the exact one, with an error of `may`,
  // may exceed the type's largest number.
  static bool Beyond(double value, double exact, double may, double most) {
    return (value > most / 2 && exact + may > most) ||
           (value < -most / 2 && exact - may < -most);
  }
  // An upper bound of the rounding errors in double precision of terms that cancel,
  // relative to the largest result.
  static constexpr double kCanceled = 1e-12;

  static double Largest(const std::vector<double>& values, double largest) {
    for (const double value : values) largest = std::max(largest, std::abs(value));
    return largest;
  }
  // Returns the largest error of the results as a multiple of the path's tolerance.
  // Sets `text` to a description if that exceeds 1.
  double Error(const std::vector<Bytes>& results, std::string* text) const {
    const Values wanted = call.reference(call, false);
    const Values terms = path->linear() ? call.reference(call, true) : Values();
    double worst = 0, largest_of_all = 0;
    for (const auto& values : wanted) largest_of_all = Largest(values, largest_of_all);
    size_t r = 0;
    for (size_t t = 0; t < call.tensors.size(); ++t) {
      const Tensor& tensor = call.tensors[t];
      if (tensor.operand) continue;
      // If terms cancel, as in the gradient of the logits of one parent, only their
      // rounding errors remain.
      double largest = Largest(wanted[r], 0);
      if (largest < kCanceled * largest_of_all) largest = largest_of_all;
      for (int64_t i = 0; i < tensor.count; ++i) {
        const double value = tensor.widen(results[r].data(), i), exact = wanted[r][i];
        const double scale = path->linear() ? terms[r][i] : largest;
        const double may = path->tolerance * scale + tensor.range.least;
        const double error = Beyond(value, exact, may, tensor.range.most)
                                 ? 0
                                 : std::abs(value - exact) / may;
        if (error <= worst) continue;  // false for NaN
        worst = error == error ? error : std::numeric_limits<double>::infinity();
        if (worst > 1) {
          *text = "element " + std::to_string(i) + " of tensor " + std::to_string(t) +
                  " is " + std::to_string(value) + ", not " + std::to_string(exact) +
                  ": " + std::to_string(worst) + " times the tolerance";
        }
      }
      ++r;
    }
    return worst;
  }
};

// Runs every path on random problems thousands of times, alone and while other threads
// launch kernels, for `seconds`; see gpu_hunt.cc.
struct HuntOptions {
  GpuExec exec;
  double seconds;
  uint32_t seed;
  int threads;
  int64_t most_work;
};
void Hunt(const HuntOptions& options, const std::vector<Path*>& paths);

}  // namespace capsops
