// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over the children of all windows. A thread keeps the statistics and sums of
// one parent of one window in registers. A block processes a group of windows with all
// their parents, kChunk children at a time:
//   1. It computes the votes and from them the logits.
//   2. It replaces logits with shares, in shared memory.
//   3. It computes the votes again and adds them to the sums.
// Weights and poses of a chunk are copied asynchronously to one of two stages in shared
// memory, while the other is in use, and loaded from there as operands. Votes are
// computed on tensor cores, which is cheaper than storing them. If a share
// depends on its own logit alone (kDirect), because its softmax is known or there is
// none, a thread does all three steps at once for a vote, and stores no logits.
//
// The work is a list of units (group, chunk), which blocks split evenly. A group may
// therefore begin in one block and end in another; such blocks write partial sums to
// the workspace, and FinishKernel adds them in order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_moments/mma/shares.cuh"
#include "cuda/capsule_moments/mma/statistics.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments::mma {

// Offset of element (row, q) of the pose gradient of a warp's window g, in the warp's
// buffer for one child. With Q = 4 windows are 16 words apart, so that only two would
// use different banks; the swizzle spreads the others.
template <int Q>
__device__ int RowAt(int g, int row, int q) {
  return g * kRow<Q> + (Q == 4 ? row ^ (g / 2 % kSide) : row) * (kRow<Q> / kSide) + q;
}

// Sums the pose gradients `rows` of a chunk over the warps of each window, which have
// four parents each, and writes them. If kDirect, also writes each row's state and the
// gradient of its activation, from `dqs`, the warps' sums of share dq as [warp][child]
// [window of the warp]. Completes them first:
//   - If kEqual, `dqs` lack the factor share, and `rows` the factor activation * share.
//   - If `linear`, `dqs` lack <grad_first, u>. The sum of this term over parents is the
//     inner product of the pose and its gradient.
template <bool kDirect, bool kEqual, bool kSplit, int Q>
__device__ void SumRows(const Division& d, int group, int k0, const float* rows,
                        const StageView<Q>& stage, const float* dqs, bool linear,
                        const Results& out) {
  const int warps = d.lanes() / kFour, used = (d.outs + kFour - 1) / kFour;
  const int p = threadIdx.x % kSide, end = kChunk << d.windows_log2();
#pragma unroll 1
  for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
    const int window = e & (d.windows() - 1), j = e >> d.windows_log2();
    const int position = (group << d.windows_log2()) + window, k = k0 + j;
    const bool there = position < d.positions && k < d.children;
    const int first_warp = window / kEight * warps;
    const float* from = rows + (first_warp * kChunk + j) * kEight * kRow<Q> +
                        RowAt<Q>(window % kEight, p, 0);
    float sums[Q] = {};
#pragma unroll 4
    for (int w = 0; w < used; ++w, from += kChunk * kEight * kRow<Q>) {
      float row[Q];
      LoadRow(from, row);
#pragma unroll
      for (int q = 0; q < Q; ++q) sums[q] += row[q];
    }
    const int64_t to = int64_t{position} * d.children + k;
    if constexpr (kDirect) {
      const RowState state = stage.state[e];
      float dq = 0;
      if (out.activations != nullptr) {
        for (int w = p; w < used; w += kSide) {
          dq += dqs[((first_warp + w) * kChunk + j) * kEight + window % kEight];
        }
#pragma unroll
        for (int q = 0; kEqual && linear && q < Q; ++q) {
          const float pose = stage.poses[(e * Q + q) * kSide + p];
          dq += sums[q] * (kSplit ? pose : TruncateToTf32(pose));
        }
        dq = SumOverRow(dq, kSide);
      }
      if (p == 0 && there) {
        out.state[to] = state;
        if (out.activations != nullptr) {
          out.activations[to] = kEqual ? state.scale * dq : dq;
        }
      }
#pragma unroll
      for (float& x : sums) x *= kEqual ? state.activation * state.scale : 1;
    }
    if (there) StoreRow(sums, out.poses + (to * kSide + p) * Q);
  }
}

// Computes for this block's units
//   - with out.scales: only the rows' softmaxes (see Results);
//   - else if kGradient: the gradients of statistics, poses and activations, and each
//     row's state;
//   - else: the moments.
// kSecond: second moments take part; kLogit: see statistics.cuh; kDirect: for rules
// other than kSoftmax. Gradients and complete logits get one block per multiprocessor,
// and so up to 255 registers per thread instead of 128.
template <bool kGradient, bool kSecond, int kLogit, int Q, bool kSplit, bool kDirect>
__global__ void __launch_bounds__(kThreads, kGradient || kLogit == 2 ? 1 : 2)
    PassKernel(Inputs in, Division d, Gradient grad, Results out) {
  TriggerDependentLaunch();
  GridDependencySynchronize();
  extern __shared__ float4 shared[];
  constexpr bool kEqual = kLogit == 0;
  // With Q = 4, a product's eight columns are the pose gradients of two children.
  constexpr int kPair = Q == kFour ? 2 : 1;
  float* const memory = reinterpret_cast<float*>(shared);
  using Terms = VoteTerms<kGradient>;
  Terms* const votes = reinterpret_cast<Terms*>(memory + 2 * StageSize<Q>(d));
  float* const rows = reinterpret_cast<float*>(votes + VotesSize(d));
  const ThreadCoord coord(d);
  const int lane = threadIdx.x % kLanes, g = lane / kFour, t = lane % kFour;
  const int first_parent = coord.parent - t;
  const bool parent_exists = coord.parent < d.outs, any = first_parent < d.outs;
  // Offsets in a stage of this thread's operands: the pose of its window, the weights
  // for the votes, and the weights for the pose gradients.
  const int pose_at = (coord.window * Q + t) * kSide;
  const int pose_step = Q * kSide << d.windows_log2();
  const int weights_at =
      (min(first_parent + g / 2, d.outs - 1) * Q + t) * kSide + g % 2 * 2;
  const int weights_step = d.outs * Q * kSide;
  const int column = min(g % (kPair * kFour == kEight ? kFour : kEight), Q - 1);
  const int back_at = (min(coord.parent, d.outs - 1) * Q + column) * kSide;
  // Offsets of this thread's votes and this warp's rows of a chunk.
  const int vote_at = coord.window * (d.lanes() + 4) + coord.parent;
  const int vote_step = d.windows() * (d.lanes() + 4);
  float* const my_rows = rows + threadIdx.x / kLanes * kChunk * kEight * kRow<Q> +
                         (kPair == 1 ? 2 * t : t / 2 * kEight * kRow<Q> + t % 2 * 2);
  const bool sums = out.scales == nullptr;
  // If kDirect, the votes' memory holds the sums of share dq.
  float* const dqs = reinterpret_cast<float*>(votes);
  float* const my_dqs = dqs + threadIdx.x / kLanes * kChunk * kEight + g;
  // Whether vote gradients do not depend on the votes, which are then not computed.
  const bool linear = kEqual && !kSecond && in.center == nullptr;
  // Logit of padding after the last parent.
  const float none = in.rule == Rule::kLogit ? 0 : -INFINITY;
  // Whether each thread computes the shares of its own votes, which differ by parent.
  constexpr bool kOwnShares = kDirect && !kEqual;

  const int begin = d.First(blockIdx.x), end = d.First(blockIdx.x + 1);
  for (int unit = begin; unit < end;) {
    const int group = unit / d.chunks, chunk0 = unit % d.chunks;
    const int chunk1 = min(d.chunks, chunk0 + (end - unit));
    const int position = (group << d.windows_log2()) + coord.window;
    const bool mine = parent_exists && position < d.positions;
    const int64_t parent = mine ? int64_t{position} * d.outs + coord.parent : 0;
    const Statistics<kGradient, kSecond, kLogit, kSplit, kOwnShares> statistics(
        std::false_type(), mine ? ParentAt(in, grad, parent) : ParentAt{},
        mine            ? At(in.bias, parent)
        : parent_exists ? 0
                        : none,
        mine ? At(grad.mass, parent) : 0);
    float sum = 0, first[kSize] = {}, second[kSize] = {};
    if constexpr (kGradient && kEqual) {
      const float mass_grad = SumOverRow(statistics.mass_grad, kFour);
      for (int j = 0; linear && t == 0 && j < kChunk; ++j)
        my_dqs[j * kEight] = mass_grad;
    }
    ChildIterator<kEqual> source(in, d, group, chunk0);
    bool exist = true;  // whether all children that this thread staged exist
    // The first iteration only starts the copies of chunk0.
    for (int chunk = chunk0 - 1; chunk < chunk1; ++chunk) {
      const int buffer = (chunk - chunk0) & 1, k0 = chunk * kChunk;
      const StageView<Q> stage(d, memory + buffer * StageSize<Q>(d));
      if (chunk >= chunk0) WaitForStage<kSplit, Q>(in, d, chunk, stage);
      // The barrier also ends all reads of the stage that is filled next.
      const bool whole = __syncthreads_and(exist);
      if (chunk + 1 < chunk1) {
        const StageView<Q> next(d, memory + (1 - buffer) * StageSize<Q>(d));
        exist = FillStage<kEqual, Q>(in, d, chunk + 1, &source, next);
      }
      __pipeline_commit();
      if (chunk < chunk0) continue;
      // Computes the votes of two children at once.
      const auto vote = [&](const float* poses, const float* weights,
                            float (&u)[2][kSize]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          MakeVote<false, kSplit, Q>(poses + i * pose_step, weights + i * weights_step,
                                     statistics.minus_center, u[i]);
        }
      };
      if constexpr (!kDirect) {
        const float* poses = stage.poses + pose_at;
        const float* weights = stage.weights + weights_at;
        Terms* to = votes + vote_at;
#pragma unroll 1
        for (int j = 0; j < kChunk; j += 2) {
          float z[2] = {none, none}, dq[2] = {};
          if (any) {
            float u[2][kSize];
            vote(poses, weights, u);
            poses += 2 * pose_step, weights += 2 * weights_step;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              statistics.Sum(u[i], &z[i], &dq[i]);
              z[i] = parent_exists ? z[i] : none;
            }
          }
#pragma unroll
          for (int i = 0; i < 2; ++i, to += vote_step) *to = Terms(z[i], dq[i]);
        }
        __syncthreads();
        if constexpr (kGradient) {
          // The preceding chunk, whose `rows` are complete since the last barrier.
          if (sums && chunk > chunk0)
            SumRows<false, false, kSplit>(d, group, k0 - kChunk, rows, stage, nullptr,
                                          false, out);
        }
        ShareChunk<kGradient>(in, d, group, k0, stage.state, votes, out);
        if (!sums) continue;
        __syncthreads();
      }
      // Skips the votes of missing children, which may be infinite.
      const auto add = [&](auto all_exist) {
        const float* poses = stage.poses + pose_at;
        const float* weights = stage.weights + weights_at;
        [[maybe_unused]] const float* back = stage.weights + back_at;
        const RowState* state = stage.state + coord.window;
        Terms* terms = votes + vote_at;
        float* to = my_rows;
#pragma unroll 1
        for (int j = 0; j < kChunk; j += 2) {
          float u[2][kSize], row_sums[2 / kPair][2][4] = {};
          if (!kGradient || !kEqual || kSecond || !linear) {
            vote(poses, weights, u);
            poses += 2 * pose_step, weights += 2 * weights_step;
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const bool exists = all_exist || state->scale != 0;
            [[maybe_unused]] float gradient[kSize] = {}, dq = 0, prior = 0;
            if (kOwnShares && kLogit > 1 && in.prior != nullptr && parent_exists &&
                k0 + j + i < d.children) {
              prior = in.prior[int64_t{k0 + j + i} * d.outs + coord.parent];
            }
            if (exists) {
              if constexpr (kGradient && kOwnShares) {
                const float dz = statistics.Differentiate(u[i], in.rule, *state, prior,
                                                          gradient, &dq);
                sum += dz;
#pragma unroll
                for (int h = 0; h < kSize; ++h) {
                  const float term = dz * u[i][h];
                  first[h] += term;
                  second[h] += term * u[i][h];
                }
              } else if constexpr (kGradient && kEqual) {
                float none;
                if (!linear) statistics.Sum(u[i], &none, &dq);
#pragma unroll
                for (int h = 0; h < kSize; ++h) {
                  gradient[h] = statistics.MomentGradient(h, u[i][h]);
                }
              } else if constexpr (kGradient) {
                const float q = kDebias<kSplit> * terms->z;
                const float dz = kDebias<kSplit> * terms->dq;
                sum += dz;
#pragma unroll
                for (int h = 0; h < kSize; ++h) {
                  const float term = dz * u[i][h];
                  first[h] += term;
                  second[h] += term * u[i][h];
                  float x = q * statistics.MomentGradient(h, u[i][h]);
                  x -= statistics.precision[h] * term;
                  if constexpr (kLogit > 1) x += statistics.linear[h] * dz;
                  gradient[h] = x;
                }
              } else {
                float q;
                if constexpr (kOwnShares) {
                  statistics.Sum(u[i], &q, &dq);
                  q = statistics.Weigh(q + prior, in.rule, *state);
                } else {
                  q = kEqual ? state->activation * state->scale : terms->z;
                }
                sum += q;
#pragma unroll
                for (int h = 0; h < kSize; ++h) {
                  const float term = q * u[i][h];
                  first[h] += term;
                  if constexpr (kSecond) second[h] += term * u[i][h];
                }
              }
            }
            if constexpr (kGradient && kDirect) {
              if (!linear) dq = SumOverRow(dq, kFour);
              if (!linear && t == 0) my_dqs[(j + i) * kEight] = dq;
            }
            if constexpr (kGradient) {
              Contract<false, kSplit>(gradient, back, kPair == 1 || g / kFour == i, 1,
                                      row_sums[i / kPair]);
              back += weights_step;
            }
            terms += vote_step, state += d.windows();
          }
#pragma unroll
          for (int e = 0; kGradient && e < 2 * kSide / kPair; ++e) {
            const int row = e % kSide;
            const float* const from = row_sums[e / kSide][row / 2] + row % 2 * 2;
            float* const at = to + (e / kSide) * kEight * kRow<Q> + RowAt<Q>(g, row, 0);
            if constexpr (kPair == 2) {
              *reinterpret_cast<float2*>(at) = {from[0], from[1]};
            } else {
              if (2 * t < Q) at[0] = from[0];
              if (2 * t + 1 < Q) at[1] = from[1];
            }
          }
          to += 2 * kEight * kRow<Q>;
        }
      };
      if (any) {
        if (whole) {
          add(std::true_type{});
        } else {
          add(std::false_type{});
        }
      }
      if constexpr (kGradient && kDirect) {
        __syncthreads();
        SumRows<true, kEqual, kSplit>(d, group, k0, rows, stage, dqs, linear, out);
      }
    }
    __syncthreads();
    if constexpr (kGradient) {
      if (sums && !kDirect) {
        const StageView<Q> none(d, memory);
        SumRows<false, false, kSplit>(d, group, (chunk1 - 1) * kChunk, rows, none,
                                      nullptr, false, out);
      }
      // Removes kDebias from the sums of logit gradients.
      constexpr float kFactor = kOwnShares ? 1 : 1 / kDebias<kSplit>;
      sum *= kFactor;
#pragma unroll
      for (int h = 0; h < kSize; ++h) first[h] *= kFactor, second[h] *= kFactor;
    }
    unit += chunk1 - chunk0;
    if (!sums) continue;
    if constexpr (kGradient && kEqual) {
      // Without logits only `center` has a gradient, which needs no sums.
      if (mine && chunk0 == 0) {
        const float none[4] = {};
        for (int h = 0; h < kSize; h += 4)
          Finish(in, grad, out, out.gradients, parent, h, 0, none, none);
      }
      continue;
    }
    const bool whole = chunk0 == 0 && chunk1 == d.chunks;
    float* const partial =
        out.partial + int64_t{blockIdx.x + group} * kSums * kThreads + threadIdx.x;
    if (!whole) partial[0] = sum;
#pragma unroll
    for (int h = 0; h < kSize; h += 4) {
      float firsts[4], seconds[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        firsts[e] = first[h + e], seconds[e] = second[h + e];
        if (!whole) {
          partial[(1 + h + e) * kThreads] = firsts[e];
          partial[(1 + kSize + h + e) * kThreads] = seconds[e];
        }
      }
      if (whole && mine)
        Finish(in, grad, out, out.gradients, parent, h, sum, firsts, seconds);
    }
  }
}

}  // namespace capsops::capsule_moments::mma
