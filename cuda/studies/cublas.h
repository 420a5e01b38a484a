// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Matrix products by cuBLAS, which is loaded on first use and not needed to build.
#pragma once

#include <cstdint>
#include <mutex>

#include "cc/launch/exec.h"

namespace capsops::studies {

// Row-major matrices without padding. A product transposes them if `transposed`.
struct Operand {
  const float* data;
  bool transposed = false;
  int64_t next = 0;  // stride in elements between the matrices of a batch
};

// cuBLAS on one stream. While one exists, other threads that construct one wait.
class Cublas {
 public:
  explicit Cublas(const GpuExec& exec);

  // The reason why there is no cuBLAS, or the first error of the calls below.
  const LaunchError& error() const { return error_; }

  // Computes c = a @ b, or c += a @ b if `add`, where a is [rows, inner], b [inner,
  // columns] and c [rows, columns], after transposition.
  void Multiply(int64_t rows, int64_t columns, int64_t inner, const Operand& a,
                const Operand& b, float* c, bool add);

  // Computes `count` such products in one call.
  void MultiplyStrided(int64_t count, int64_t rows, int64_t columns, int64_t inner,
                       const Operand& a, const Operand& b, float* c, int64_t next_c,
                       bool add);

 private:
  void Check(const char* function, int status);

  std::unique_lock<std::mutex> lock_;
  void* handle_ = nullptr;
  LaunchError error_;
};

}  // namespace capsops::studies
