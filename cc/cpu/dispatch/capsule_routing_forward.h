// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The forward pass of capsule routing, for weights that are numbers or codes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"

namespace capsops::capsule_routing {

CAPSOPS_SELECTED_KERNELS

inline int64_t Columns(const Problem& p) { return p.out_caps * p.out_dim; }

// Returns the approximate cycles of a task of `in_caps` input capsules and `groups`
// groups, at one vector multiply-add per cycle. Each element of u_hat takes in_dim
// multiply-adds to compute and about 4 to use.
inline int64_t Cost(const Problem& p, int64_t in_caps, int64_t groups) {
  return std::max<int64_t>(in_caps * groups * Columns(p) * (p.in_dim + 4), 1);
}

// Returns the approximate cycles of an output capsule's task that reads `tiles` tiles.
inline int64_t CapsuleCost(const Problem& p, int64_t tiles) {
  return std::max<int64_t>(p.out_dim * tiles * 4, 1);
}

// The workspace, which consists of tiles (cc/cpu/capsule_routing.h).
template <typename T>
struct Workspace {
  using A = Accumulator<T>;

  Workspace(const Division& d, void* data, int64_t tiles)
      : tile_size(d.tile),
        tiles(static_cast<A*>(data)),
        running(this->tiles + tiles * d.tile),
        parts(running + d.tile) {}
  static int64_t Bytes(const Division& d, int64_t tiles) {
    return (tiles + 1 + d.chunks) * d.tile * sizeof(A);
  }
  // Return V of an iteration, which must be at least 2, and ds of an iteration.
  A* total(int64_t iteration) const { return tiles + (iteration - 2) * tile_size; }
  A* sum_grad(int64_t iterations, int64_t iteration) const {
    return tiles + (iterations - 2 + iteration) * tile_size;
  }

  int64_t tile_size;
  A* tiles;    // gradient only: V_2, V_3, ..., then ds_1, ds_2, ...
  A* running;  // one tile: V of the current iteration or, in the gradient, dv
  A* parts;    // one partial sum for each chunk
};

// Sets in_dim to 0 if the weights are empty. It may then be arbitrarily large, and the
// scratch should not depend on it.
inline Problem DropUnusedInDim(Problem p) {
  if (p.in_caps == 0 || Columns(p) == 0) p.in_dim = 0;
  return p;
}

// Returns the weights, or their codes, of the input capsules of one of the sum_tasks.
template <typename W>
const W* OfTask(const Problem& p, const Division& d, int64_t task, const W* weights) {
  return weights + d.caps_begin(task) * Columns(p) * p.in_dim;
}

// Computes all iterations. weights(iteration, task, scratch) returns what OfTask does,
// or null if u_hat is kept from an earlier iteration. Of the `scratch_bytes` bytes of
// scratch, the kernels overwrite the first d.sum_scratch. `u_hat` is memory for d.u_hat
// elements, or null to compute u_hat in each iteration.
template <typename T, typename Weights>
LaunchError Route(const CpuExec& exec, const char* op, const Problem& p,
                  const Division& d, int64_t scratch_bytes, const T* input,
                  const Weights& weights, const T* logits, T* output, Sum<T>* sums,
                  Accumulator<T>* u_hat, void* workspace) {
  if (d.tile == 0) return {};
  const CpuKernels<T>& kernels = Selected<T>();
  const Workspace<T> space(d, workspace, 0);
  for (int64_t r = 1; r <= p.iterations; ++r) {
    CAPSOPS_RETURN_IF_ERROR(
        ForTasks(exec, op, d.sum_tasks, Cost(p, d.chunk_caps, d.range_groups),
                 scratch_bytes, [&](int64_t task, void* scratch) {
                   kernels.add(p, d, task, input, weights(r, task, scratch), logits,
                               r == 1 ? nullptr : space.running, nullptr, u_hat,
                               space.parts, scratch);
                 }));
    exec.parallel_for(d.groups * p.out_caps, CapsuleCost(p, d.chunks),
                      [&](int64_t begin, int64_t end) {
                        kernels.finish(p, d, {begin, end}, r == 1, space.parts,
                                       space.running, sums,
                                       r == p.iterations ? output : nullptr);
                      });
    sums += p.batch * Columns(p);
  }
  return {};
}

}  // namespace capsops::capsule_routing
