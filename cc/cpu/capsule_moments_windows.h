// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Sums over the children of windows: moments, shares, and gradients of statistics. A
// task has a few windows, and lanes are parents.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_moments_common.h"
#include "cc/cpu/capsule_moments_votes.h"

namespace capsops::capsule_moments::CAPSOPS_ISA {

// Returns the highest power of u in the sums that the gradients of the statistics need.
inline int64_t StatisticsOrder(const Problem& p) {
  return p.has_precision == 1 ? 2 : p.has_linear;
}

// The scratch layout of a task: data and sums of each window, sums of a run, votes of a
// group, and copies of poses.
template <typename A>
struct WindowLayout {
  int64_t data, sums, run, votes, poses, size;

  WindowLayout(const Problem& p, const Division& d, const Sizes<A>& s, bool grads) {
    const int64_t order = grads ? StatisticsOrder(p) : p.order;
    data = WindowSize(p, s, grads);
    sums = d.windows * data;
    run = sums + d.windows * Sums<A>::Size(s, order);
    votes = run + Sums<A>::Size(s, order);
    poses = votes + Votes<A>::Size(s);
    size = poses + Min(kRunChildren, p.in_channels) * s.pose;
  }
};

// Sums factor, factor u and factor u^2 over the children of each window of a task.
// make_factors(group, votes) computes the factors from shares. Each run of children has
// a partial sum. Finally calls done(window, data, sums, spare) for each window, with
// free scratch at `spare`.
template <typename T, typename Make, typename Done>
void SumOverChildren(const Problem& p, const Division& d, int64_t task, int64_t order,
                     const Operands<T>& in, const Statistic<T>* packed,
                     const Normalizers<Statistic<T>>& all,
                     const Moments<const Statistic<T>>& grads, void* scratch,
                     const Make& make_factors, const Done& done) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  const bool has_grads = grads.mass != nullptr;
  const WindowLayout<A> at(p, d, s, has_grads);
  A* const numbers = static_cast<A*>(scratch);
  const int64_t begin = task * d.windows, end = Min(begin + d.windows, NumWindows(p));
  const int64_t sums_size = Sums<A>::Size(s, order);
  const auto data_of = [&](int64_t slot) {
    return WindowData<A>(s, in, grads, numbers + slot * at.data);
  };
  for (int64_t window = begin; window < end; ++window) {
    data_of(window - begin).Pack(p, s, in, grads, window);
  }
  std::memset(numbers + at.sums, 0, (end - begin) * sums_size * sizeof(A));
  const Votes<A> votes(s, has_grads, numbers + at.votes);
  const Sums<A> run_sums(s, order, numbers + at.run);
  VisitWindows(
      p, d, s, begin, end, in.poses, packed, numbers + at.poses,
      [&](int64_t slot, const Run<A>& run) {
        const WindowData<A> data = data_of(slot);
        std::memset(run_sums.mass, 0, sums_size * sizeof(A));
        ForGroups(s, run, [&](const Run<A>& group) __attribute__((always_inline)) {
          ComputeVotes<false>(p, s, data, group, all, votes);
          AddGroup(s, group.count, make_factors(group, votes), votes.u, run_sums);
        });
        A* const sums = numbers + at.sums + slot * sums_size;
        for (int64_t n = 0; n < sums_size; n += kLanes<A>) {
          Store(sums + n, Load(sums + n) + Load(run_sums.mass + n));
        }
      });
  for (int64_t window = begin; window < end; ++window) {
    const int64_t slot = window - begin;
    done(window, data_of(slot), Sums<A>(s, order, numbers + at.sums + slot * sums_size),
         numbers + at.votes);
  }
}

// Computes the moments of a task's windows.
template <typename T>
void ForwardTask(const Problem& p, const Division& d, int64_t task,
                 const Operands<T>& in, const Statistic<T>* packed,
                 const Normalizers<Statistic<T>>& all, const Moments<Statistic<T>>& to,
                 void* scratch) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  SumOverChildren<T>(
      p, d, task, p.order, in, packed, all, {}, scratch,
      [&](const Run<A>& group, const Votes<A>& votes) {
        for (int64_t g = 0; g < group.count && in.activations != nullptr; ++g) {
          const A activation = Activation(in, group.child + g);
          A* const factors = votes.shares + g * s.parents;
          for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
            Store(factors + n, activation * Load(factors + n));
          }
        }
        return votes.shares;
      },
      [&](int64_t window, const WindowData<A>&, const Sums<A>& sums, A*) {
        const int64_t parent = window * p.out_channels;
        UnpackRows(p, s, sums.mass, 1, to.mass + parent);
        if (p.order >= 1) {
          UnpackRows(p, s, sums.first, s.vote, to.first + parent * s.vote);
        }
        if (p.order == 2) {
          UnpackRows(p, s, sums.second, s.vote, to.second + parent * s.vote);
        }
      });
}

// Computes the shares of a task's windows, 0 for children outside the image.
template <typename T>
void SharesTask(const Problem& p, const Division& d, int64_t task,
                const Operands<T>& in, const Statistic<T>* packed,
                const Normalizers<Statistic<T>>& all, Statistic<T>* shares,
                void* scratch) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  const WindowLayout<A> at(p, d, s, false);
  A* const numbers = static_cast<A*>(scratch);
  const int64_t begin = task * d.windows, end = Min(begin + d.windows, NumWindows(p));
  const int64_t window_size = Children(p) * p.out_channels;
  const auto data_of = [&](int64_t slot) {
    return WindowData<A>(s, in, {}, numbers + slot * at.data);
  };
  for (int64_t window = begin; window < end; ++window) {
    data_of(window - begin).Pack(p, s, in, {}, window);
  }
  std::memset(shares + begin * window_size, 0, (end - begin) * window_size * sizeof(A));
  const Votes<A> votes(s, false, numbers + at.votes);
  VisitWindows(p, d, s, begin, end, in.poses, packed, numbers + at.poses,
               [&](int64_t slot, const Run<A>& run) {
                 ForGroups(s, run, [&](const Run<A>& group) {
                   ComputeVotes<false>(p, s, data_of(slot), group, all, votes);
                   for (int64_t g = 0; g < group.count; ++g) {
                     UnpackRows(p, s, votes.shares + g * s.parents, 1,
                                shares + (begin + slot) * window_size +
                                    (group.pair + g) * p.out_channels);
                   }
                 });
               });
}

// Computes shares if `shares` is not null, and otherwise moments.
template <typename T>
void WindowsTask(const Problem& p, const Division& d, int64_t task,
                 const Operands<T>& in, const Statistic<T>* packed,
                 const Normalizers<Statistic<T>>& all, const Moments<Statistic<T>>& to,
                 Statistic<T>* shares, void* scratch) {
  if (shares == nullptr) {
    ForwardTask(p, d, task, in, packed, all, to, scratch);
  } else {
    SharesTask(p, d, task, in, packed, all, shares, scratch);
  }
}

// Computes the gradients of statistics from the sums D0, D1, D2 of dz, dz u, dz u^2:
//   bias       D0
//   linear     D1 + center D0
//   precision  -1/2 D2
//   center     precision D1 - mass dfirst - 2 first dsecond
template <typename T>
void StatisticsTask(const Problem& p, const Division& d, int64_t task,
                    const Operands<T>& in, const Statistic<T>* packed,
                    const Normalizers<Statistic<T>>& all,
                    const Moments<const Statistic<T>>& grads,
                    const Moments<const Statistic<T>>& moments, const Gradients<T>& to,
                    void* scratch) {
  using A = Statistic<T>;
  const Sizes<A> s(p);
  SumOverChildren<T>(
      p, d, task, StatisticsOrder(p), in, packed, all, grads, scratch,
      [&](const Run<A>& group, const Votes<A>& votes) {
        Differentiate<T>(p, s, in, group, all, votes, static_cast<A*>(nullptr));
        return votes.dq;
      },
      [&](int64_t window, const WindowData<A>& data, const Sums<A>& sums, A* spare) {
        const int64_t parent = window * p.out_channels, vote = parent * s.vote;
        // Sets each vector of `result`, packed like votes, to value(at, row): `at` is
        // its offset, and `row` the offset of its parents in data with one element per
        // parent.
        const auto make = [&](A* result, const auto& value) {
          for (int64_t v = 0, at = 0; v < s.vectors; ++v) {
            for (int64_t n = 0; n < s.vote; ++n, at += kLanes<A>) {
              Store(result + at, value(at, v * kLanes<A>));
            }
          }
        };
        if (to.bias != nullptr) UnpackRows(p, s, sums.mass, 1, to.bias + parent);
        if (to.center != nullptr) {
          A* const first = spare + s.votes;
          A* const mass = first + s.votes;
          PackRows(p, s, moments.mass + parent, 1, mass);
          if (moments.first != nullptr) {
            PackRows(p, s, moments.first + vote, s.vote, first);
          }
          make(spare, [&](int64_t at, int64_t row) {
            Vector<A> sum = {};
            if (data.halved != nullptr) {
              sum = A{-2} * Load(data.halved + at) * Load(sums.first + at);
            }
            if (data.grad_first != nullptr) {
              sum -= Load(mass + row) * Load(data.grad_first + at);
            }
            if (data.grad_second != nullptr) {
              sum -= A{2} * Load(first + at) * Load(data.grad_second + at);
            }
            return sum;
          });
          UnpackRows(p, s, spare, s.vote, to.center + vote);
        }
        if (to.linear != nullptr) {
          make(spare, [&](int64_t at, int64_t row) {
            const Vector<A> sum = Load(sums.first + at);
            return data.center == nullptr
                       ? sum
                       : sum + Load(data.center + at) * Load(sums.mass + row);
          });
          UnpackRows(p, s, spare, s.vote, to.linear + vote);
        }
        if (to.precision != nullptr) {
          make(spare,
               [&](int64_t at, int64_t) { return A{-0.5} * Load(sums.second + at); });
          UnpackRows(p, s, spare, s.vote, to.precision + vote);
        }
      });
}

}  // namespace capsops::capsule_moments::CAPSOPS_ISA
