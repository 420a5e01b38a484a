// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Asynchronous warpgroup products (wgmma) of compute capability 9.0: c += a b with 64
// rows of a and 64 to 256 columns of b, read from shared memory or, for a, from
// registers. Each of the 4 warps holds 16 rows of c in the m16n8 fragment layout.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "cuda/common/launch.cuh"

namespace capsops {

// Whether the code that runs on this device has wgmma. A build for 9.0 always has.
inline bool HasWgmma(const GpuDevice& device) {
  return device.capability == 90 && BuiltFor(900);
}

// Fails if the kernel was compiled for fewer registers per thread than `wanted`:
// setmaxnreg would wait forever for registers that its block does not have.
template <auto kKernel>
LaunchError CheckRegisters(const char* op, int wanted) {
  static std::atomic<int> known = 0;
  int registers = known;
  if (registers == 0) {
    cudaFuncAttributes attributes{};
    CAPSOPS_RETURN_IF_ERROR(
        CheckLaunch(op, cudaFuncGetAttributes(&attributes, kKernel)));
    known = registers = attributes.numRegs;
  }
  if (registers >= wanted) return {};
  return std::string(op) + ": its kernel was built with " + std::to_string(registers) +
         " registers for a thread, not " + std::to_string(wanted);
}

// Makes this thread's writes to shared memory visible to wgmma and bulk copies (the
// async proxy) after the next synchronization.
__device__ inline void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Raises (kMore) or lowers this warpgroup's registers per thread to kCount: setmaxnreg.
template <int kCount, bool kMore>
__device__ void SetMaxRegisters() {
  if constexpr (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}

// Orders earlier register writes before the following wgmma instructions.
__device__ inline void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of all wgmma instructions issued since the last one.
__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most the kGroups newest groups are in flight.
template <int kGroups>
__device__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Makes the matrix descriptor of an operand without swizzle. The operand consists of
// core matrices of 8 rows (or columns) by 16 bytes of the contraction, two for each
// product. `unit` is the distance between these two, `group` the distance to the next 8
// rows. Both and the address are in units of 16 bytes.
__device__ inline uint64_t MakeDescriptor(uint32_t address, uint32_t unit,
                                          uint32_t group) {
  return (uint64_t{group} << 32) | (unit << 16 | address);
}

// Returns the bits of a descriptor that describe swizzled lines of 32, 64 or 128 bytes,
// as in TMA boxes: the kind of swizzle, and the distance between groups of 8 lines,
// which are contiguous. Boxes begin at a multiple of 8 lines. A K-major operand may
// begin at any line, because the swizzle depends on the address in shared memory alone.
__device__ inline uint64_t DescribeSwizzle(uint32_t line) {
  const uint64_t kind = line == 128 ? 1 : line == 64 ? 2 : 3;
  return (kind << 62) | (uint64_t{line / 2} << 32);
}

// Makes the descriptor of a swizzled K-major operand, whose lines are its rows.
// `address`, in units of 16 bytes, points to the product's 32 bytes in the first row.
__device__ inline uint64_t MakeSwizzledDescriptor(uint32_t address,
                                                  uint32_t line = 128) {
  return DescribeSwizzle(line) | (1 << 16 | address);
}

// Makes the descriptor of an MN-major operand of a 16-bit type. Each term has lines of
// rows (or columns), swizzled unless a line has 16 bytes. `more`, in units of 16 bytes,
// is the distance to the next line of the same term.
__device__ inline uint64_t MakeMnMajorDescriptor(uint32_t address, uint32_t more,
                                                 uint32_t line = 128) {
  if (line == 16) return MakeDescriptor(address, 8, more);
  return DescribeSwizzle(line) | (more << 16 | address);
}

// The address of an operand in units of 16 bytes, as descriptors have it.
__device__ inline uint32_t DescriptorAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared)) >> 4;
}

// Issues c += a b or, without `add`, c = a b, for 8 kProducts columns and 8 terms of
// TF32 or 16 of a 16-bit type. kMnMajor: both operands are MN-major (16-bit types
// only).
template <typename O, int kProducts, bool kMnMajor = false>
struct Wgmma;

// Inline assembly lists each register. These macros list the sums of a product as
// operands, and number them for each width.
#define CAPSOPS_SUM(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define CAPSOPS_SUMS_4(n) \
  CAPSOPS_SUM(n), CAPSOPS_SUM(n + 1), CAPSOPS_SUM(n + 2), CAPSOPS_SUM(n + 3)
#define CAPSOPS_SUMS_8(n)                                                     \
  CAPSOPS_SUM(n), CAPSOPS_SUM(n + 1), CAPSOPS_SUM(n + 2), CAPSOPS_SUM(n + 3), \
      CAPSOPS_SUM(n + 4), CAPSOPS_SUM(n + 5), CAPSOPS_SUM(n + 6), CAPSOPS_SUM(n + 7)
#define CAPSOPS_REGISTERS_32                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
  "%30, %31"
#define CAPSOPS_REGISTERS_40 \
  CAPSOPS_REGISTERS_32       \
  ", "                       \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define CAPSOPS_REGISTERS_64                                               \
  CAPSOPS_REGISTERS_40                                                     \
  ", "                                                                     \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CAPSOPS_REGISTERS_80                                               \
  CAPSOPS_REGISTERS_64                                                     \
  ", "                                                                     \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
  "%78, %79"
#define CAPSOPS_REGISTERS_84 \
  CAPSOPS_REGISTERS_80       \
  ", "                       \
  "%80, %81, %82, %83"
#define CAPSOPS_REGISTERS_96 \
  CAPSOPS_REGISTERS_84       \
  ", "                       \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CAPSOPS_REGISTERS_112                                            \
  CAPSOPS_REGISTERS_96                                                   \
  ", "                                                                   \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, " \
  "%108, %109, %110, %111"
#define CAPSOPS_REGISTERS_128                                                \
  CAPSOPS_REGISTERS_112                                                      \
  ", "                                                                       \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
  "%124, %125, %126, %127"
#define CAPSOPS_WGMMA(O, MN_MAJOR, KIND, PRODUCTS, N, A, B, ADD, REGISTERS, ...)    \
  template <>                                                                       \
  struct Wgmma<O, PRODUCTS, MN_MAJOR> {                                             \
    __device__ static void Begin(uint64_t a, uint64_t b, float (&c)[PRODUCTS][4],   \
                                 bool add) {                                        \
      asm volatile("{ .reg .pred add; setp.ne.b32 add, %" ADD                       \
                   ", 0; wgmma.mma_async.sync.aligned.m64n" N KIND(REGISTERS, A, B) \
                   : __VA_ARGS__                                                    \
                   : "l"(a), "l"(b), "r"(int{add}));                                \
    }                                                                               \
  };
#define CAPSOPS_WGMMA_128(O, MN_MAJOR, KIND)                                          \
  CAPSOPS_WGMMA(O, MN_MAJOR, KIND, 16, "128", "64", "65", "66", CAPSOPS_REGISTERS_64, \
                CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8))
#define CAPSOPS_WGMMA_256(O, MN_MAJOR, KIND)                                 \
  CAPSOPS_WGMMA(O, MN_MAJOR, KIND, 32, "256", "128", "129", "130",           \
                CAPSOPS_REGISTERS_128, CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8), \
                CAPSOPS_SUMS_8(16), CAPSOPS_SUMS_8(24))
#define CAPSOPS_WGMMA_64(O, MN_MAJOR, KIND)                                         \
  CAPSOPS_WGMMA(O, MN_MAJOR, KIND, 8, "64", "32", "33", "34", CAPSOPS_REGISTERS_32, \
                CAPSOPS_SUMS_8(0))
#define CAPSOPS_WGMMA_ALL(O, KIND)                                                     \
  CAPSOPS_WGMMA_64(O, false, KIND)                                                     \
  CAPSOPS_WGMMA_128(O, false, KIND)                                                    \
  CAPSOPS_WGMMA(O, false, KIND, 10, "80", "40", "41", "42", CAPSOPS_REGISTERS_40,      \
                CAPSOPS_SUMS_8(0), CAPSOPS_SUM(8), CAPSOPS_SUM(9))                     \
  CAPSOPS_WGMMA(O, false, KIND, 20, "160", "80", "81", "82", CAPSOPS_REGISTERS_80,     \
                CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8), CAPSOPS_SUMS_4(16))              \
  CAPSOPS_WGMMA(O, false, KIND, 21, "168", "84", "85", "86", CAPSOPS_REGISTERS_84,     \
                CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8), CAPSOPS_SUMS_4(16),              \
                CAPSOPS_SUM(20))                                                       \
  CAPSOPS_WGMMA(O, false, KIND, 24, "192", "96", "97", "98", CAPSOPS_REGISTERS_96,     \
                CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8), CAPSOPS_SUMS_8(16))              \
  CAPSOPS_WGMMA(O, false, KIND, 28, "224", "112", "113", "114", CAPSOPS_REGISTERS_112, \
                CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8), CAPSOPS_SUMS_8(16),              \
                CAPSOPS_SUMS_4(24))                                                    \
  CAPSOPS_WGMMA_256(O, false, KIND)
#define CAPSOPS_TF32(REGISTERS, A, B) \
  "k8.f32.tf32.tf32 {" REGISTERS "}, %" A ", %" B ", add, 1, 1; }"
#define CAPSOPS_HALF(REGISTERS, A, B) \
  "k16.f32.f16.f16 {" REGISTERS "}, %" A ", %" B ", add, 1, 1, 0, 0; }"
#define CAPSOPS_BFLOAT(REGISTERS, A, B) \
  "k16.f32.bf16.bf16 {" REGISTERS "}, %" A ", %" B ", add, 1, 1, 0, 0; }"
#define CAPSOPS_HALF_MN_MAJOR(REGISTERS, A, B) \
  "k16.f32.f16.f16 {" REGISTERS "}, %" A ", %" B ", add, 1, 1, 1, 1; }"
#define CAPSOPS_BFLOAT_MN_MAJOR(REGISTERS, A, B) \
  "k16.f32.bf16.bf16 {" REGISTERS "}, %" A ", %" B ", add, 1, 1, 1, 1; }"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
CAPSOPS_WGMMA_ALL(float, CAPSOPS_TF32)
CAPSOPS_WGMMA_ALL(__half, CAPSOPS_HALF)
CAPSOPS_WGMMA_ALL(__nv_bfloat16, CAPSOPS_BFLOAT)
CAPSOPS_WGMMA_64(__half, true, CAPSOPS_HALF_MN_MAJOR)
CAPSOPS_WGMMA_128(__half, true, CAPSOPS_HALF_MN_MAJOR)
CAPSOPS_WGMMA_256(__half, true, CAPSOPS_HALF_MN_MAJOR)
CAPSOPS_WGMMA_64(__nv_bfloat16, true, CAPSOPS_BFLOAT_MN_MAJOR)
CAPSOPS_WGMMA_128(__nv_bfloat16, true, CAPSOPS_BFLOAT_MN_MAJOR)
CAPSOPS_WGMMA_256(__nv_bfloat16, true, CAPSOPS_BFLOAT_MN_MAJOR)
#endif

// Version of Wgmma with a in registers, in the m16n8k8 (TF32) or m16n8k16 (16-bit)
// fragment layout; a 16-bit b is MN-major. The registers must not change until the
// product is done.
template <typename O, int kProducts>
struct WgmmaRs;

#define CAPSOPS_WGMMA_RS(O, KIND, PRODUCTS, N, A0, A1, A2, A3, B, ADD, REGISTERS, ...) \
  template <>                                                                          \
  struct WgmmaRs<O, PRODUCTS> {                                                        \
    __device__ static void Begin(const uint32_t (&a)[4], uint64_t b,                   \
                                 float (&c)[PRODUCTS][4], bool add) {                  \
      asm volatile("{ .reg .pred add; setp.ne.b32 add, %" ADD                          \
                   ", 0; wgmma.mma_async.sync.aligned.m64n" N KIND(                    \
                       REGISTERS, "{%" A0 ", %" A1 ", %" A2 ", %" A3 "}", B)           \
                   : __VA_ARGS__                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),               \
                     "r"(int{add}));                                                   \
    }                                                                                  \
  };
#define CAPSOPS_WGMMA_RS_64(O, KIND)                                     \
  CAPSOPS_WGMMA_RS(O, KIND, 8, "64", "32", "33", "34", "35", "36", "37", \
                   CAPSOPS_REGISTERS_32, CAPSOPS_SUMS_8(0))
#define CAPSOPS_TF32_RS(REGISTERS, A, B) \
  "k8.f32.tf32.tf32 {" REGISTERS "}, " A ", %" B ", add, 1, 1; }"
#define CAPSOPS_HALF_RS(REGISTERS, A, B) \
  "k16.f32.f16.f16 {" REGISTERS "}, " A ", %" B ", add, 1, 1, 1; }"
#define CAPSOPS_BFLOAT_RS(REGISTERS, A, B) \
  "k16.f32.bf16.bf16 {" REGISTERS "}, " A ", %" B ", add, 1, 1, 1; }"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
CAPSOPS_WGMMA_RS_64(float, CAPSOPS_TF32_RS)
CAPSOPS_WGMMA_RS_64(__half, CAPSOPS_HALF_RS)
CAPSOPS_WGMMA_RS_64(__nv_bfloat16, CAPSOPS_BFLOAT_RS)
CAPSOPS_WGMMA_RS(float, CAPSOPS_TF32_RS, 10, "80", "40", "41", "42", "43", "44", "45",
                 CAPSOPS_REGISTERS_40, CAPSOPS_SUMS_8(0), CAPSOPS_SUM(8),
                 CAPSOPS_SUM(9))
CAPSOPS_WGMMA_RS(float, CAPSOPS_TF32_RS, 16, "128", "64", "65", "66", "67", "68", "69",
                 CAPSOPS_REGISTERS_64, CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8))
CAPSOPS_WGMMA_RS(float, CAPSOPS_TF32_RS, 32, "256", "128", "129", "130", "131", "132",
                 "133", CAPSOPS_REGISTERS_128, CAPSOPS_SUMS_8(0), CAPSOPS_SUMS_8(8),
                 CAPSOPS_SUMS_8(16), CAPSOPS_SUMS_8(24))
#endif

// Clear() zeroes sums before the first wgmma, and Complete() follows the wait for the
// last one. They keep the compiler from using the sums while wgmma is in flight.
template <int kProducts>
__device__ inline void Clear(float (&sums)[kProducts][4]) {
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[n][e] = 0;
      asm volatile("" : "+f"(sums[n][e]));
    }
  }
}
template <int kProducts>
__device__ inline void Complete(float (&sums)[kProducts][4]) {
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[n][e])::"memory");
  }
}

}  // namespace capsops
