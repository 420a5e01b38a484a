// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// squash(s) = s f(|s|^2) with f(q) = q / (1 + q) / sqrt(q + epsilon), and its gradient,
//   ds = f dv + 2 f' <s, dv> s.
#pragma once

namespace capsops::capsule_routing {

// If q is over kHuge, q or f' may overflow A. The length is then computed from kShrink
// s, and squash(s) is s / |s|.
template <typename A>
constexpr A kHuge = sizeof(A) == 8 ? A(0x1p640) : A(0x1p80);
template <typename A>
constexpr A kShrink = sizeof(A) == 8 ? A(0x1p-600) : A(0x1p-80);

// The factors of squash(s) = factor along(s) and of ds = gain dv + slope <along(s), dv>
// along(s), where along(s) is s, or s / |s| for huge s.
template <typename A>
struct Squash {
  bool huge;
  A unit, factor, gain, slope;

  // `q` is |s|^2 and `small` is |kShrink s|^2.
  __device__ Squash(A q, A small, A epsilon) : huge(q > kHuge<A>) {
    if (huge) {
      // An infinite s makes everything NaN.
      unit = rsqrt(small + epsilon * kShrink<A> * kShrink<A>) + (small - small);
      factor = 1;
      gain = unit * kShrink<A>;
      slope = -gain;
    } else {
      const A root = rsqrt(q + epsilon);
      unit = 1;
      factor = gain = q / (1 + q) * root;
      slope = root / (1 + q) * (2 / (1 + q) - q * root * root);
    }
  }

  __device__ A Along(A s) const { return huge ? s * kShrink<A> * unit : s; }
  // Returns slope <along(s), dv>, given <s, dv> and <kShrink s, dv>.
  __device__ A Slope(A product, A small_product) const {
    return slope * (huge ? small_product * unit : product);
  }
};

}  // namespace capsops::capsule_routing
