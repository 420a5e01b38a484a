// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Problems at the edges of the GPU kernels' tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/sanitizers/gpu_families.h"
#include "tests/sanitizers/gpu_slab_problems.h"
#include "tests/sanitizers/problems.h"
#include "tests/sanitizers/small_problems.h"

namespace capsops {

inline std::vector<Family<capsule_prediction::Problem>> FamiliesOf(
    const capsule_prediction::Problem*) {
  using P = capsule_prediction::Problem;
  return Families<P>(
      {{5, 7, 10, 16, 8}, {3, 4, 4, 16, 16}, {4, 3, 64, 16, 5}},
      {{&P::batch, {0, 1, 2, 3, 4, 31, 32, 33, 63, 64, 65, 129}},
       {&P::in_caps, {0, 1, 2, 63, 64, 65}},
       // Some need 1, 2, 4 or 5 columns per lane, and some many tiles.
       {&P::out_caps, {0, 1, 2, 8, 9, 14, 28, 33, 40, 50, 64, 80, 81}},
       {&P::out_dim, {0, 1, 3, 4, 5, 15, 17, 32, 33, 64, 65}},
       {&P::in_dim, {0, 1, 3, 7, 9, 15, 16, 17, 24, 31, 32, 33, 65, 130}}});
}

inline std::vector<Family<capsule_routing::Problem>> FamiliesOf(
    const capsule_routing::Problem*) {
  using P = capsule_routing::Problem;
  const auto base = [](int64_t out_dim, int64_t in_dim) {
    P p{3, 5, 4, out_dim, in_dim, 2};
    p.set_epsilon(1e-7f);
    return p;
  };
  auto families = Families<P>(
      {base(16, 8), base(16, 16), base(8, 8)},
      {{&P::batch, {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 65}},
       {&P::in_caps, {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 129, 300}},
       {&P::out_caps,
        // With 2000, inner products do not fit in shared memory.
        {1, 2, 3, 5, 7, 8, 9, 11, 12, 13, 16, 17, 24, 32, 33, 47, 48, 49, 64, 2000}},
       {&P::out_dim, {1, 3, 4, 7, 15, 17, 31, 32, 33, 64}},
       // With 2000, the input does not fit in shared memory.
       {&P::in_dim, {1, 3, 4, 7, 9, 15, 17, 33, 2000}},
       {&P::iterations, {0, 1, 3, 4, 5, 7}}});
  // The moments of so many input capsules do not fit in a workspace.
  families.push_back({base(1, 1), {{&P::in_caps, {200003}}}});
  return families;
}

// Returns the dimensions of a window, with sizes for each.
template <typename P>
decltype(Family<P>::dimensions) WindowDimensions() {
  return {{&P::batch, {0, 1, 3, 4, 5}},
          {&P::in_height, {1, 2, 3, 7, 8, 9, 15, 16, 17, 33}},
          {&P::in_width, {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 300}},
          {&P::kernel_height, {1, 2, 4, 5, 7}},
          {&P::kernel_width, {1, 3, 4, 5, 7}},
          {&P::stride_height, {2, 3, 8}},
          {&P::stride_width, {2, 3, 8}},
          {&P::dilation_height, {2, 3}},
          {&P::dilation_width, {2, 3, 40}},
          {&P::pad_top, {0, 2, 9}},
          {&P::pad_left, {0, 2, 9}}};
}

// Returns a small padded convolution. `sizes` are those of channels and poses, in the
// order of `dimensions`.
inline capsule_conv::Problem Convolution(const std::vector<int64_t>& sizes) {
  capsule_conv::Problem p;
  p.batch = 2;
  p.in_height = 6;
  p.in_width = 5;
  p.kernel_height = 3;
  p.kernel_width = 2;
  p.pad_top = p.pad_left = 1;
  int64_t* const dimensions[] = {&p.in_channels, &p.out_channels, &p.pose_depth,
                                 &p.pose_rows,   &p.pose_inner,   &p.pose_columns};
  for (size_t i = 0; i < sizes.size(); ++i) *dimensions[i] = sizes[i];
  return p;
}

inline std::vector<Family<capsule_conv::Problem>> FamiliesOf(
    const capsule_conv::Problem*) {
  using P = capsule_conv::Problem;
  const std::vector<int64_t> channels = {0,  1,  2,  3,  4,  5,  7,  8, 9,
                                         15, 16, 17, 31, 32, 33, 64, 65};
  // Families for pose matrices, wgmma, gathered patches, tensor maps, and plain
  // convolutions.
  auto families = Families<P>({Convolution({4, 8, 1, 4, 4, 4})}, WindowDimensions<P>());
  Append(&families,
         Families<P>({Convolution({4, 8, 1, 4, 4, 4}), Convolution({8, 16, 1, 4, 4, 4}),
                      Convolution({3, 5, 1, 8, 8, 8})},
                     {{&P::in_channels, channels},
                      {&P::out_channels, channels},
                      {&P::pose_depth, {0, 2, 3}},
                      {&P::pose_rows, {0, 1, 2, 3, 5, 7, 9, 16, 17}},
                      {&P::pose_inner, {0, 1, 2, 3, 5, 7, 9, 17}},
                      {&P::pose_columns, {0, 1, 2, 3, 5, 6, 7, 9, 16, 32, 33, 64}}}));
  // Enough rows for tiles of 256.
  P matrices = Convolution({8, 32, 1, 4, 4, 4}),
    rows = Convolution({1, 16, 1, 1, 8, 8});
  matrices.batch = rows.batch = rows.kernel_height = rows.kernel_width = 1;
  matrices.kernel_height = 2;
  matrices.in_height = matrices.in_width = 28;
  rows.in_height = rows.in_width = 40;
  Append(&families, Families<P>({matrices, rows}, {{&P::in_width, {16, 27, 41}},
                                                   {&P::in_channels, {2, 7}},
                                                   {&P::out_channels, {15, 31, 32}}}));
  // Few columns, so that taps are unfolded into columns.
  auto few = WindowDimensions<P>();
  few.push_back({&P::in_channels, {1, 2, 3, 4}});
  few.push_back({&P::out_channels, {1, 2, 3, 4}});
  few.push_back({&P::pose_depth, {2}});
  few.push_back({&P::pose_rows, {1, 3}});
  few.push_back({&P::pose_columns, {1, 3}});
  Append(&families, Families<P>({Convolution({2, 33, 1, 4, 4, 4}),
                                 Convolution({33, 2, 1, 4, 4, 4})},
                                few));
  auto gathered = WindowDimensions<P>();
  gathered.push_back({&P::in_channels, {1, 2, 7, 8, 9, 10, 11, 16, 17, 42, 43}});
  gathered.push_back({&P::out_channels, {1, 2, 4, 28, 32, 36, 64, 68, 128, 132, 260}});
  gathered.push_back({&P::in_width, {63, 127, 128, 129, 1025}});
  gathered.push_back({&P::pose_inner, {2, 3, 5, 6}});
  gathered.push_back({&P::pose_columns, {4, 8}});
  Append(&families,
         Families<P>({Convolution({3, 8, 1, 1, 1, 1}), Convolution({2, 3, 1, 1, 3, 4})},
                     gathered));
  auto boxes = WindowDimensions<P>();
  boxes.push_back({&P::batch, {31, 32, 33, 127, 128, 129}});
  boxes.push_back({&P::in_channels, {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33}});
  boxes.push_back({&P::out_channels, {2, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33}});
  boxes.push_back({&P::pose_inner, {1, 3, 4, 16}});
  boxes.push_back({&P::pose_columns, {1, 3, 4, 16, 64}});
  Append(&families, Families<P>({Convolution({3, 4, 1, 1, 8, 8})}, boxes));
  Append(&families,
         Families<P>({Convolution({256, 256, 1, 1, 1, 1})},
                     {{&P::in_channels, {1, 8, 63, 64, 65, 128, 255, 257, 264, 1024}},
                      {&P::out_channels, {8, 64, 120, 127, 128, 136, 255, 257, 264}},
                      {&P::in_width, {1, 8, 16, 17, 33}},
                      {&P::stride_width, {2}},
                      {&P::batch, {1, 8, 33}}}));
  return families;
}

inline std::vector<Family<high_order_conv::Problem>> FamiliesOf(
    const high_order_conv::Problem*) {
  using P = high_order_conv::Problem;
  std::vector<P> bases;
  for (const int64_t kernel : {3, 5, 7}) {
    for (const auto& [channels, groups] : {std::pair(3, 1), {8, 2}}) {
      for (const bool channels_first : {false, true}) {
        P p{2, 9, 12, channels, groups, kernel, kernel};
        p.channels_first = channels_first;
        bases.push_back(p);
      }
    }
  }
  return Families<P>(
      bases, {{&P::batch, {0, 1, 3}},
              {&P::height, {1, 2, 3, 8, 16, 17, 33}},
              {&P::width, {1, 2, 3, 4, 5, 8, 31, 32, 33, 34, 64, 66, 128, 130, 600}},
              {&P::channels, {0, 1, 2, 3, 4, 5, 12, 16, 17, 130}},
              {&P::groups, {1, 2, 3, 16, 17}},
              {&P::kernel_height, {1, 3, 5, 7}},
              {&P::kernel_width, {1, 3, 5, 7, 9}},
              {&P::dilation_height, {2, 3, 11}},
              {&P::dilation_width, {2, 3, 11}}});
}

inline std::vector<Family<capsule_moments::Problem>> FamiliesOf(
    const capsule_moments::Problem*) {
  using P = capsule_moments::Problem;
  // All options with shares over parents; EM's, with shares over all; equal shares.
  P all;
  static_cast<capsule_conv::WindowProblem&>(all) = Convolution({3, 5});
  all.pose_rows = all.pose_inner = all.pose_columns = 4;
  all.order = 2;
  all.has_activations = all.has_bias = all.has_linear = 1;
  all.has_precision = all.has_center = all.has_prior = 1;
  P em = all;
  em.normalize = capsule_moments::kAll;
  em.has_linear = em.has_prior = 0;
  P equal = em;
  equal.normalize = capsule_moments::kParents;
  equal.has_bias = equal.has_precision = 0;
  auto dimensions = WindowDimensions<P>();
  Append(&dimensions, {{&P::in_channels, {0, 1, 2, 4, 7, 8, 9, 17}},
                       {&P::out_channels, {1, 2, 15, 16, 17, 31, 32, 33, 65}},
                       {&P::pose_rows, {0, 1, 3, 5}},
                       {&P::pose_inner, {0, 3, 5, 6}},
                       {&P::pose_columns, {0, 1, 3, 5}},
                       {&P::order, {0, 1}},
                       {&P::normalize, {capsule_moments::kNone}},
                       {&P::has_activations, {0}},
                       {&P::has_linear, {0}},
                       {&P::has_center, {0}}});
  return Families<P>({all, em, equal}, dimensions);
}

inline std::vector<Family<inq_conv::Problem>> FamiliesOf(const inq_conv::Problem*) {
  using P = inq_conv::Problem;
  const std::vector<int64_t> channels = {0,  1,  2,  3,  4,  5,  7,  8,  9,  15,
                                         16, 17, 31, 32, 33, 63, 64, 65, 128};
  const capsule_conv::WindowProblem window = Convolution({16, 32});
  auto dimensions = WindowDimensions<P>();
  dimensions.push_back({&P::in_channels, channels});
  dimensions.push_back({&P::out_channels, channels});
  dimensions.push_back({&P::bits, {2, 3, 4, 6, 7, 8}});
  return Families<P>({P{window, 5}}, dimensions);
}

inline std::vector<Family<inq_conv_int8::Problem>> FamiliesOf(
    const inq_conv_int8::Problem*) {
  using P = inq_conv_int8::Problem;
  const std::vector<int64_t> channels = {0, 1, 2, 3, 4, 5, 16, 17, 33, 64};
  const capsule_conv::WindowProblem window = Convolution({16, 32});
  auto dimensions = WindowDimensions<P>();
  dimensions.push_back({&P::in_channels, channels});
  dimensions.push_back({&P::out_channels, channels});
  dimensions.push_back({&P::bits, {2, 3, 4}});
  return Families<P>({P{{window, 5}}}, dimensions);
}

inline std::vector<Family<inq_capsule_routing::Problem>> FamiliesOf(
    const inq_capsule_routing::Problem*) {
  using P = inq_capsule_routing::Problem;
  P base{{3, 5, 4, 16, 8, 2}};
  base.set_epsilon(1e-7f);
  return Families<P>({base}, {{&P::batch, {0, 1, 2, 17}},
                              {&P::in_caps, {0, 1, 3, 33, 65}},
                              {&P::out_dim, {1, 3, 17}},
                              {&P::in_dim, {1, 3, 9}},
                              {&P::bits, {2, 4, 6, 8}}});
}

inline std::vector<Family<inq_decode::Problem>> FamiliesOf(const inq_decode::Problem*) {
  using P = inq_decode::Problem;
  return Families<P>({P{8, 1, 5}, P{3, 9, 5}}, {{&P::rows, {0, 1, 2, 63, 64, 65}},
                                                {&P::columns, {1, 2, 31, 32, 33}},
                                                {&P::bits, {2, 3, 4, 6, 7, 8}}});
}

// Sets the dimensions that follow from others. Families of high-order convolution give
// the channels per group.
inline void Complete(capsule_prediction::Problem*) {}
inline void Complete(capsule_routing::Problem*) {}
inline void Complete(inq_capsule_routing::Problem* p) {
  p->bits = std::max<int64_t>(p->bits, 2);
}
inline void Complete(inq_decode::Problem* p) {
  p->bits = std::max<int64_t>(p->bits, 2);
}
inline void Complete(high_order_conv::Problem* p) { p->channels *= p->groups; }
inline void Complete(capsule_conv::WindowProblem* p) {
  SetOutputs(p->pad_top, p->pad_left, p);
}
inline void Complete(capsule_conv_routing::Problem* p) { SetOutputs(p); }
inline void Complete(inq_conv::Problem* p) {
  p->bits = std::max<int64_t>(p->bits, 2);
  SetOutputs(p->pad_top, p->pad_left, p);
}

// Draws each size of a family: the base's, one at an edge, or any up to the largest.
template <typename P>
P DrawFrom(const Family<P>& family, Source& draw) {
  P p = family.base;
  for (const auto& [dimension, sizes] : family.dimensions) {
    switch (draw.Below(4)) {
      case 0:
        p.*dimension = draw.Pick(sizes);
        break;
      case 1:
        p.*dimension = 1 + draw.Below(std::clamp<int64_t>(
                               *std::max_element(sizes.begin(), sizes.end()), 1, 70));
    }
  }
  // High-order convolution requires odd kernel sizes.
  if constexpr (std::is_same_v<P, high_order_conv::Problem>) {
    p.kernel_height |= 1;
    p.kernel_width |= 1;
  }
  Complete(&p);
  return p;
}

// Draws a problem of any family, or a small one, of at most `most_work` multiply-adds.
template <typename P>
P DrawAny(Source& draw, int64_t most_work) {
  static const auto families = FamiliesOf(static_cast<const P*>(nullptr));
  while (true) {
    const size_t which = draw.Below(families.size() + 1);
    if (which == families.size()) return DrawProblem<P>(draw, most_work);
    const P p = DrawFrom(families[which], draw);
    if (Work(p) <= most_work) return p;
  }
}

// Returns each family with each size of each dimension, up to 6 x `most_work`, and as
// many random problems of at most `most_work`.
template <typename P>
std::vector<P> Edges(Source& draw, int64_t most_work) {
  std::vector<P> problems;
  const auto add = [&](P p) {
    Complete(&p);
    if (Work(p) <= 6 * most_work) problems.push_back(p);
  };
  for (const auto& family : FamiliesOf(static_cast<const P*>(nullptr))) {
    add(family.base);
    for (const auto& [dimension, sizes] : family.dimensions) {
      for (const int64_t size : sizes) {
        P p = family.base;
        p.*dimension = size;
        add(p);
      }
    }
  }
  for (size_t fixed = problems.size(), i = 0; i < fixed; ++i) {
    problems.push_back(DrawAny<P>(draw, most_work));
  }
  return problems;
}

}  // namespace capsops
