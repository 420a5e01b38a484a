// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Sums over the windows that see a child: the normalizers of kAll, and the gradients of
// poses, activations, weights and prior. A task has a block of channels; its pixels are
// processed kBlockPixels at a time, and lanes are parents.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_moments_common.h"
#include "cc/cpu/capsule_moments_votes.h"
#include "cc/cpu/lanes.h"

namespace capsops::capsule_moments::CAPSOPS_ISA {

constexpr int64_t kBlockPixels = 8;     // most pixels per block
constexpr int64_t kBlockChannels = 16;  // most channels per task

inline int64_t ChannelBlocks(const Problem& p) {
  return CeilDivide(p.in_channels, kBlockChannels);
}
inline Range ChannelBlock(const Problem& p, int64_t block) {
  const int64_t begin = block * kBlockChannels;
  return {begin, Min(begin + kBlockChannels, p.in_channels)};
}
inline int64_t Pixels(const Problem& p) { return p.batch * p.in_height * p.in_width; }

// Copies and converts the poses of a range of channels, pixel by pixel.
template <typename T, typename A>
void CopyPoses(const Problem& p, const Sizes<A>& s, const T* poses, Range pixels,
               Range channels, A* to) {
  const int64_t count = (channels.end - channels.begin) * s.pose;
  for (int64_t pixel = pixels.begin; pixel < pixels.end; ++pixel) {
    const T* const from = poses + (pixel * p.in_channels + channels.begin) * s.pose;
    for (int64_t n = 0; n < count; ++n) *to++ = Widen(from[n]);
  }
}

// The scratch layout of a task: data of a window, votes of a group, poses, and `child`
// elements for each child of a block.
template <typename A>
struct PixelLayout {
  int64_t votes, poses, children, size;

  PixelLayout(const Problem& p, const Sizes<A>& s, bool grads, int64_t child) {
    const int64_t block = kBlockPixels * Min(kBlockChannels, p.in_channels);
    votes = WindowSize(p, s, grads);
    poses = votes + Votes<A>::Size(s);
    children = poses + RoundUp(block * s.pose, kLanes<A>);
    size = children + block * child;
  }
};

// Computes the normalizers of a task by an online softmax: for each child and lane, it
// keeps the largest logit so far, the sum of e^(logit - largest), and the sum of its
// products with dr. `largest` begins at the lowest finite number, because the logits of
// padding lanes are -inf, and -inf - -inf is NaN.
template <typename T>
void NormalizeTask(const Problem& p, const Division& d, int64_t task,
                   const Operands<T>& in, const Statistic<T>* packed,
                   const Moments<const Statistic<T>>& grads,
                   const Normalizers<Statistic<T>>& to, void* scratch) {
  using A = Statistic<T>;
  constexpr int64_t L = kLanes<A>;
  const Sizes<A> s(p);
  const bool has_grads = grads.mass != nullptr;
  const PixelLayout<A> at(p, s, has_grads, 3 * L);
  A* const numbers = static_cast<A*>(scratch);
  const int64_t begin = task / ChannelBlocks(p) * kBlockPixels;
  const Range pixels{begin, Min(begin + kBlockPixels, Pixels(p))};
  const Range channels = ChannelBlock(p, task % ChannelBlocks(p));
  const int64_t count = channels.end - channels.begin;
  A* const state = numbers + at.children;
  for (int64_t n = 0; n < (pixels.end - begin) * count * 3 * L; n += 3 * L) {
    Store(state + n, Vector<A>{} - (sizeof(A) == 8 ? A(__DBL_MAX__) : A(__FLT_MAX__)));
    Store(state + n + L, Vector<A>{});
    Store(state + n + 2 * L, Vector<A>{});
  }
  CopyPoses(p, s, in.poses, pixels, channels, numbers + at.poses);
  const WindowData<A> data(s, in, grads, numbers);
  const Votes<A> votes(s, has_grads, numbers + at.votes);
  VisitPixels(p, d, s, pixels, channels, numbers + at.poses, packed,
              [&](int64_t slot, int64_t window, const Run<A>& run) {
                data.Pack(p, s, in, grads, window);
                ForGroups(s, run, [&](const Run<A>& group) {
                  ComputeVotes<true>(p, s, data, group, to, votes);
                  for (int64_t g = 0; g < group.count; ++g) {
                    const A* const logits = votes.shares + g * s.parents;
                    A* const child =
                        state + (slot * count + group.child + g - run.child) * 3 * L;
                    const Vector<A> before = Load(child);
                    Vector<A> largest = before;
                    for (int64_t n = 0; n < s.parents; n += L) {
                      const Vector<A> logit = Load(logits + n);
                      largest = logit > largest ? logit : largest;
                    }
                    const Vector<A> shrink = Exp<A>(before - largest);
                    const A activation = Activation(in, group.child + g);
                    Vector<A> sum = shrink * Load(child + L);
                    Vector<A> mean = shrink * Load(child + 2 * L);
                    for (int64_t n = 0; n < s.parents; n += L) {
                      const Vector<A> e = Exp<A>(Load(logits + n) - largest);
                      sum += e;
                      if (has_grads)
                        mean += e * (activation * Load(votes.dq + g * s.parents + n));
                    }
                    Store(child, largest);
                    Store(child + L, sum);
                    Store(child + 2 * L, mean);
                  }
                });
              });
  for (int64_t pixel = pixels.begin; pixel < pixels.end; ++pixel) {
    for (int64_t c = channels.begin; c < channels.end; ++c) {
      const A* const child =
          state + ((pixel - begin) * count + c - channels.begin) * 3 * L;
      const int64_t place = pixel * p.in_channels + c;
      const Vector<A> lanes = Load(child), largest = LargestLane<A>(lanes);
      const Vector<A> shrink = Exp<A>(lanes - largest);
      const A scale = 1 / SumOfLanes<A>(shrink * Load(child + L))[0];
      to.largest[place] = largest[0];
      to.scale[place] = scale;
      if (!has_grads) continue;
      to.mean[place] = scale * SumOfLanes<A>(shrink * Load(child + 2 * L))[0];
    }
  }
}

// Replaces u of a child by the gradient of its votes,
//   q (dfirst + 2 dsecond u) + dz (linear - precision u).
template <typename A>
void VoteGradient(const Sizes<A>& s, const WindowData<A>& data, const A* q, const A* dz,
                  A* u) {
  for (int64_t v = 0, at = 0; v < s.vectors; ++v) {
    const Vector<A> qv = Load(q + v * kLanes<A>), dzv = Load(dz + v * kLanes<A>);
    for (int64_t n = 0; n < s.vote; ++n, at += kLanes<A>) {
      const Vector<A> centered = Load(u + at);
      Vector<A> grad = {};
      if (data.grad_first != nullptr) {
        Vector<A> slope = Load(data.grad_first + at);
        if (data.grad_second != nullptr) {
          slope += A{2} * Load(data.grad_second + at) * centered;
        }
        grad = qv * slope;
      }
      if (data.linear != nullptr) grad += dzv * Load(data.linear + at);
      if (data.halved != nullptr) {
        grad += dzv * (A{2} * Load(data.halved + at) * centered);
      }
      Store(u + at, s.MaskPadding(v, grad));
    }
  }
}

// Adds transpose(pose) @ grad of one child to `to`, packed like weights.
template <typename A>
void AddWeightsGradient(const Problem& p, const Sizes<A>& s, const A* pose,
                        const A* grad, A* to) {
  constexpr int64_t L = kLanes<A>;
  const int64_t columns = p.pose_columns * L;
  for (int64_t v = 0; v < s.vectors; ++v) {
    const A* const from = grad + v * s.vote * L;
    A* const matrix = to + v * p.pose_inner * columns;
    ForTiles(p.pose_inner, p.pose_columns,
             [&](auto rows, auto cols, int64_t row,
                 int64_t column) __attribute__((always_inline)) {
               constexpr int M = decltype(rows)::value, N = decltype(cols)::value;
               A* const place = matrix + row * columns + column * L;
               Vector<A> tile[M][N];
#pragma GCC unroll 8
               for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
                 for (int n = 0; n < N; ++n) {
                   tile[m][n] = Load(place + m * columns + n * L);
                 }
               }
               AddProduct<false>(p.pose_rows, Matrix<A>{pose + row, 1, p.pose_inner},
                                 Matrix<A>{from + column * L, columns, L}, tile);
#pragma GCC unroll 8
               for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
                 for (int n = 0; n < N; ++n) {
                   Store(place + m * columns + n * L, tile[m][n]);
                 }
               }
             });
  }
}

// Adds grad @ transpose(weights) of one child, summed over the parents, to the padded
// pose `to`. `lanes` has space for one vector per element of the pose.
template <typename A>
void AddPoseGradient(const Problem& p, const Sizes<A>& s, const A* grad,
                     const A* weights, A* lanes, A* to) {
  constexpr int64_t L = kLanes<A>;
  const int64_t columns = p.pose_columns * L;
  ForTiles(p.pose_rows, p.pose_inner,
           [&](auto rows, auto cols, int64_t row,
               int64_t column) __attribute__((always_inline)) {
             constexpr int M = decltype(rows)::value, N = decltype(cols)::value;
             Vector<A> tile[M][N] = {};
             for (int64_t v = 0; v < s.vectors; ++v) {
               const A* const matrix = weights + v * p.pose_inner * columns;
               AddProduct<true>(
                   p.pose_columns,
                   Matrix<A>{grad + v * s.vote * L + row * columns, columns, L},
                   Matrix<A>{matrix + column * columns, L, columns}, tile);
             }
#pragma GCC unroll 8
             for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
               for (int n = 0; n < N; ++n) {
                 Store(lanes + ((row + m) * p.pose_inner + column + n) * L, tile[m][n]);
               }
             }
           });
  for (int64_t n = 0; n < s.padded_pose; n += L) {
    Vector<A> numbers[kLanes<A>];
    for (int64_t m = 0; m < L; ++m) numbers[m] = Load(lanes + (n + m) * L);
    Store(to + n, Load(to + n) + SumLanes<A>(numbers));
  }
}

// The scratch layout of ChildrenTask: for each child the gradient of its padded pose
// and activation, and space for the lanes of one pose.
template <typename A>
struct ChildrenLayout : PixelLayout<A> {
  int64_t activations, lanes;

  ChildrenLayout(const Problem& p, const Sizes<A>& s)
      : PixelLayout<A>(p, s, true, s.padded_pose + 1) {
    const int64_t block = kBlockPixels * Min(kBlockChannels, p.in_channels);
    activations = this->children + block * s.padded_pose;
    lanes = RoundUp(this->size, kLanes<A>);
    this->size = lanes + s.padded_pose * kLanes<A>;
  }
};

// Computes the gradients of poses and activations of a block of pixels. Adds the
// contributions of the windows that see them to `part`, the partial sum of the
// gradients of weights and prior.
template <typename T>
void ChildrenOfBlock(const Problem& p, const Division& d, const Operands<T>& in,
                     const Statistic<T>* packed, const Normalizers<Statistic<T>>& all,
                     const Moments<const Statistic<T>>& grads, const Gradients<T>& to,
                     Range pixels, Range channels, Statistic<T>* part,
                     Statistic<T>* numbers) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  const ChildrenLayout<A> at(p, s);
  const int64_t count = channels.end - channels.begin;
  const int64_t children = (pixels.end - pixels.begin) * count;
  A* const by_pose = numbers + at.children;
  A* const by_activation = numbers + at.activations;
  std::memset(by_pose, 0, children * s.padded_pose * sizeof(A));
  std::memset(by_activation, 0, children * sizeof(A));
  CopyPoses(p, s, in.poses, pixels, channels, numbers + at.poses);
  const WindowData<A> data(s, in, grads, numbers);
  const Votes<A> votes(s, true, numbers + at.votes);
  VisitPixels(
      p, d, s, pixels, channels, numbers + at.poses, packed,
      [&](int64_t slot, int64_t window, const Run<A>& run) {
        data.Pack(p, s, in, grads, window);
        ForGroups(s, run, [&](const Run<A>& group) {
          const int64_t first = slot * count + group.child - run.child;
          ComputeVotes<false>(p, s, data, group, all, votes);
          Differentiate<T>(p, s, in, group, all, votes, by_activation + first);
          for (int64_t g = 0; g < group.count; ++g) {
            A* const u = votes.u + g * s.votes;
            const A* const dz = votes.dq + g * s.parents;
            VoteGradient(s, data, votes.shares + g * s.parents, dz, u);
            AddWeightsGradient(p, s, group.poses + g * s.pose, u,
                               part + (group.pair + g) * s.matrix);
            AddPoseGradient(p, s, u, group.weights + g * s.matrix, numbers + at.lanes,
                            by_pose + (first + g) * s.padded_pose);
            if (group.prior == nullptr) continue;
            A* const prior = part + d.pairs * s.matrix + (group.pair + g) * s.parents;
            for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
              Store(prior + n, Load(prior + n) + Load(dz + n));
            }
          }
        });
      });
  for (int64_t child = 0; child < children; ++child) {
    const int64_t pixel = pixels.begin + child / count;
    const int64_t place = pixel * p.in_channels + channels.begin + child % count;
    for (int64_t n = 0; n < s.pose; ++n) {
      Narrow(by_pose[child * s.padded_pose + n], to.poses + place * s.pose + n);
    }
    if (to.activations != nullptr) Narrow(by_activation[child], to.activations + place);
  }
}

// Computes the gradients of all pixels of one partial sum, for one block of channels.
template <typename T>
void ChildrenTask(const Problem& p, const Division& d, int64_t task,
                  const Operands<T>& in, const Statistic<T>* packed,
                  const Normalizers<Statistic<T>>& all,
                  const Moments<const Statistic<T>>& grads, const Gradients<T>& to,
                  Statistic<T>* parts, void* scratch) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  const int64_t number = task / ChannelBlocks(p);
  const Range channels = ChannelBlock(p, task % ChannelBlocks(p));
  A* const part = parts + number * d.packed;
  const int64_t count = channels.end - channels.begin;
  for (int64_t n = channels.begin; n < d.pairs; n += p.in_channels) {
    std::memset(part + n * s.matrix, 0, count * s.matrix * sizeof(A));
    if (p.has_prior == 0) continue;
    std::memset(part + d.pairs * s.matrix + n * s.parents, 0,
                count * s.parents * sizeof(A));
  }
  const ChildrenLayout<A> at(p, s);
  A* const numbers = static_cast<A*>(scratch);
  std::memset(numbers + at.lanes, 0, s.padded_pose * kLanes<A> * sizeof(A));
  const int64_t end = Min((number + 1) * d.pixels, Pixels(p));
  for (int64_t begin = number * d.pixels; begin < end; begin += kBlockPixels) {
    ChildrenOfBlock<T>(p, d, in, packed, all, grads, to,
                       {begin, Min(begin + kBlockPixels, end)}, channels, part,
                       numbers);
  }
}

}  // namespace capsops::capsule_moments::CAPSOPS_ISA
