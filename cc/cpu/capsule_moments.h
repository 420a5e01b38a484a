// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of the moments of votes, compiled once per instruction set. A call runs
// one task on one thread, as in cc/cpu/capsule_prediction.h.
//
// Lanes are parents: data with an axis of parents is packed as [vector][...][lane], and
// the padding lanes of the last vector have no effect. Moments and the gradients of
// statistics are sums over the children of a window, and a task has a few windows. The
// other gradients are sums over the windows that see a child, and a task has some
// pixels and channels. Both recompute the votes of a few children at a time.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_moments.h"

namespace capsops::capsule_moments {

// The inputs; null if absent.
template <typename T>
struct Operands {
  const T* poses;
  const T* activations;
  const T* weights;
  const Statistic<T>* bias;
  const Statistic<T>* linear;
  const Statistic<T>* precision;
  const Statistic<T>* center;
  const Statistic<T>* prior;
};

// The moments, or their gradients. Moments above the order are null; in the forward
// pass, all gradients are null.
template <typename S>
struct Moments {
  S* mass;
  S* first;
  S* second;
};

// The gradients of Operands; null if absent.
template <typename T>
struct Gradients {
  T* poses;
  T* activations;
  T* weights;
  Statistic<T>* bias;
  Statistic<T>* linear;
  Statistic<T>* precision;
  Statistic<T>* center;
  Statistic<T>* prior;
};

// For kAll, the softmax state of each pose: the largest logit, one over the sum of
// exponentials and, in the gradient, the sum of share dr.
template <typename S>
struct Normalizers {
  S* largest;
  S* scale;
  S* mean;
};

// The division of the work, which depends only on the problem and the instruction set.
struct Division {
  int64_t pairs;   // children of a window, or 0 if there is nothing to pack
  int64_t packed;  // elements of the packed weights and the prior that follows them
  int64_t windows, window_tasks;  // windows per task, and number of such tasks
  int64_t forward_scratch, statistics_scratch;  // bytes
  int64_t pixels, normalize_tasks;
  int64_t normalize_scratch;
  // The gradient of weights and prior is summed in `parts` partial sums, packed like
  // weights and prior, one for each range of `pixels` pixels.
  int64_t parts, children_tasks;
  int64_t children_scratch;
};

template <typename T>
struct CpuKernels {
  using S = Statistic<T>;
  Division (*divide)(const Problem& p);

  // Packs weights and prior of a range of pairs.
  void (*pack)(const Problem& p, const Division& d, Range pairs, const T* weights,
               const S* prior, S* packed);
  // Computes the normalizers of one of the normalize_tasks; `mean` only with gradients.
  void (*normalize)(const Problem& p, const Division& d, int64_t task,
                    const Operands<T>& in, const S* packed,
                    const Moments<const S>& grads, const Normalizers<S>& to,
                    void* scratch);
  // Computes the moments or, if `shares` is not null, the shares of one window task.
  void (*forward)(const Problem& p, const Division& d, int64_t task,
                  const Operands<T>& in, const S* packed, const Normalizers<S>& all,
                  const Moments<S>& to, S* shares, void* scratch);
  // Computes the gradients of the statistics of one of the window_tasks.
  void (*statistics)(const Problem& p, const Division& d, int64_t task,
                     const Operands<T>& in, const S* packed, const Normalizers<S>& all,
                     const Moments<const S>& grads, const Moments<const S>& moments,
                     const Gradients<T>& to, void* scratch);
  // Computes the gradients of poses and activations of one of the children_tasks, and
  // its partial sum of the gradients of weights and prior.
  void (*children)(const Problem& p, const Division& d, int64_t task,
                   const Operands<T>& in, const S* packed, const Normalizers<S>& all,
                   const Moments<const S>& grads, const Gradients<T>& to, S* parts,
                   void* scratch);
  // Adds up the partial sums of a range of pairs, which it overwrites.
  void (*finish)(const Problem& p, const Division& d, Range pairs, S* parts,
                 const Gradients<T>& to);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_moments
