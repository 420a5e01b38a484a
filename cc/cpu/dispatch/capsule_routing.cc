// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of capsule routing, and how each is divided among threads. How it is
// divided never changes a result: no sum crosses a task, and parts of sums are added
// in the order of the input capsules.
#include "cc/cpu/capsule_routing.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/scratch.h"

namespace capsops::capsule_routing {
namespace {

template <typename T>
const CpuKernels<T>& Selected() {
  static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>());
  return kernels;
}

int64_t Columns(const Problem& p) { return p.out_caps * p.out_dim; }

// Cycles of a task over `in_caps` input capsules and `groups` of samples, roughly: one
// of each kind of multiply-add a cycle, and in_dim of them make u_hat.
int64_t Cost(const Problem& p, int64_t in_caps, int64_t groups) {
  return std::max<int64_t>(in_caps * groups * Columns(p) * (p.in_dim + 4), 1);
}

// What the tasks for output capsules cost when each reads `tiles` tiles.
int64_t CapsuleCost(const Problem& p, int64_t tiles) {
  return std::max<int64_t>(p.out_dim * tiles * 4, 1);
}

// Runs tasks that need scratch.
template <typename Task>
LaunchError ForTasks(const CpuExec& exec, const char* op, int64_t count, int64_t cost,
                     int64_t scratch_bytes, const Task& run) {
  std::atomic<bool> out_of_memory = false;
  exec.parallel_for(count, cost, [&](int64_t begin, int64_t end) {
    const Scratch scratch(scratch_bytes);
    if (scratch.data() == nullptr) {
      out_of_memory = true;
      return;
    }
    for (int64_t task = begin; task < end; ++task) run(task, scratch.data());
  });
  if (!out_of_memory) return {};
  return std::string(op) + ": no memory for the working space of a thread";
}

// The workspace, in tiles: the sums of v or their gradient, and parts of a sum.
template <typename T>
struct Workspace {
  Workspace(const Division& d, void* data, int64_t tiles)
      : tile_size(d.tile),
        tiles(static_cast<Sum<T>*>(data)),
        running(this->tiles + tiles * d.tile),
        parts(running + d.tile) {}
  static int64_t Bytes(const Division& d, int64_t tiles) {
    return (tiles + 1 + d.chunks) * d.tile * sizeof(Sum<T>);
  }
  // V of an iteration from the second on, and ds of an iteration.
  Sum<T>* total(int64_t iteration) const { return tiles + (iteration - 2) * tile_size; }
  Sum<T>* sum_grad(int64_t iterations, int64_t iteration) const {
    return tiles + (iterations - 2 + iteration) * tile_size;
  }

  int64_t tile_size;
  Sum<T>* tiles;    // what the last step of the gradient reads
  Sum<T>* running;  // V; in the gradient dv
  Sum<T>* parts;
};

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const CpuExec&, const Problem& p) {
  return Workspace<T>::Bytes(Selected<T>().divide(p), 0);
}

template <typename T>
int64_t BackwardWorkspace(const CpuExec&, const Problem& p) {
  return Workspace<T>::Bytes(Selected<T>().divide(p), 2 * p.iterations - 1);
}

template <typename T>
int64_t CoefficientsWorkspace(const CpuExec&, const Problem& p) {
  return 2 * Selected<T>().divide(p).tile * sizeof(Sum<T>);
}

template <typename T>
LaunchError Forward(const CpuExec& exec, const Problem& p, const T* input,
                    const T* weights, const T* logits, T* output, Sum<T>* sums,
                    void* workspace) {
  const CpuKernels<T>& kernels = Selected<T>();
  const Division d = kernels.divide(p);
  if (d.tile == 0) return {};
  const Workspace<T> space(d, workspace, 0);
  for (int64_t r = 1; r <= p.iterations; ++r) {
    const LaunchError error = ForTasks(
        exec, "CapsuleRouting", d.sum_tasks, Cost(p, d.chunk_caps, d.range_groups),
        d.sum_scratch, [&](int64_t task, void* scratch) {
          kernels.add(p, d, task, input, weights, logits,
                      r == 1 ? nullptr : space.running, nullptr, space.parts, scratch);
        });
    if (!error.empty()) return error;
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

template <typename T>
LaunchError Backward(const CpuExec& exec, const Problem& p, const T* grad,
                     const T* input, const T* weights, const T* logits,
                     const Sum<T>* sums, T* grad_input, T* grad_weights, T* grad_logits,
                     void* workspace) {
  const CpuKernels<T>& kernels = Selected<T>();
  const Division d = kernels.divide(p);
  const Workspace<T> space(d, workspace, 2 * p.iterations - 1);
  const auto sums_of = [&](int64_t r) { return sums + (r - 1) * p.batch * Columns(p); };
  const auto for_capsules = [&](int64_t tiles, const CpuExec::Body& body) {
    if (d.tile > 0) {
      exec.parallel_for(d.groups * p.out_caps, CapsuleCost(p, tiles), body);
    }
  };
  for_capsules(p.iterations + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = 2; r <= p.iterations; ++r) {
      kernels.advance(p, d, {begin, end}, sums_of(r - 1),
                      r == 2 ? nullptr : space.total(r - 1), space.total(r));
    }
    kernels.start_grad(p, d, {begin, end}, sums_of(p.iterations), grad, space.running,
                       space.sum_grad(p.iterations, p.iterations));
  });
  for (int64_t r = p.iterations; r >= 2 && d.tile > 0; --r) {
    const LaunchError error = ForTasks(
        exec, "CapsuleRoutingGrad", d.sum_tasks, Cost(p, d.chunk_caps, d.range_groups),
        d.sum_scratch, [&](int64_t task, void* scratch) {
          kernels.add(p, d, task, input, weights, logits, space.total(r),
                      space.sum_grad(p.iterations, r), space.parts, scratch);
        });
    if (!error.empty()) return error;
    for_capsules(d.chunks + 2, [&](int64_t begin, int64_t end) {
      kernels.step_grad(p, d, {begin, end}, r == p.iterations, sums_of(r - 1),
                        space.parts, space.running,
                        space.sum_grad(p.iterations, r - 1));
    });
  }
  return ForTasks(exec, "CapsuleRoutingGrad", d.grad_tasks,
                  2 * Cost(p, d.grad_caps, d.groups + 1), d.grad_scratch,
                  [&](int64_t task, void* scratch) {
                    kernels.grad(p, d, task, input, weights, logits, space.tiles,
                                 grad_input, grad_weights, grad_logits, scratch);
                  });
}

template <typename T>
LaunchError Coefficients(const CpuExec& exec, const Problem& p, const T* input,
                         const T* weights, const T* logits, const Sum<T>* sums,
                         T* coefficients, void* workspace) {
  const CpuKernels<T>& kernels = Selected<T>();
  const Division d = kernels.divide(p);
  // V of an iteration is made of that of the one before it.
  Sum<T>* const tiles = static_cast<Sum<T>*>(workspace);
  const auto total = [&](int64_t iteration) -> Sum<T>* {
    return iteration == 1 ? nullptr : tiles + iteration % 2 * d.tile;
  };
  if (d.tile > 0) {
    exec.parallel_for(d.groups * p.out_caps, CapsuleCost(p, p.iterations),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t r = 1; r <= p.iterations; ++r) {
                          kernels.advance(p, d, {begin, end},
                                          sums + (r - 1) * p.batch * Columns(p),
                                          total(r), total(r + 1));
                        }
                      });
  }
  return ForTasks(exec, "CapsuleRoutingCoefficients", d.sum_tasks,
                  Cost(p, d.chunk_caps, d.range_groups), d.sum_scratch,
                  [&](int64_t task, void* scratch) {
                    kernels.coefficients(p, d, task, input, weights, logits,
                                         total(p.iterations + 1), coefficients,
                                         scratch);
                  });
}

#define CAPSOPS_INSTANTIATE(T)                                                         \
  template int64_t ForwardWorkspace<T>(const CpuExec&, const Problem&);                \
  template int64_t BackwardWorkspace<T>(const CpuExec&, const Problem&);               \
  template int64_t CoefficientsWorkspace<T>(const CpuExec&, const Problem&);           \
  template LaunchError Forward(const CpuExec&, const Problem&, const T*, const T*,     \
                               const T*, T*, Sum<T>*, void*);                          \
  template LaunchError Backward(const CpuExec&, const Problem&, const T*, const T*,    \
                                const T*, const T*, const Sum<T>*, T*, T*, T*, void*); \
  template LaunchError Coefficients(const CpuExec&, const Problem&, const T*,          \
                                    const T*, const T*, const Sum<T>*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_routing
