// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared by all kernels of moments: sizes of packed data, packing, and iteration over
// windows and their children.
#pragma once

#include <cstdint>

#include "cc/cpu/capsule_moments.h"
#include "cc/cpu/capsule_moments_tile.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"
#include "cc/launch/taps.h"

namespace capsops::capsule_moments::CAPSOPS_ISA {

constexpr int64_t kRunChildren = 32;  // most children per run, which is a partial sum
constexpr int64_t kGroup = 4;         // children whose votes are kept at a time

// Sizes in elements, except `vectors`.
template <typename A>
struct Sizes {
  int64_t vectors;  // vectors of parents
  int64_t parents;  // one element per parent, padded to whole vectors
  int64_t vote;     // elements of a vote
  int64_t votes;    // one vote per parent
  int64_t matrix;   // packed weights of a child
  int64_t pose;
  int64_t padded_pose;         // `pose` rounded up to whole vectors
  bool padded;                 // whether the last vector has padding lanes
  Vector<Integer<A>> present;  // mask of the last vector's other lanes

  explicit Sizes(const Problem& p) {
    vectors = CeilDivide(p.out_channels, kLanes<A>);
    parents = vectors * kLanes<A>;
    vote = VoteSizeOf(p);
    votes = vote * parents;
    matrix = p.pose_inner * p.pose_columns * parents;
    pose = p.pose_rows * p.pose_inner;
    padded_pose = RoundUp(pose, kLanes<A>);
    padded = parents != p.out_channels;
    const int64_t last = p.out_channels - (vectors - 1) * kLanes<A>;
    present = (Vector<Integer<A>>)KeepLanes<A>(last, (Vector<A>)~Vector<Integer<A>>{});
  }
  static int64_t VoteSizeOf(const Problem& p) { return p.pose_rows * p.pose_columns; }

  // Returns v with zeros in the padding lanes.
  CAPSOPS_INLINE Vector<A> MaskPadding(int64_t vector, Vector<A> v) const {
    if (!padded || vector != vectors - 1) return v;
    return (Vector<A>)((Vector<Integer<A>>)v & present);
  }
};

// Returns the number of parents in vector `v`.
template <typename A>
inline int64_t LanesOf(const Problem& p, int64_t v) {
  return Min(kLanes<A>, p.out_channels - v * kLanes<A>);
}

// Packs rows of `columns` elements, one row per parent, as [vector][column][lane].
template <typename T, typename A>
void PackRows(const Problem& p, const Sizes<A>& s, const T* from, int64_t columns,
              A* to) {
  for (int64_t v = 0; v < s.vectors; ++v) {
    ToLanes(from + v * kLanes<A> * columns, columns, LanesOf<A>(p, v), columns,
            to + v * columns * kLanes<A>);
  }
}

template <typename T, typename A>
void UnpackRows(const Problem& p, const Sizes<A>& s, const A* from, int64_t columns,
                T* to) {
  for (int64_t v = 0; v < s.vectors; ++v) {
    FromLanes(from + v * columns * kLanes<A>, columns, LanesOf<A>(p, v), columns,
              to + v * kLanes<A> * columns);
  }
}

// The packed statistics of a window and the gradients of its moments; null if absent.
// The precision is premultiplied by -1/2.
template <typename A>
struct WindowData {
  A *bias, *grad_mass;                                           // parents
  A *linear, *halved, *center, *grad_first, *grad_second, *end;  // votes

  template <typename T>
  WindowData(const Sizes<A>& s, const Operands<T>& in, const Moments<const A>& grads,
             A* at) {
    const auto take = [&at](bool present, int64_t size) {
      A* const taken = present ? at : nullptr;
      if (present) at += size;
      return taken;
    };
    bias = take(in.bias != nullptr, s.parents);
    grad_mass = take(grads.mass != nullptr, s.parents);
    linear = take(in.linear != nullptr, s.votes);
    halved = take(in.precision != nullptr, s.votes);
    center = take(in.center != nullptr, s.votes);
    grad_first = take(grads.first != nullptr, s.votes);
    grad_second = take(grads.second != nullptr, s.votes);
    end = at;
  }

  template <typename T>
  void Pack(const Problem& p, const Sizes<A>& s, const Operands<T>& in,
            const Moments<const A>& grads, int64_t window) const {
    const auto pack = [&](const A* from, int64_t columns, A* to) {
      if (to == nullptr) return;
      PackRows(p, s, from + window * p.out_channels * columns, columns, to);
    };
    pack(in.bias, 1, bias);
    pack(grads.mass, 1, grad_mass);
    pack(in.linear, s.vote, linear);
    pack(in.precision, s.vote, halved);
    for (int64_t n = 0; halved != nullptr && n < s.votes; ++n) halved[n] *= A{-0.5};
    pack(in.center, s.vote, center);
    pack(grads.first, s.vote, grad_first);
    pack(grads.second, s.vote, grad_second);
  }
};

// Returns the most elements that WindowData needs.
template <typename A>
int64_t WindowSize(const Problem& p, const Sizes<A>& s, bool grads) {
  const int64_t moments = grads ? p.order : 0;
  return s.parents * (p.has_bias + grads) +
         s.votes * (p.has_linear + p.has_precision + p.has_center + moments);
}

// Consecutive channels of a pixel, as children of a window.
template <typename A>
struct Run {
  int64_t count;
  const A* poses;
  const A* weights;  // packed
  const A* prior;    // packed, or null
  int64_t child;     // the first, in [batch, in_height, in_width, in_channels]
  int64_t pair;      // the first, in [kernel_height, kernel_width, in_channels]

  Run Part(const Sizes<A>& s, int64_t first, int64_t part_count) const {
    return {part_count,
            poses + first * s.pose,
            weights + first * s.matrix,
            prior == nullptr ? nullptr : prior + first * s.parents,
            child + first,
            pair + first};
  }
};

// Sets the weights and the prior of a run that begins with `pair`.
template <typename A>
void SetPair(const Problem& p, const Division& d, const Sizes<A>& s, const A* packed,
             int64_t pair, Run<A>* run) {
  run->pair = pair;
  run->weights = packed + pair * s.matrix;
  const bool prior = p.has_prior == 1 && d.pairs > 0;
  run->prior = prior ? packed + d.pairs * s.matrix + pair * s.parents : nullptr;
}

// Calls visit(window - begin, run) for all children of windows [begin, end), in runs.
// Taps are the outer loop, so that all windows use the weights of a run in turn. `copy`
// has space for the poses of a run.
template <typename T, typename A, typename Visit>
void VisitWindows(const Problem& p, const Division& d, const Sizes<A>& s, int64_t begin,
                  int64_t end, const T* poses, const A* packed, A* copy,
                  const Visit& visit) {
  if (p.in_channels == 0) return;
  const capsule_conv::Taps down(capsule_conv::Vertical(p));
  const capsule_conv::Taps across(capsule_conv::Horizontal(p));
  for (int64_t kh = down.first; kh < down.first + down.count; ++kh) {
    for (int64_t kw = across.first; kw < across.first + across.count; ++kw) {
      for (int64_t c = 0; c < p.in_channels; c += kRunChildren) {
        Run<A> run;
        run.count = Min(kRunChildren, p.in_channels - c);
        SetPair(p, d, s, packed, (kh * p.kernel_width + kw) * p.in_channels + c, &run);
        for (int64_t window = begin; window < end; ++window) {
          const int64_t x = window % p.out_width, row = window / p.out_width;
          const int64_t y = row % p.out_height, n = row / p.out_height;
          const int64_t iy = y * p.stride_height - p.pad_top + kh * p.dilation_height;
          const int64_t ix = x * p.stride_width - p.pad_left + kw * p.dilation_width;
          if (iy < 0 || iy >= p.in_height || ix < 0 || ix >= p.in_width) continue;
          run.child = ((n * p.in_height + iy) * p.in_width + ix) * p.in_channels + c;
          run.poses = Widened(poses + run.child * s.pose, run.count * s.pose, copy);
          visit(window - begin, run);
        }
      }
    }
  }
}

// Calls visit(slot, window, run) for each of the `pixels` and each window that sees it,
// where `slot` is the pixel's index among these. A run has the `channels` of the pixel.
// `poses` holds the poses of these channels, pixel by pixel.
template <typename A, typename Visit>
void VisitPixels(const Problem& p, const Division& d, const Sizes<A>& s, Range pixels,
                 Range channels, const A* poses, const A* packed, const Visit& visit) {
  const capsule_conv::Taps down(capsule_conv::Vertical(p));
  const capsule_conv::Taps across(capsule_conv::Horizontal(p));
  Run<A> run;
  run.count = channels.end - channels.begin;
  for (int64_t kh = down.first; kh < down.first + down.count; ++kh) {
    for (int64_t kw = across.first; kw < across.first + across.count; ++kw) {
      const int64_t tap = kh * p.kernel_width + kw;
      SetPair(p, d, s, packed, tap * p.in_channels + channels.begin, &run);
      for (int64_t pixel = pixels.begin; pixel < pixels.end; ++pixel) {
        const int64_t ix = pixel % p.in_width, row = pixel / p.in_width;
        const int64_t iy = row % p.in_height, n = row / p.in_height;
        const int64_t below = iy + p.pad_top - kh * p.dilation_height;
        const int64_t right = ix + p.pad_left - kw * p.dilation_width;
        if (below < 0 || below % p.stride_height != 0) continue;
        if (right < 0 || right % p.stride_width != 0) continue;
        const int64_t y = below / p.stride_height, x = right / p.stride_width;
        if (y >= p.out_height || x >= p.out_width) continue;
        const int64_t slot = pixel - pixels.begin;
        run.child = pixel * p.in_channels + channels.begin;
        run.poses = poses + slot * run.count * s.pose;
        visit(slot, (n * p.out_height + y) * p.out_width + x, run);
      }
    }
  }
}

// Calls visit(group) for all children of a run, kGroup at a time.
template <typename A, typename Visit>
CAPSOPS_INLINE void ForGroups(const Sizes<A>& s, const Run<A>& run,
                              const Visit& visit) {
  for (int64_t first = 0; first < run.count; first += kGroup) {
    visit(run.Part(s, first, Min(kGroup, run.count - first)));
  }
}

}  // namespace capsops::capsule_moments::CAPSOPS_ISA
