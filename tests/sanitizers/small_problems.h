// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Draws a small problem of each op.
#pragma once

#include <cstdint>

#include "tests/sanitizers/problems.h"

namespace capsops {

inline void Draw(Source& draw, capsule_prediction::Problem* p) {
  p->batch = draw.Pick({0, 1, 2, 5, 17});
  p->in_caps = draw.Pick({1, 3, 20});
  p->out_caps = draw.Pick({1, 3, 10});
  p->out_dim = draw.Pick({1, 4, 7, 16});
  p->in_dim = draw.Pick({0, 1, 3, 8, 17});
}

inline void Draw(Source& draw, capsule_routing::Problem* p) {
  p->batch = draw.Pick({0, 1, 2, 5, 9});
  p->in_caps = draw.Pick({0, 1, 3, 20});
  p->out_caps = draw.Pick({1, 3, 10, 17});
  p->out_dim = draw.Pick({1, 4, 7, 16});
  p->in_dim = draw.Pick({1, 3, 8});
  p->iterations = draw.Pick({1, 2, 3});
  p->set_epsilon(1e-7f);
}

inline void Draw(Source& draw, inq_capsule_routing::Problem* p) {
  Draw(draw, static_cast<capsule_routing::Problem*>(p));
  p->bits = draw.Pick({2, 5, 8});
}

inline void DrawWindow(Source& draw, capsule_conv::WindowProblem* p) {
  p->batch = draw.Pick({0, 1, 2, 3, 3});
  p->in_height = draw.Pick({1, 2, 5, 9});
  p->in_width = draw.Pick({1, 3, 8, 19});
  p->kernel_height = draw.Pick({1, 2, 3, 5});
  p->kernel_width = draw.Pick({1, 2, 3, 5});
  p->stride_height = draw.Pick({1, 1, 2, 3});
  p->stride_width = draw.Pick({1, 1, 2, 3});
  p->dilation_height = draw.Pick({1, 1, 2});
  p->dilation_width = draw.Pick({1, 1, 2});
  p->pad_top = draw.Pick({0, 1, 2});
  p->pad_left = draw.Pick({0, 1, 2});
  const int64_t below = draw.Pick({0, 1, 2}), right = draw.Pick({0, 1, 2});
  SetOutputs(below, right, p);
}

inline void Draw(Source& draw, capsule_conv::Problem* p) {
  DrawWindow(draw, p);
  p->in_channels = draw.Pick({0, 1, 2, 3, 8, 17});
  p->out_channels = draw.Pick({1, 2, 3, 8, 17});
  p->pose_depth = draw.Pick({1, 1, 2});
  p->pose_rows = draw.Pick({1, 1, 2, 4});
  p->pose_inner = draw.Pick({0, 1, 3, 4, 8});
  p->pose_columns = draw.Pick({0, 1, 3, 4, 16, 33});
}

inline void Draw(Source& draw, capsule_conv_routing::Problem* p) {
  p->batch = draw.Pick({0, 1, 2, 3});
  p->types = draw.Pick({0, 1, 2, 5, 8});
  p->in_dim = draw.Pick({0, 1, 3, 4, 8});
  p->parents = draw.Pick({1, 1, 2, 3, 10});
  p->out_dim = draw.Pick({1, 4, 7, 16, 33});
  for (int64_t i = draw.Below(3); i < 3; ++i) {
    const auto& axis = kSpatialAxes[i];
    p->*axis.in = draw.Pick({1, 2, 5, 9});
    p->*axis.kernel = draw.Pick({1, 2, 3});
    p->*axis.stride = draw.Pick({1, 1, 2, 3});
    p->*axis.dilation = draw.Pick({1, 1, 2});
    p->*axis.pad = draw.Pick({0, 1, 2});
  }
  p->iterations = draw.Pick({1, 2, 3, 3, 4});
  p->shared_weights = draw.Pick({0, 1});
  p->transposed = draw.Pick({0, 1});
  p->leaky = draw.Pick({0, 1});
  p->set_epsilon(1e-7f);
  SetOutputs(p);
}

inline void Draw(Source& draw, high_order_conv::Problem* p) {
  p->batch = draw.Pick({0, 1, 2, 3});
  p->height = draw.Pick({1, 2, 5, 9});
  p->width = draw.Pick({1, 3, 8, 19, 40});
  p->groups = draw.Pick({1, 1, 2, 3});
  p->channels = p->groups * draw.Pick({0, 1, 3, 8, 16, 17});
  p->kernel_height = draw.Pick({1, 3, 5});
  p->kernel_width = draw.Pick({1, 3, 5});
  p->dilation_height = draw.Pick({1, 1, 2, 11});
  p->dilation_width = draw.Pick({1, 1, 2, 11});
  p->channels_first = draw.Pick({0, 1});
}

inline void Draw(Source& draw, inq_conv::Problem* p) {
  DrawWindow(draw, p);
  p->in_channels = draw.Pick({0, 1, 3, 8, 16, 33});
  p->out_channels = draw.Pick({1, 3, 8, 16, 33});
  p->bits = draw.Pick({2, 5, 8});
}

inline void Draw(Source& draw, inq_conv_int8::Problem* p) {
  Draw(draw, static_cast<inq_conv::Problem*>(p));
  p->bits = draw.Pick({2, 3, 4, 5});
}

inline void Draw(Source& draw, inq_decode::Problem* p) {
  *p = {draw.Pick({0, 1, 17, 1152}), draw.Pick({1, 1, 8, 9, 33}), draw.Pick({2, 5, 8})};
}

inline void Draw(Source& draw, capsule_moments::Problem* p) {
  using namespace capsule_moments;
  DrawWindow(draw, p);
  p->in_channels = draw.Pick({0, 1, 2, 3, 8, 17});
  p->out_channels = draw.Pick({1, 2, 3, 8, 17});
  p->pose_rows = draw.Pick({0, 1, 1, 2, 4, 5});
  p->pose_inner = draw.Pick({0, 1, 3, 4, 5});
  p->pose_columns = draw.Pick({0, 1, 3, 4, 9});
  p->order = draw.Pick({0, 1, 2});
  p->normalize = draw.Pick({kParents, kAll, kNone});
  for (int64_t* const has : {&p->has_activations, &p->has_bias, &p->has_linear,
                             &p->has_precision, &p->has_center, &p->has_prior}) {
    *has = draw.Pick({0, 1});
  }
}

// Draws a problem of at most `most_work` multiply-adds.
template <typename Problem>
Problem DrawProblem(Source& draw, int64_t most_work) {
  Problem p;
  do {
    Draw(draw, &p);
  } while (Work(p) > most_work);
  return p;
}

}  // namespace capsops
