// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared by the programs of this folder: random numbers, and each problem's ops, their
// tensors and their work.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/capsule_moments.h"
#include "cc/launch/capsule_prediction.h"
#include "cc/launch/capsule_routing.h"
#include "cc/launch/high_order_conv.h"
#include "cc/launch/inq_capsule_routing.h"
#include "cc/launch/inq_conv.h"
#include "cc/launch/inq_conv_int8.h"
#include "cc/launch/inq_decode.h"

namespace capsops {

using Bytes = std::vector<unsigned char>;
using Counts = std::vector<int64_t>;  // elements of each tensor of a plan

constexpr int32_t kTopExponent = 3;  // exponent of the largest weight of INQ codes

// Draws numbers between 0.5 and 1 in magnitude, times 2^-shift, weight codes that any
// number of bits allows, and exponents.
class Source {
 public:
  Source() = default;
  explicit Source(uint32_t seed) : bits_(seed) {}

  int64_t Below(int64_t count) { return bits_() % count; }
  template <typename List = std::initializer_list<int64_t>>
  int64_t Pick(const List& from) {
    return from.begin()[Below(from.size())];
  }
  void Draw(float* x) { *x = Magnitude() * Sign(); }
  void Draw(double* x) { *x = Magnitude() * Sign(); }
  void Draw(Float16* x) { x->bits = (0x3800 - (shift << 10)) | (bits_() & 0x83ff); }
  void Draw(BFloat16* x) { x->bits = (0x3f00 - (shift << 7)) | (bits_() & 0x807f); }
  void Draw(uint8_t* x) { *x = bits_() % 3; }
  void Draw(int64_t* x) { *x = Below(7) - 3; }

  int shift = 0;

 private:
  float Magnitude() { return std::ldexp(0.5f + (bits_() & 0xffff) / 131072.f, -shift); }
  float Sign() { return bits_() & 1 ? 1.f : -1.f; }

  std::mt19937 bits_;
};

inline int64_t InPixels(const capsule_conv::WindowProblem& p) {
  return p.batch * p.in_height * p.in_width;
}
inline int64_t OutPixels(const capsule_conv::WindowProblem& p) {
  return p.batch * p.out_height * p.out_width;
}
inline int64_t Pairs(const capsule_conv::WindowProblem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels * p.out_channels;
}

// Returns the multiply-adds of one pass.
inline int64_t Work(const capsule_prediction::Problem& p) {
  return p.batch * p.in_caps * p.out_caps * p.out_dim * p.in_dim;
}
inline int64_t Work(const capsule_routing::Problem& p) {
  return p.iterations * p.batch * p.in_caps * p.out_caps * p.out_dim * p.in_dim;
}
inline int64_t Work(const capsule_conv::Problem& p) {
  return OutPixels(p) * Pairs(p) * p.pose_depth * p.pose_rows * p.pose_inner *
         p.pose_columns;
}
inline int64_t Work(const high_order_conv::Problem& p) {
  return p.batch * p.height * p.width * p.channels * p.kernel_height * p.kernel_width;
}
inline int64_t Work(const inq_conv::Problem& p) { return OutPixels(p) * Pairs(p); }
inline int64_t Work(const inq_decode::Problem& p) { return p.rows * p.columns; }
inline int64_t Work(const capsule_moments::Problem& p) {
  return OutPixels(p) * Pairs(p) * p.pose_rows * p.pose_inner * p.pose_columns;
}

inline int64_t OutPixels(const capsule_conv_routing::Problem& p) {
  return p.batch * p.out_depth * p.out_height * p.out_width;
}
inline int64_t Weights(const capsule_conv_routing::Problem& p) {
  return p.kernel_depth * p.kernel_height * p.kernel_width * p.in_dim * p.parents *
         p.out_dim;
}
// Counts routing, too, which remains if in_dim or types is 0.
inline int64_t Work(const capsule_conv_routing::Problem& p) {
  const int64_t pairs = std::max<int64_t>(p.types, 1) * p.parents * p.out_dim;
  return OutPixels(p) * std::max(p.types * Weights(p), p.iterations * pairs);
}

// Calls visit(Op(), counts) for each op on the problem.
template <typename Visit>
void ForEachOp(const capsule_prediction::Problem& p, const Visit& visit) {
  using namespace capsule_prediction;
  const int64_t input = p.batch * p.in_caps * p.in_dim;
  const int64_t weights = p.in_caps * p.out_caps * p.out_dim * p.in_dim;
  const int64_t output = p.batch * p.in_caps * p.out_caps * p.out_dim;
  visit(Forward(), Counts{input, weights, output});
  visit(Backward(), Counts{output, input, weights, input, weights});
}

template <typename Visit>
void ForEachOp(const capsule_routing::Problem& p, const Visit& visit) {
  using namespace capsule_routing;
  const int64_t input = p.batch * p.in_caps * p.in_dim;
  const int64_t logits = p.in_caps * p.out_caps;
  const int64_t weights = logits * p.out_dim * p.in_dim;
  const int64_t output = p.batch * p.out_caps * p.out_dim;
  const int64_t sums = p.iterations * output;
  if (p.iterations > 0) {
    visit(Forward(), Counts{input, weights, logits, output, sums});
    visit(Backward(),
          Counts{output, input, weights, logits, sums, input, weights, logits});
  }
  visit(Coefficients(), Counts{input, weights, logits, sums, p.batch * logits});
}

template <typename Visit>
void ForEachOp(const inq_capsule_routing::Problem& p, const Visit& visit) {
  const int64_t input = p.batch * p.in_caps * p.in_dim;
  const int64_t output = p.batch * p.out_caps * p.out_dim;
  visit(inq_capsule_routing::Forward(),
        Counts{input, p.weights(), 1, p.in_caps * p.out_caps, output,
               p.iterations * output});
}

template <typename Visit>
void ForEachOp(const capsule_conv::Problem& p, const Visit& visit) {
  using namespace capsule_conv;
  const int64_t rows = p.pose_depth * p.pose_rows;
  const int64_t input = InPixels(p) * p.in_channels * rows * p.pose_inner;
  const int64_t weights = Pairs(p) * p.pose_depth * p.pose_inner * p.pose_columns;
  const int64_t output = OutPixels(p) * p.out_channels * rows * p.pose_columns;
  visit(Forward(), Counts{input, weights, output});
  visit(ForwardBiasRelu(), Counts{input, weights, PixelSize(p), output});
  visit(BackpropInput(), Counts{output, weights, input});
  visit(BackpropWeights(), Counts{input, output, weights});
}

template <typename Visit>
void ForEachOp(const capsule_conv_routing::Problem& p, const Visit& visit) {
  using namespace capsule_conv_routing;
  const int64_t input =
      p.batch * p.in_depth * p.in_height * p.in_width * p.types * p.in_dim;
  const int64_t weights = (p.shared_weights ? 1 : p.types) * Weights(p);
  const int64_t bias = p.parents * p.out_dim, logits = p.types * p.parents;
  const int64_t output = OutPixels(p) * bias;
  visit(Forward(), Counts{input, weights, bias, logits, output});
  visit(Backward(),
        Counts{output, input, weights, bias, logits, input, weights, bias, logits});
}

// Returns the shift that an operand of an op is drawn with.
template <typename Op, typename P>
int ShiftOf(const Op&, const P&, size_t) {
  return 0;
}
// Weights are scaled so that votes have a length of about 1. Shares of longer votes
// would jump from parent to parent with the last bits of the votes.
inline int ShiftOfWeights(const capsule_conv_routing::Problem& p) {
  const int64_t squares = Weights(p) / p.parents;
  return squares == 0 ? 0 : std::ilogb(squares) / 2;
}
inline int ShiftOf(const capsule_conv_routing::Forward&,
                   const capsule_conv_routing::Problem& p, size_t operand) {
  return operand == 1 ? ShiftOfWeights(p) : 0;
}
inline int ShiftOf(const capsule_conv_routing::Backward&,
                   const capsule_conv_routing::Problem& p, size_t operand) {
  return operand == 2 ? ShiftOfWeights(p) : 0;
}

template <typename Visit>
void ForEachOp(const high_order_conv::Problem& p, const Visit& visit) {
  using namespace high_order_conv;
  const int64_t pixels = p.batch * p.height * p.width;
  const int64_t input = pixels * p.channels;
  const int64_t filters = pixels * p.groups * p.kernel_height * p.kernel_width;
  visit(Forward(), Counts{input, filters, input});
  visit(Backward(), Counts{input, input, filters, input, filters});
}

template <typename Visit>
void ForEachOp(const inq_conv::Problem& p, const Visit& visit) {
  using namespace inq_conv;
  const int64_t input = InPixels(p) * p.in_channels, codes = Pairs(p);
  const int64_t output = OutPixels(p) * p.out_channels;
  visit(Forward(), Counts{input, codes, output});
  visit(BackpropInput(), Counts{output, codes, input});
}

template <typename Visit>
void ForEachOp(const inq_conv_int8::Problem& p, const Visit& visit) {
  const int64_t input = InPixels(p) * p.in_channels;
  const int64_t output = OutPixels(p) * p.out_channels;
  visit(inq_conv_int8::Forward(), Counts{input, Pairs(p), 1, p.out_channels, output});
}

template <typename Visit>
void ForEachOp(const inq_decode::Problem& p, const Visit& visit) {
  visit(inq_decode::Decode(), Counts{Work(p), p.columns, Work(p)});
}

template <typename Visit>
void ForEachOp(const capsule_moments::Problem& p, const Visit& visit) {
  using namespace capsule_moments;
  const int64_t children = InPixels(p) * p.in_channels;
  const int64_t poses = children * p.pose_rows * p.pose_inner;
  const int64_t activations = p.has_activations * children;
  const int64_t weights = Pairs(p) * p.pose_inner * p.pose_columns;
  const int64_t parents = NumWindows(p) * p.out_channels;
  const int64_t votes = parents * VoteSize(p);
  const int64_t bias = p.has_bias * parents, prior = p.has_prior * Pairs(p);
  const int64_t linear = p.has_linear * votes, precision = p.has_precision * votes;
  const int64_t center = p.has_center * votes;
  const int64_t first = p.order >= 1 ? votes : 0, second = p.order == 2 ? votes : 0;
  const Counts inputs{poses,  activations, weights, bias,
                      linear, precision,   center,  prior};
  const auto call = [&](auto op, const Counts& before, const Counts& after) {
    Counts counts = before;
    counts.insert(counts.end(), inputs.begin(), inputs.end());
    counts.insert(counts.end(), after.begin(), after.end());
    visit(op, counts);
  };
  call(Forward(), {}, {parents, first, second});
  Counts results{parents, first};
  results.insert(results.end(), inputs.begin(), inputs.end());
  call(Backward(), {parents, first, second}, results);
  call(Shares(), {}, {NumWindows(p) * Pairs(p)});
}

// Returns the output size along an axis with `pad` pixels of padding before the image
// and `after` pixels behind it.
inline int64_t Outputs(int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                       int64_t pad, int64_t after) {
  const int64_t beyond = in + pad + after - (kernel - 1) * dilation;
  return beyond > 0 ? (beyond - 1) / stride + 1 : 0;
}

inline void SetOutputs(int64_t below, int64_t right, capsule_conv::WindowProblem* p) {
  p->out_height = Outputs(p->in_height, p->kernel_height, p->stride_height,
                          p->dilation_height, p->pad_top, below);
  p->out_width = Outputs(p->in_width, p->kernel_width, p->stride_width,
                         p->dilation_width, p->pad_left, right);
}

// The members of a problem along one spatial axis.
template <typename P>
struct SpatialAxis {
  int64_t P::*in, P::*kernel, P::*out, P::*stride, P::*dilation, P::*pad;
};
inline constexpr SpatialAxis<capsule_conv_routing::Problem> kSpatialAxes[] = {
    {&capsule_conv_routing::Problem::in_depth,
     &capsule_conv_routing::Problem::kernel_depth,
     &capsule_conv_routing::Problem::out_depth,
     &capsule_conv_routing::Problem::stride_depth,
     &capsule_conv_routing::Problem::dilation_depth,
     &capsule_conv_routing::Problem::pad_front},
    {&capsule_conv_routing::Problem::in_height,
     &capsule_conv_routing::Problem::kernel_height,
     &capsule_conv_routing::Problem::out_height,
     &capsule_conv_routing::Problem::stride_height,
     &capsule_conv_routing::Problem::dilation_height,
     &capsule_conv_routing::Problem::pad_top},
    {&capsule_conv_routing::Problem::in_width,
     &capsule_conv_routing::Problem::kernel_width,
     &capsule_conv_routing::Problem::out_width,
     &capsule_conv_routing::Problem::stride_width,
     &capsule_conv_routing::Problem::dilation_width,
     &capsule_conv_routing::Problem::pad_left}};

// Sets sizes of the output, with as much padding after the image as before it.
inline void SetOutputs(capsule_conv_routing::Problem* p) {
  for (const auto& axis : kSpatialAxes) {
    int64_t& dilation = p->*axis.dilation;
    const int64_t in = p->*axis.in, kernel = p->*axis.kernel, stride = p->*axis.stride;
    const int64_t pad = p->*axis.pad;
    if (p->transposed) {
      dilation = 1;
      p->*axis.out = std::max<int64_t>(
          in * stride + std::max<int64_t>(kernel - stride, 0) - 2 * pad, 0);
    } else {
      p->*axis.out = Outputs(in, kernel, stride, dilation, pad, pad);
    }
  }
}

}  // namespace capsops
