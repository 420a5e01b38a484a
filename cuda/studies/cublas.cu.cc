// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/studies/cublas.h"

#include <dlfcn.h>

#include <map>
#include <string>

#include "cuda/common/launch.cuh"

namespace capsops::studies {
namespace {

// Values of cuBLAS's enumerations.
constexpr int kNoTranspose = 0, kTranspose = 1;
constexpr int kDefaultMath = 0, kTf32Math = 3;

// The functions of cuBLAS that we use, as cublas_api.h declares them.
struct Functions {
  int (*create)(void** handle);
  int (*set_stream)(void* handle, CUstream_st* stream);
  int (*set_math_mode)(void* handle, int mode);
  int (*sgemm)(void* handle, int transpose_a, int transpose_b, int m, int n, int k,
               const float* alpha, const float* a, int lda, const float* b, int ldb,
               const float* beta, float* c, int ldc);
  int (*sgemm_strided)(void* handle, int transpose_a, int transpose_b, int m, int n,
                       int k, const float* alpha, const float* a, int lda,
                       long long next_a, const float* b, int ldb, long long next_b,
                       const float* beta, float* c, int ldc, long long next_c,
                       int count);
  LaunchError error;
};

// Prefers a loaded library, like TensorFlow's, to the newest installed one.
void* OpenLibrary() {
  for (const int loaded : {RTLD_NOLOAD, 0}) {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      if (void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL | loaded)) return library;
    }
  }
  return nullptr;
}

Functions Load() {
  Functions functions{};
  void* library = OpenLibrary();
  if (library == nullptr) {
    functions.error =
        "no cuBLAS was found: libcublas.so.13, libcublas.so.12 and libcublas.so are "
        "neither loaded nor on the library path";
    return functions;
  }
  const auto find = [&](const char* name, auto* function) {
    void* found = dlsym(library, name);
    if (found == nullptr) {
      functions.error = std::string("the cuBLAS found has no function ") + name;
    }
    *reinterpret_cast<void**>(function) = found;
  };
  find("cublasCreate_v2", &functions.create);
  find("cublasSetStream_v2", &functions.set_stream);
  find("cublasSetMathMode", &functions.set_math_mode);
  find("cublasSgemm_v2", &functions.sgemm);
  find("cublasSgemmStridedBatched", &functions.sgemm_strided);
  return functions;
}

const Functions& Library() {
  static const Functions functions = Load();
  return functions;
}

std::mutex& Mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

Cublas::Cublas(const GpuExec& exec) : lock_(Mutex()) {
  // One handle per device. They are never destroyed, since the process may be exiting.
  static auto* const handles = new std::map<int, void*>;
  error_ = Library().error;
  if (!error_.empty()) return;
  int device = 0;
  error_ = CheckLaunch("cuBLAS", cudaGetDevice(&device));
  if (!error_.empty()) return;
  handle_ = (*handles)[device];
  if (handle_ == nullptr) {
    Check("cublasCreate", Library().create(&handle_));
    if (!error_.empty()) return;
    (*handles)[device] = handle_;
  }
  Check("cublasSetStream", Library().set_stream(handle_, exec.stream));
  Check("cublasSetMathMode",
        Library().set_math_mode(handle_, exec.tf32 ? kTf32Math : kDefaultMath));
}

void Cublas::Check(const char* function, int status) {
  if (status == 0 || !error_.empty()) return;
  error_ = std::string(function) + " failed with status " + std::to_string(status);
}

// cuBLAS is column-major, where our c is its transpose: b^T a^T = (a b)^T.
void Cublas::Multiply(int64_t rows, int64_t columns, int64_t inner, const Operand& a,
                      const Operand& b, float* c, bool add) {
  if (!error_.empty()) return;
  const float one = 1, beta = add ? 1 : 0;
  Check("cublasSgemm",
        Library().sgemm(handle_, b.transposed ? kTranspose : kNoTranspose,
                        a.transposed ? kTranspose : kNoTranspose, columns, rows, inner,
                        &one, b.data, b.transposed ? inner : columns, a.data,
                        a.transposed ? rows : inner, &beta, c, columns));
}

void Cublas::MultiplyStrided(int64_t count, int64_t rows, int64_t columns,
                             int64_t inner, const Operand& a, const Operand& b,
                             float* c, int64_t next_c, bool add) {
  if (!error_.empty()) return;
  const float one = 1, beta = add ? 1 : 0;
  Check("cublasSgemmStridedBatched",
        Library().sgemm_strided(handle_, b.transposed ? kTranspose : kNoTranspose,
                                a.transposed ? kTranspose : kNoTranspose, columns, rows,
                                inner, &one, b.data, b.transposed ? inner : columns,
                                b.next, a.data, a.transposed ? rows : inner, a.next,
                                &beta, c, columns, next_c, count));
}

}  // namespace capsops::studies
