// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of InqConvInt8, compiled once per instruction set. A call runs one task
// on one thread, as in cc/cpu/capsule_prediction.h. The convolution is a product of
// matrices: rows are output pixels, the terms of a sum are split into blocks, and lanes
// are output channels in panels of two vectors. A task gathers the windows of its rows
// block by block, and multiplies them with the packed weights of its panels.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/inq_conv_int8.h"

namespace capsops::inq_conv_int8 {

// The instructions of the products. A 32-bit lane holds two terms of 16 bits, or four
// of 8 bits.
enum class Product {
  kMaddWords,  // vpmaddwd and vpaddd, or the processor's equivalents
  kDotWords,   // vpdpwssd of AVX-512 VNNI
  kDotBytes,   // vpdpbusd of AVX-512 VNNI; weights must be less than 2^7
};

struct Division {
  int64_t depth = 0;       // terms per block, a multiple of 4
  int64_t blocks = 0;      // blocks of terms
  int64_t panels = 0;      // panels of output channels
  int64_t panel = 0;       // bytes of a panel's block of packed weights
  int64_t packed = 0;      // bytes of all packed weights
  int64_t row_blocks = 0;  // blocks of output pixels
  int64_t group = 0;       // panels per task
  int64_t panel_groups = 0;
  int64_t patch = 0;    // bytes of a row's block of terms
  int64_t scratch = 0;  // bytes per task
};

template <typename T>
struct CpuKernels {
  Division (*divide)(const Problem& p, Product product);
  void (*quantize)(int64_t count, const T* input, float scale, int32_t zero_point,
                   uint8_t* image);
  // Packs block task / panels of panel task % panels. Returns whether all of its codes
  // are in the code book.
  bool (*pack)(const Problem& p, const Division& d, Product product, int64_t task,
               const uint8_t* codes, char* packed);
  // Runs one of row_blocks * panel_groups tasks.
  void (*run)(const Problem& p, const Division& d, Product product, int64_t task,
              const uint8_t* image, int32_t zero_point, const char* packed,
              const float* multipliers, T* output, void* scratch);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::inq_conv_int8
