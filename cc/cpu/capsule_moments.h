// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Moments of votes for one thread, once per instruction set. As in
// cc/cpu/capsule_prediction.h, these functions use nothing but their arguments;
// cc/cpu/dispatch/ puts them in order and divides their work.
//
// Lanes are parents: what belongs to a parent is packed as [vector][...][lane], and the
// lanes of the last vector without a parent count for nothing. Sums over children have
// a task for a few windows, and sums over windows have a task for a few pixels.
#ifndef CAPSOPS_CC_CPU_CAPSULE_MOMENTS_H_
#define CAPSOPS_CC_CPU_CAPSULE_MOMENTS_H_

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_moments.h"

namespace capsops::capsule_moments {

// The inputs, null where absent.
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

// The moments or their gradients, null where the order says that they are not there. A
// pass that goes forward has no gradients at all.
template <typename S>
struct Moments {
  S* mass;
  S* first;
  S* second;
};

// The gradients of Operands, null where absent.
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

// What kAll needs of each pose: the largest logit, one over the sum of exponentials,
// and in the gradient the sum of share dr.
template <typename S>
struct Normalizers {
  S* largest;
  S* scale;
  S* mean;
};

// How a problem is divided, which depends on nothing but the problem and the
// instruction set.
struct Division {
  int64_t pairs;   // of children and parents' vectors that are packed, or 0
  int64_t packed;  // numbers of the packed weights and, after them, of the prior
  int64_t windows, window_tasks;
  int64_t forward_scratch, statistics_scratch;  // bytes
  int64_t pixels, normalize_tasks;
  int64_t normalize_scratch;
  // The gradient of weights and prior has one part, packed likewise, for each of
  // `parts` ranges of pixels.
  int64_t parts, children_tasks;
  int64_t children_scratch;
};

struct Range {
  int64_t begin, end;
};

template <typename T>
struct CpuKernels {
  using S = Statistic<T>;
  Division (*divide)(const Problem& p);

  // Packs weights and prior of a range of the pairs.
  void (*pack)(const Problem& p, const Division& d, Range pairs, const T* weights,
               const S* prior, S* packed);
  // Computes the normalizers of one of the normalize_tasks; the mean only where there
  // are gradients.
  void (*normalize)(const Problem& p, const Division& d, int64_t task,
                    const Operands<T>& in, const S* packed,
                    const Moments<const S>& grads, const Normalizers<S>& to,
                    void* scratch);
  // Computes the moments of one of the window_tasks. Where `shares` is not null,
  // computes the shares instead.
  void (*forward)(const Problem& p, const Division& d, int64_t task,
                  const Operands<T>& in, const S* packed, const Normalizers<S>& all,
                  const Moments<S>& to, S* shares, void* scratch);
  // Computes the gradients of the statistics of one of the window_tasks.
  void (*statistics)(const Problem& p, const Division& d, int64_t task,
                     const Operands<T>& in, const S* packed, const Normalizers<S>& all,
                     const Moments<const S>& grads, const Moments<const S>& moments,
                     const Gradients<T>& to, void* scratch);
  // Computes the gradients of poses and activations of one of the children_tasks, and
  // its share of the parts of the gradients of weights and prior.
  void (*children)(const Problem& p, const Division& d, int64_t task,
                   const Operands<T>& in, const S* packed, const Normalizers<S>& all,
                   const Moments<const S>& grads, const Gradients<T>& to, S* parts,
                   void* scratch);
  // Adds up the parts of a range of the pairs, which it overwrites.
  void (*finish)(const Problem& p, const Division& d, Range pairs, S* parts,
                 const Gradients<T>& to);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_moments

#endif  // CAPSOPS_CC_CPU_CAPSULE_MOMENTS_H_
