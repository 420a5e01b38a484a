// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of capsule routing, compiled once per instruction set. A call runs one
// task on one thread, as in cc/cpu/capsule_prediction.h.
//
// Lanes are samples: a group has as many samples as a vector has lanes, so the work on
// a sample, including its softmax, needs no other lane. A tile holds one element for
// every sample, output capsule and dimension, as [group][out_caps][out_dim][lane]. The
// padding lanes of the last group are zero where results depend on them, and otherwise
// undefined. Small batches have another layout (capsule_routing_few.h).
//
// Each iteration has two steps. `add` computes a partial sum for each chunk of input
// capsules. `finish` adds these up for each output capsule and group, and squashes.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_routing.h"

namespace capsops::capsule_routing {

// The division of the work, which depends only on the problem and the instruction set.
struct Division {
  int64_t groups;  // groups of samples
  int64_t tile;    // elements of a tile
  // Sums over input capsules are split into chunks of chunk_caps input capsules. Each
  // chunk has a partial sum, which is a tile; a task computes it for range_groups
  // groups.
  int64_t chunks, chunk_caps, range_groups, sum_tasks;
  int64_t sum_scratch;  // bytes of scratch for `add` and `coefficients`
  int64_t u_hat;        // elements of u_hat that `add` may keep, or 0
  // Returns the first input capsule of one of the sum_tasks.
  int64_t caps_begin(int64_t task) const {
    return task / ((groups + range_groups - 1) / range_groups) * chunk_caps;
  }
  // In the last step of the gradient, a task has a few input capsules and all samples.
  int64_t grad_caps, grad_tasks;
  int64_t grad_scratch;  // bytes of scratch for `grad`
};

template <typename T>
struct CpuKernels {
  using A = Accumulator<T>;
  Division (*divide)(const Problem& p);

  // Computes the partial sum of sum_i c u_hat of one of the sum_tasks or, if
  // `sum_grads` (ds) is not null, of sum_i db u_hat. `weights` are those of the task's
  // input capsules. `totals` is V, or null if V is 0. If `u_hat` is not null,
  // which needs d.u_hat > 0, u_hat is kept there if V is 0. Otherwise it is read from
  // there, and `weights` may be null.
  void (*add)(const Problem& p, const Division& d, int64_t task, const T* input,
              const T* weights, const T* logits, const A* totals, const A* sum_grads,
              A* u_hat, A* parts, void* scratch);
  // Computes c for one of the sum_tasks, with `weights` and `totals` as in `add`.
  void (*coefficients)(const Problem& p, const Division& d, int64_t task,
                       const T* input, const T* weights, const T* logits,
                       const A* totals, T* coefficients, void* scratch);
  // Handles output capsules and groups `range`, numbered [group][out_caps], like the
  // functions below. Adds the partial sums in `parts`, which it overwrites, and stores
  // the sum s to sums [batch, out_caps, out_dim]. Then stores v to `output` or, if that
  // is null, adds it to `totals`, which is uninitialized in the first iteration.
  void (*finish)(const Problem& p, const Division& d, Range range, bool first, A* parts,
                 A* totals, A* sums, T* output);

  // Sets after = before + squash(sums). `before` may be null, which counts as zero, and
  // must not be `after`.
  void (*advance)(const Problem& p, const Division& d, Range range, const A* sums,
                  const A* before, A* after);
  // Computes dv and ds of the last iteration from the gradient of the output.
  void (*start_grad)(const Problem& p, const Division& d, Range range, const A* sums,
                     const T* grad, A* output_grads, A* sum_grads);
  // Computes dv and ds of an earlier iteration. Adds up `parts`, which it overwrites,
  // and adds the sum to `output_grads`, which gives dv. In the last iteration but one,
  // dv is the sum itself.
  void (*step_grad)(const Problem& p, const Division& d, Range range, bool last_but_one,
                    const A* sums, A* parts, A* output_grads, A* sum_grads);
  // Computes the gradients of one of the grad_tasks: of input capsules, their weights
  // and logits. `tiles` are the 2 * iterations - 1 tiles V_2, V_3, ..., ds_1, ds_2, ...
  void (*grad)(const Problem& p, const Division& d, int64_t task, const T* input,
               const T* weights, const T* logits, const A* tiles, T* grad_input,
               T* grad_weights, T* grad_logits, void* scratch);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_routing
