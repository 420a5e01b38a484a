// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule routing for one thread, once per instruction set. As in
// cc/cpu/capsule_prediction.h, these functions use nothing but their arguments;
// cc/cpu/dispatch/ puts them in order and divides their work.
//
// A tile holds one number for every sample, output capsule and dimension, as
// [group][out_caps][out_dim][lane]: a group is as many samples as a vector has lanes,
// so that what a sample does, also its softmax, needs no other lane. The lanes of the
// last group that have no sample are zero where that matters and anything elsewhere.
#ifndef CAPSOPS_CC_CPU_CAPSULE_ROUTING_H_
#define CAPSOPS_CC_CPU_CAPSULE_ROUTING_H_

#include <cstdint>

#include "cc/launch/capsule_routing.h"

namespace capsops::capsule_routing {

// How a problem is divided; nothing but the problem and the instruction set decide.
struct Division {
  int64_t groups;  // of samples
  int64_t tile;    // numbers of a tile
  // A sum over input capsules is one part, a tile, for each chunk of them. A task makes
  // the part of one chunk for a range of groups.
  int64_t chunks, chunk_caps, range_groups, sum_tasks;
  int64_t sum_scratch;  // bytes that `add` and `coefficients` need
  // A task of the last step of the gradient is a few input capsules, all samples.
  int64_t grad_caps, grad_tasks;
  int64_t grad_scratch;  // bytes that `grad` needs
};

// Tasks of `finish` and the functions after it: an output capsule of a group.
struct Range {
  int64_t begin, end;
};

template <typename T>
struct CpuKernels {
  using A = Sum<T>;
  Division (*divide)(const Problem& p);

  // The part of sum_i c u_hat for one of the sum_tasks, with V given by `totals`, which
  // is null where V is 0. With `sum_grads`, which are ds, that of sum_i db u_hat.
  void (*add)(const Problem& p, const Division& d, int64_t task, const T* input,
              const T* weights, const T* logits, const A* totals, const A* sum_grads,
              A* parts, void* scratch);
  // c for one of the sum_tasks, with `totals` as above.
  void (*coefficients)(const Problem& p, const Division& d, int64_t task,
                       const T* input, const T* weights, const T* logits,
                       const A* totals, T* coefficients, void* scratch);
  // s, the sum of `parts` (used up), to sums [batch, out_caps, out_dim]. Then v, either
  // to output, or, where that is null, added to `totals`; in the first iteration there
  // is nothing there to add to.
  void (*finish)(const Problem& p, const Division& d, Range range, bool first, A* parts,
                 A* totals, A* sums, T* output);

  // after = before + v of the given sums; before, which is zero where it is null, is
  // not `after`.
  void (*advance)(const Problem& p, const Division& d, Range range, const A* sums,
                  const A* before, A* after);
  // dv and ds of the last iteration, of the gradient of the output.
  void (*start_grad)(const Problem& p, const Division& d, Range range, const A* sums,
                     const T* grad, A* output_grads, A* sum_grads);
  // dv and ds of an earlier iteration. dv is the sum of `parts` (used up), and of what
  // is in `output_grads` already, unless this is the last iteration but one.
  void (*step_grad)(const Problem& p, const Division& d, Range range, bool last_but_one,
                    const A* sums, A* parts, A* output_grads, A* sum_grads);
  // The gradients of the input capsules of one of the grad_tasks. `tiles` are V_2, V_3,
  // ..., then ds_1, ds_2, ...: 2 iterations - 1 of them.
  void (*grad)(const Problem& p, const Division& d, int64_t task, const T* input,
               const T* weights, const T* logits, const A* tiles, T* grad_input,
               T* grad_weights, T* grad_logits, void* scratch);
};

#define CAPSOPS_DECLARE(isa) \
  namespace isa {            \
  template <typename T>      \
  CpuKernels<T> Kernels();   \
  }
CAPSOPS_DECLARE(v2)
CAPSOPS_DECLARE(v3)
CAPSOPS_DECLARE(v4)
CAPSOPS_DECLARE(baseline)
#undef CAPSOPS_DECLARE

}  // namespace capsops::capsule_routing

#endif  // CAPSOPS_CC_CPU_CAPSULE_ROUTING_H_
