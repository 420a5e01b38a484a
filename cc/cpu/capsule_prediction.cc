// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule prediction and its gradients. For each input capsule i, both are products of
// small matrices. Output capsules and their dimensions form one axis n:
//   forward      output[b, n]       = sum_k input[b, k] weights[n, k]
//   backward     grad_input[b, k]   = sum_n grad[b, n] weights[n, k]
//                grad_weights[n, k] = sum_b grad[b, n] input[b, k]
// Memory traffic of output and grad dominates, so each is accessed once, in contiguous
// runs of several capsules, and everything else stays in the L1 and L2 caches. Weights
// are transposed to [k][n], so that lanes are neighbors along n; grad is copied to a
// padded tile that both gradients read. A task has some input capsules and samples
// (forward), or some input capsules and all samples (gradients). Gradients of small
// batches are in capsule_prediction_few.h.
#include "cc/cpu/capsule_prediction.h"

#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_prediction_few.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_prediction::CAPSOPS_ISA {
namespace {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

constexpr int kVectors = 4;                    // vectors per register tile
constexpr int kDepth = 4;                      // elements of in_dim per register tile
constexpr int64_t kForwardRun = 8 << 10;       // bytes of output written contiguously
constexpr int64_t kBackwardRun = 4 << 10;      // bytes of grad read contiguously
constexpr int64_t kPanelBytes = 128 << 10;     // bytes of transposed weights, forward
constexpr int64_t kGradTileBytes = 192 << 10;  // bytes of the copy of grad, backward
constexpr int64_t kStreamBytes = 32 << 20;     // larger outputs bypass the caches

int64_t Columns(const Problem& p) { return p.out_caps * p.out_dim; }

template <typename T>
int64_t PaddedColumns(const Problem& p) {
  return RoundUp(Columns(p), kLanes<Accumulator<T>>);
}

// Returns how many columns of weights are transposed at a time.
template <typename T>
int64_t PanelColumns(const Problem& p) {
  using A = Accumulator<T>;
  const int64_t step = kVectors * kLanes<A>;
  const int64_t fit = kPanelBytes / (Max(p.in_dim, 1) * sizeof(A)) / step * step;
  return Min(PaddedColumns<T>(p), Max(fit, step));
}

// Returns how many consecutive input capsules have rows of about `bytes` in total.
template <typename T>
int64_t Run(const Problem& p, int64_t bytes) {
  const int64_t row = Max(Columns(p) * sizeof(T), 1);
  return Max(Min(Min(bytes / row, 16), p.in_caps), 1);
}

template <typename T>
int64_t InCapsTile(const Problem& p) {
  return Run<T>(p, kForwardRun);
}

int64_t BatchTile(const Problem& p) { return Max(Min(p.batch, 64), 1); }

// Transposes `columns` rows from[n][k] to to[k][n], padded with zeros.
template <typename T, typename A>
void Transpose(const T* from, int64_t columns, int64_t padded, int64_t in_dim, A* to) {
  for (int64_t n = 0; n < padded; n += kLanes<A>) {
    const int64_t rows = Max(Min(columns - n, kLanes<A>), 0);
    ToLanes(from + n * in_dim, in_dim, rows, in_dim, to + n, padded);
  }
}

// Stores the first `columns` columns of one row of a register tile.
template <typename T, typename A, int V>
inline void WriteRow(const Vector<A> (&row)[V], int64_t columns, bool stream, T* to) {
  if constexpr (std::is_same_v<T, A>) {
    if (columns >= V * kLanes<A>) {
      for (int v = 0; v < V; ++v) {
        if (stream) {
          StreamStore(to + v * kLanes<A>, row[v]);
        } else {
          Store(to + v * kLanes<A>, row[v]);
        }
      }
      return;
    }
  }
  A lanes[V * kLanes<A>];
  for (int v = 0; v < V; ++v) Store(lanes + v * kLanes<A>, row[v]);
  if (columns >= V * kLanes<A>) {
    for (int n = 0; n < V * kLanes<A>; ++n) Narrow(lanes[n], to + n);
  } else {
    for (int64_t n = 0; n < columns; ++n) Narrow(lanes[n], to + n);
  }
}

// Computes output[r, n] for R samples and V vectors of columns.
template <typename T, typename A, int R, int V>
inline void ForwardTile(int64_t in_dim, const A* input, const A* weights,
                        int64_t padded, int64_t columns, bool stream, T* output,
                        int64_t output_stride) {
  Vector<A> sum[R][V] = {};
  for (int64_t k = 0; k < in_dim; ++k) {
    Vector<A> w[V];
    for (int v = 0; v < V; ++v) w[v] = Load(weights + k * padded + v * kLanes<A>);
    for (int r = 0; r < R; ++r) {
      const A x = input[r * in_dim + k];
      for (int v = 0; v < V; ++v) sum[r][v] += x * w[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    WriteRow<T, A, V>(sum[r], columns, stream, output + r * output_stride);
  }
}

// Computes all columns of R rows of a panel.
template <typename T, typename A, int R>
inline void ForwardRows(int64_t in_dim, const A* input, const A* weights,
                        int64_t padded, int64_t columns, bool stream, T* output,
                        int64_t output_stride) {
  int64_t n = 0;
  for (; n + (kVectors - 1) * kLanes<A> < columns; n += kVectors * kLanes<A>) {
    ForwardTile<T, A, R, kVectors>(in_dim, input, weights + n, padded, columns - n,
                                   stream, output + n, output_stride);
  }
  for (; n < columns; n += kLanes<A>) {
    ForwardTile<T, A, R, 1>(in_dim, input, weights + n, padded, columns - n, stream,
                            output + n, output_stride);
  }
}

template <typename T>
int64_t ForwardScratch(const Problem& p) {
  const int64_t per_capsule = PanelColumns<T>(p) + BatchTile(p);
  return InCapsTile<T>(p) * per_capsule * p.in_dim * sizeof(Accumulator<T>);
}

// Computes the outputs of a range: for each block of capsules and panel of columns,
// transposes the weights once and multiplies tiles of samples by them.
template <typename T>
void Forward(const Problem& p, const Range& range, const T* input, const T* weights,
             T* output, void* scratch) {
  using A = Accumulator<T>;
  const int64_t columns = Columns(p), panel = PanelColumns<T>(p);
  const int64_t caps_tile = InCapsTile<T>(p), batch_tile = BatchTile(p);
  const int64_t output_stride = p.in_caps * columns;
  const bool aligned = columns * sizeof(T) % kVectorBytes == 0 &&
                       reinterpret_cast<uintptr_t>(output) % kVectorBytes == 0;
  const bool stream =
      aligned && p.batch * output_stride * int64_t{sizeof(T)} > kStreamBytes;
  A* const transposed = static_cast<A*>(scratch);
  A* const samples = transposed + caps_tile * panel * p.in_dim;
  for (int64_t i0 = range.in_caps_begin; i0 < range.in_caps_end; i0 += caps_tile) {
    const int64_t caps = Min(caps_tile, range.in_caps_end - i0);
    for (int64_t n0 = 0; n0 < columns; n0 += panel) {
      const int64_t width = Min(panel, columns - n0);
      for (int64_t i = 0; i < caps; ++i) {
        Transpose(weights + ((i0 + i) * columns + n0) * p.in_dim, width, panel,
                  p.in_dim, transposed + i * panel * p.in_dim);
      }
      for (int64_t b0 = range.batch_begin; b0 < range.batch_end; b0 += batch_tile) {
        const int64_t rows = Min(batch_tile, range.batch_end - b0);
        for (int64_t b = 0; b < rows; ++b) {
          const T* from = input + ((b0 + b) * p.in_caps + i0) * p.in_dim;
          for (int64_t i = 0; i < caps; ++i) {
            A* to = samples + (i * batch_tile + b) * p.in_dim;
            for (int64_t k = 0; k < p.in_dim; ++k)
              to[k] = Widen(from[i * p.in_dim + k]);
          }
        }
        for (int64_t b = 0; b < rows;) {
          const bool full = b + kRows <= rows;
          for (int64_t i = 0; i < caps; ++i) {
            const A* x = samples + (i * batch_tile + b) * p.in_dim;
            const A* w = transposed + i * panel * p.in_dim;
            T* out = output + ((b0 + b) * p.in_caps + i0 + i) * columns + n0;
            if (full) {
              ForwardRows<T, A, kRows>(p.in_dim, x, w, panel, width, stream, out,
                                       output_stride);
            } else {
              ForwardRows<T, A, 1>(p.in_dim, x, w, panel, width, stream, out,
                                   output_stride);
            }
          }
          b += full ? kRows : 1;
        }
      }
    }
  }
  if (stream) StreamFence();
}

// The scratch of the backward pass. in_dim is padded to whole register tiles.
template <typename T>
struct BackwardPlan {
  using A = Accumulator<T>;
  int64_t columns, padded, depth, caps, rows;

  explicit BackwardPlan(const Problem& p)
      : columns(Columns(p)),
        padded(PaddedColumns<T>(p)),
        depth(RoundUp(p.in_dim, kDepth)),
        caps(Run<T>(p, kBackwardRun)) {
    const int64_t fit = kGradTileBytes / (Max(padded, 1) * caps * sizeof(A));
    rows = Max(Min(Min(fit, 128), RoundUp(p.batch, kRows)) / kRows * kRows, kRows);
  }
  int64_t matrix() const { return depth * padded; }  // weights or their gradient
  int64_t grad() const { return rows * padded; }     // a tile of grad
  int64_t samples() const { return rows * depth; }   // a tile of input
  int64_t bytes() const {
    return caps * (2 * matrix() + grad() + samples()) * sizeof(A);
  }
};

// Computes grad_weights^T[k, n] += sum_b input[b, k] grad[b, n] for one tile of k.
template <typename A, int V>
inline void WeightsTile(int64_t rows, const A* input, int64_t depth, const A* grad,
                        int64_t padded, A* sums) {
  Vector<A> sum[kDepth][V];
  for (int k = 0; k < kDepth; ++k) {
    for (int v = 0; v < V; ++v) sum[k][v] = Load(sums + k * padded + v * kLanes<A>);
  }
  for (int64_t b = 0; b < rows; ++b) {
    Vector<A> g[V];
    for (int v = 0; v < V; ++v) g[v] = Load(grad + b * padded + v * kLanes<A>);
    for (int k = 0; k < kDepth; ++k) {
      const A x = input[b * depth + k];
      for (int v = 0; v < V; ++v) sum[k][v] += x * g[v];
    }
  }
  for (int k = 0; k < kDepth; ++k) {
    for (int v = 0; v < V; ++v) Store(sums + k * padded + v * kLanes<A>, sum[k][v]);
  }
}

// Computes grad_input[b, k] = sum_n grad[b, n] weights^T[k, n] for kRows samples and
// one tile of k, without the padding after its first `in_dim` elements.
template <typename T, typename A>
inline void InputTile(int64_t padded, const A* grad, const A* weights, int64_t in_dim,
                      T* grad_input, int64_t grad_input_stride, int64_t rows) {
  Vector<A> sum[kRows * kDepth] = {};
  for (int64_t n = 0; n < padded; n += kLanes<A>) {
    Vector<A> w[kDepth];
    for (int k = 0; k < kDepth; ++k) w[k] = Load(weights + k * padded + n);
    for (int r = 0; r < kRows; ++r) {
      const Vector<A> g = Load(grad + r * padded + n);
      for (int k = 0; k < kDepth; ++k) sum[r * kDepth + k] += g * w[k];
    }
  }
  static_assert(kRows * kDepth % kLanes<A> == 0, "totals are whole vectors");
  A totals[kRows * kDepth];
  for (int first = 0; first < kRows * kDepth; first += kLanes<A>) {
    Vector<A> part[kLanes<A>];
    for (int n = 0; n < kLanes<A>; ++n) part[n] = sum[first + n];
    Store(totals + first, SumLanes<A>(part));
  }
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < in_dim; ++k) {
      Narrow(totals[r * kDepth + k], grad_input + r * grad_input_stride + k);
    }
  }
}

template <typename T>
int64_t BackwardScratch(const Problem& p) {
  return BackwardPlan<T>(p).bytes();
}

// Computes both gradients for a range of input capsules. Tiles of grad serve both
// products, and weight gradients are summed transposed.
template <typename T>
void Backward(const Problem& p, const Range& range, const T* grad, const T* input,
              const T* weights, T* grad_input, T* grad_weights, void* scratch) {
  using A = Accumulator<T>;
  if (const auto few = BackwardSmallBatchOf<T>(p)) {
    return few(p, range, grad, input, weights, grad_input, grad_weights);
  }
  const BackwardPlan<T> plan(p);
  A* const transposed = static_cast<A*>(scratch);
  A* const sums = transposed + plan.caps * plan.matrix();
  A* const grads = sums + plan.caps * plan.matrix();
  A* const samples = grads + plan.caps * plan.grad();
  std::memset(scratch, 0, plan.bytes());  // the padding stays zero
  for (int64_t i0 = range.in_caps_begin; i0 < range.in_caps_end; i0 += plan.caps) {
    const int64_t caps = Min(plan.caps, range.in_caps_end - i0);
    for (int64_t i = 0; i < caps; ++i) {
      Transpose(weights + (i0 + i) * plan.columns * p.in_dim, plan.columns, plan.padded,
                p.in_dim, transposed + i * plan.matrix());
    }
    std::memset(sums, 0, caps * plan.matrix() * sizeof(A));
    for (int64_t b0 = range.batch_begin; b0 < range.batch_end; b0 += plan.rows) {
      const int64_t rows = Min(plan.rows, range.batch_end - b0);
      for (int64_t b = 0; b < rows; ++b) {
        const T* g = grad + ((b0 + b) * p.in_caps + i0) * plan.columns;
        const T* x = input + ((b0 + b) * p.in_caps + i0) * p.in_dim;
        for (int64_t i = 0; i < caps; ++i) {
          A* to = grads + (i * plan.rows + b) * plan.padded;
          for (int64_t n = 0; n < plan.columns; ++n) {
            to[n] = Widen(g[i * plan.columns + n]);
          }
          to = samples + (i * plan.rows + b) * plan.depth;
          for (int64_t k = 0; k < p.in_dim; ++k) to[k] = Widen(x[i * p.in_dim + k]);
        }
      }
      for (int64_t i = 0; i < caps; ++i) {
        const A* g = grads + i * plan.grad();
        for (int64_t k = 0; k < plan.depth; k += kDepth) {
          const A* x = samples + i * plan.samples() + k;
          A* sum = sums + i * plan.matrix() + k * plan.padded;
          int64_t n = 0;
          for (; n + kVectors * kLanes<A> <= plan.padded; n += kVectors * kLanes<A>) {
            WeightsTile<A, kVectors>(rows, x, plan.depth, g + n, plan.padded, sum + n);
          }
          for (; n < plan.padded; n += kLanes<A>) {
            WeightsTile<A, 1>(rows, x, plan.depth, g + n, plan.padded, sum + n);
          }
          for (int64_t b = 0; b < rows; b += kRows) {
            InputTile<T, A>(plan.padded, g + b * plan.padded,
                            transposed + i * plan.matrix() + k * plan.padded,
                            Min(kDepth, p.in_dim - k),
                            grad_input + ((b0 + b) * p.in_caps + i0 + i) * p.in_dim + k,
                            p.in_caps * p.in_dim, Min(kRows, rows - b));
          }
        }
      }
    }
    for (int64_t i = 0; i < caps; ++i) {
      const A* sum = sums + i * plan.matrix();
      T* to = grad_weights + (i0 + i) * plan.columns * p.in_dim;
      for (int64_t n = 0; n < plan.columns; n += kLanes<A>) {
        FromLanes(sum + n, p.in_dim, Min(plan.columns - n, kLanes<A>), p.in_dim,
                  to + n * p.in_dim, plan.padded);
      }
    }
  }
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {InCapsTile<T>,      BatchTile,  ForwardScratch<T>,
          BackwardScratch<T>, Forward<T>, Backward<T>};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::capsule_prediction::CAPSOPS_ISA
