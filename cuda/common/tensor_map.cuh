// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Tensor maps (TMA): descriptors of tensors from which compute capability 9.0 and newer
// copies boxes to shared memory asynchronously, with zeros outside of the tensor.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/common/barrier.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops {

// Bytes of a line of shared memory with the widest swizzle.
constexpr int kSwizzleBytes = 128;

// A tensor whose dimensions are listed from the innermost outwards. `apart` holds the
// strides, in elements, of all dimensions but the first; in bytes they must be
// multiples of 16. A box takes every `every`-th element of each dimension. A box with a
// swizzle of 32, 64 or 128 bytes has lines of that many bytes of the first dimension.
// In the i-th 128 bytes of shared memory, the n-th unit of 16 bytes is then at position
// n ^ (i % 2), n ^ (i % 4) or n ^ (i % 8), respectively, so that reading the same unit
// of consecutive lines has no bank conflicts.
template <int kRank>
struct TmaTensor {
  std::array<uint64_t, kRank> size;
  std::array<uint64_t, kRank - 1> apart;
  std::array<uint32_t, kRank> box, every;
  int swizzle = kSwizzleBytes;
  bool rounded = true;  // convert float to TF32, to nearest

  TmaTensor() { every.fill(1); }
  // A tensor without gaps.
  explicit TmaTensor(const std::array<uint64_t, kRank>& dims) : TmaTensor() {
    size = dims;
    uint64_t step = 1;
    for (int n = 0; n < kRank - 1; ++n) apart[n] = step *= dims[n];
  }
};

// Looks up cuTensorMapEncodeTiled at run time, so that the driver need not be linked.
using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);
inline EncodeTensorMap FindEncodeTensorMap() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult outcome;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &outcome);
#else
  const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found,
                                                    cudaEnableDefault, &outcome);
#endif
  if (error != cudaSuccess) cudaGetLastError();  // or the next launch would report it
  return error == cudaSuccess && outcome == cudaDriverEntryPointSuccess
             ? reinterpret_cast<EncodeTensorMap>(found)
             : nullptr;
}

// Encodes the map of `tensor` at `data`.
template <typename S, int kRank>
LaunchError MakeTensorMap(const char* op, const S* data, const TmaTensor<kRank>& tensor,
                          CUtensorMap* map) {
  static const EncodeTensorMap encode = FindEncodeTensorMap();
  if (encode == nullptr) {
    return std::string(op) + ": the CUDA driver has no cuTensorMapEncodeTiled";
  }
  const auto floats = tensor.rounded ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                     : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const auto type = std::is_same_v<S, float>    ? floats
                    : std::is_same_v<S, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto swizzle = tensor.swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                       : tensor.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : tensor.swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                              : CU_TENSOR_MAP_SWIZZLE_NONE;
  std::array<uint64_t, kRank - 1> bytes;
  for (int n = 0; n < kRank - 1; ++n) bytes[n] = tensor.apart[n] * sizeof(S);
  const CUresult result = encode(
      map, type, kRank, const_cast<S*>(data), tensor.size.data(), bytes.data(),
      tensor.box.data(), tensor.every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return std::string(op) + ": CUDA refuses a tensor map, error " +
         std::to_string(result);
}

#ifdef __CUDACC__
// Starts a TMA copy of the box at (c0, c1, ...) to `to`. It completes on `barrier`.
__device__ inline void TmaLoad(const CUtensorMap& map, int c0, int c1, int c2, int c3,
                               int c4, Barrier& barrier, void* to) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier.Address())
      : "memory");
}

// Version for a tensor with four dimensions.
__device__ inline void TmaLoad(const CUtensorMap& map, int c0, int c1, int c2, int c3,
                               Barrier& barrier, void* to) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier.Address())
      : "memory");
}

// Version for a tensor with three dimensions.
__device__ inline void TmaLoad(const CUtensorMap& map, int c0, int c1, int c2,
                               Barrier& barrier, void* to) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier.Address())
      : "memory");
}

// Starts a TMA store of a box in shared memory to (c0, c1, ...). It skips elements
// outside of the tensor, and is one of this thread's bulk stores (barrier.cuh).
__device__ inline void TmaStore(const CUtensorMap& map, int c0, int c1, int c2, int c3,
                                const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
      " [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(SharedAddress(from))
      : "memory");
}

// Like TmaStore, but adds the box to the tensor.
__device__ inline void TmaAdd(const CUtensorMap& map, int c0, int c1, int c2, int c3,
                              const void* from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group"
      " [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(SharedAddress(from))
      : "memory");
}
#endif

}  // namespace capsops
