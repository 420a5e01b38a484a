// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Flags in global memory, by which a block waits for what another has written.
#pragma once

namespace capsops {

// Sets a flag after everything that this thread has written, and everything that other
// threads of its block have written before a barrier that they passed together.
__device__ inline void SetFlag(int* flag, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value)
               : "memory");
}

// Waits until a flag is `value`. What was written before it was set is then visible.
__device__ inline void WaitForFlag(const int* flag, int value) {
  int found;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(found)
                 : "l"(flag)
                 : "memory");
  } while (found != value);
}

}  // namespace capsops
