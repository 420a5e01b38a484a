// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Problems at the edges of the tiles of convolution with routing.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sanitizers/gpu_families.h"
#include "tests/sanitizers/problems.h"

namespace capsops {

inline std::vector<Family<capsule_conv_routing::Problem>> FamiliesOf(
    const capsule_conv_routing::Problem*) {
  using P = capsule_conv_routing::Problem;
  const auto base = [](int64_t size, int64_t types, int64_t in_dim, int64_t parents,
                       int64_t out_dim) {
    P p;
    p.batch = 2;
    p.in_height = size + 1;
    p.in_width = size;
    p.types = types;
    p.in_dim = in_dim;
    p.kernel_height = 3;
    p.kernel_width = 2;
    p.pad_top = 1;
    p.parents = parents;
    p.out_dim = out_dim;
    p.iterations = 3;
    p.set_epsilon(1e-7f);
    return p;
  };
  P per_type = base(5, 4, 8, 8, 16), transposed = per_type, volume = per_type;
  per_type.shared_weights = 0;
  transposed.transposed = 1;
  volume.in_depth = volume.kernel_depth = 3;
  P back = volume;
  back.transposed = 1;
  auto families =
      Families<P>({base(5, 4, 8, 8, 16), per_type, transposed, volume, back},
                  {{&P::batch, {0, 1, 3}},
                   {&P::in_depth, {1, 2, 5}},
                   {&P::in_height, {1, 2, 9, 17}},
                   {&P::in_width, {1, 2, 3, 16, 33}},
                   {&P::types, {0, 1, 2, 3, 5, 8, 9, 33}},
                   {&P::in_dim, {0, 1, 3, 5, 16, 33}},
                   {&P::kernel_depth, {1, 2, 4}},
                   {&P::kernel_height, {1, 2, 5}},
                   {&P::kernel_width, {1, 3, 5}},
                   {&P::parents, {1, 2, 3, 7, 9, 17, 31, 33, 65, 300}},
                   {&P::out_dim, {1, 2, 3, 4, 5, 7, 8, 15, 17, 32, 33, 64, 130, 260}},
                   {&P::stride_depth, {2, 3}},
                   {&P::stride_height, {2, 3}},
                   {&P::stride_width, {2, 3}},
                   {&P::dilation_depth, {2}},
                   {&P::dilation_height, {2}},
                   {&P::dilation_width, {3}},
                   {&P::pad_front, {1, 2}},
                   {&P::pad_top, {0, 2}},
                   {&P::pad_left, {1, 2}},
                   {&P::iterations, {1, 2, 5, 12}},
                   {&P::shared_weights, {0}},
                   {&P::leaky, {1}}});
  // Sizes that OwnProducts accepts: whole steps and boxes.
  P read = base(8, 8, 32, 4, 16), strided = base(16, 4, 16, 8, 16);
  P deep = base(8, 4, 16, 8, 16);
  read.pad_left = strided.pad_left = deep.pad_left = 1;
  strided.stride_height = strided.stride_width = 2;
  deep.in_depth = deep.kernel_depth = 3;
  P read_back = read, deep_back = deep;
  read_back.transposed = deep_back.transposed = 1;
  Append(&families, Families<P>({read, strided, deep, read_back, deep_back},
                                {{&P::batch, {1, 3}},
                                 {&P::in_depth, {1, 2, 5}},
                                 {&P::in_height, {1, 4, 17}},
                                 {&P::in_width, {4, 7, 16, 31, 32, 33}},
                                 {&P::types, {1, 2, 4, 7, 16, 32, 65}},
                                 {&P::in_dim, {4, 8, 16, 20, 32, 64}},
                                 {&P::kernel_depth, {1, 2, 4}},
                                 {&P::kernel_height, {1, 2, 5}},
                                 {&P::kernel_width, {1, 3, 5}},
                                 {&P::parents, {3, 4, 5, 9, 17}},
                                 {&P::out_dim, {16, 20, 36}},
                                 {&P::stride_depth, {2, 3}},
                                 {&P::stride_height, {2, 3}},
                                 {&P::stride_width, {2, 3}},
                                 {&P::dilation_depth, {2}},
                                 {&P::dilation_height, {2}},
                                 {&P::dilation_width, {2}},
                                 {&P::pad_front, {1, 2, 4}},
                                 {&P::pad_top, {0, 2}},
                                 {&P::pad_left, {0, 2}}}));
  // Votes of a pixel that do not fit in shared memory.
  P large = base(1, 64, 1, 64, 16);
  large.batch = large.kernel_height = large.kernel_width = 1;
  families.push_back({large, {{&P::in_width, {2, 3}}, {&P::out_dim, {17}}}});
  // Bands of rows.
  P rows = base(64, 8, 1, 32, 32);
  rows.batch = rows.kernel_width = 1;
  rows.in_height = 5;
  rows.kernel_height = 2;
  P rows_back = rows;
  rows_back.transposed = 1;
  Append(&families, Families<P>({rows, rows_back}, {{&P::out_dim, {31, 64, 128}},
                                                    {&P::in_dim, {4}},
                                                    {&P::stride_height, {2, 3}}}));
  return families;
}

}  // namespace capsops
