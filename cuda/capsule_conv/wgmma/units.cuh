// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies poses to shared memory as wgmma operands. A unit is 16 bytes of a pose row, a
// row of a core matrix: one quad of TF32 or two quads of a 16-bit type. Each unit has a
// plane of the patch. After the copy, floats are rounded to TF32 or split into parts of
// bfloat16 in place.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/patch.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv::wgmma {

// The quads of a 16-byte unit; O is the operand type, float (as TF32) or 16-bit.
template <typename O>
constexpr int kUnitQuads = 16 / (kQuad * sizeof(O));

// Splits 8 floats into parts of bfloat16; three parts hold all bits of a float.
template <int kParts>
__device__ void SplitUnit(const float (&unit)[8], uint4 (&parts)[kParts]) {
  uint32_t words[kParts][4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    uint32_t pair[2] = {__float_as_uint(unit[2 * e]), __float_as_uint(unit[2 * e + 1])};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      // Truncates to the upper halves; the rest goes to the next part.
      words[part][e] = __byte_perm(pair[0], pair[1], 0x7632);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float all = __uint_as_float(pair[n]);
        const float cut = __uint_as_float(pair[n] & 0xffff0000);
        // Infinity minus itself would be NaN.
        pair[n] = all == cut ? 0 : __float_as_uint(all - cut);
      }
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    parts[part] =
        make_uint4(words[part][0], words[part][1], words[part][2], words[part][3]);
  }
}

// Copies and converts the units of a patch. A thread handles one pose row of one unit,
// of every step_-th pixel, so that it converts what it copied itself. Requires at least
// units * image.rows threads, and pose rows of whole quads.
template <typename S, typename O, int kParts>
class UnitLoader {
 public:
  // `threads` threads copy `units` units together; this is thread number `thread`.
  __device__ UnitLoader(const Patch& patch, const Image& image, int units, int thread,
                        int threads) {
    const int pieces = units * image.rows;  // copies per pixel
    step_ = threads / pieces;
    first_ = thread / pieces;
    unit_ = patch.by_rows.Split(thread - first_ * pieces, &row_);
    if (first_ >= step_) first_ = patch.pixels;  // idle thread
  }

  // Issues the copies of the units from `unit` on. Planes past the last and pixels
  // outside of the image become zeros.
  __device__ void Copy(const Patch& patch, const Image& image, const int* pixels,
                       const S* from, int unit, int part_words, uint32_t* to) const {
    constexpr int kBytes = kQuad * sizeof(S);
    const int quads = image.quads();
    int place[kQuads];  // offset in a pixel; -1 without such a plane
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int plane = (unit + unit_) * kQuads + q;
      const int channel = quads == 1 ? plane : plane / quads;
      place[q] = channel * image.depth * image.pose() + row_ * image.columns +
                 (plane - channel * quads) * kQuad;
      if (plane >= image.planes()) place[q] = -1;
    }
    // Two quads of floats need the room of two parts: a quad is copied to each.
    const int apart = kConverted ? part_words : 2;
    to += First(patch, image);
    for (int at = first_; at < patch.pixels; at += step_, to += Step(image)) {
      const int pixel = pixels[at];
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const bool zero = pixel < 0 || place[q] < 0;
        __pipeline_memcpy_async(to + q * apart, zero ? from : from + pixel + place[q],
                                kBytes, zero ? kBytes : 0);
      }
    }
  }

  // Converts copied floats to operands, whose parts are `part_words` words apart.
  __device__ void Convert(const Patch& patch, const Image& image, int part_words,
                          uint32_t* to) const {
    if constexpr (kConverted) {
      to += First(patch, image);
#pragma unroll 2
      for (int at = first_; at < patch.pixels; at += step_, to += Step(image)) {
        float unit[kQuads * kQuad];
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          LoadPack<kQuad>(reinterpret_cast<const float*>(to + q * part_words),
                          unit + q * kQuad);
        }
        if constexpr (std::is_same_v<O, float>) {
          *reinterpret_cast<float4*>(to) = make_float4(
              Prepare<Tf32::kRounded>(unit[0]), Prepare<Tf32::kRounded>(unit[1]),
              Prepare<Tf32::kRounded>(unit[2]), Prepare<Tf32::kRounded>(unit[3]));
        } else {
          uint4 parts[kParts];
          SplitUnit(unit, parts);
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            *reinterpret_cast<uint4*>(to + part * part_words) = parts[part];
          }
        }
      }
    }
  }

 private:
  static constexpr int kQuads = kUnitQuads<O>;
  static constexpr bool kConverted = std::is_same_v<S, float>;
  static_assert(kConverted ? kParts >= kQuads : kParts == 1 && std::is_same_v<S, O>);

  // Words from the patch to this thread's first unit, and from one unit to the next.
  __device__ int First(const Patch& patch, const Image& image) const {
    return unit_ * patch.plane + (first_ * image.rows + row_) * 4;
  }
  __device__ int Step(const Image& image) const { return step_ * image.rows * 4; }

  int step_, first_, unit_, row_;
};

}  // namespace capsops::capsule_conv::wgmma
