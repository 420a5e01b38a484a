// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over the children of all windows. A thread keeps the statistics and sums of
// one parent of one window in registers. A block processes a group of windows with all
// their parents, kChunk children at a time:
//   1. It computes the votes and from them the logits.
//   2. It replaces logits with shares, in shared memory.
//   3. It computes the votes again and adds them to the sums.
// Backward, a warp multiplies the gradients of votes by weights, which gives those of
// poses, and by poses, which gives those of weights. Shared memory holds the sums of
// pose gradients over the warps for one chunk, and those of weight gradients over all
// of the block's windows (WeightSums). There is room for a few chunks of the latter, so
// the children are divided into ranges, and a block works on one range. Weights and
// poses of a chunk are copied asynchronously to one of two stages in shared memory,
// while the other is in use, and loaded from there as operands. Votes are computed on
// tensor cores, which is cheaper than storing them. If a share depends on its own logit
// alone (kDirect), because its softmax is known or there is none, a thread does all
// three steps at once for a vote, and stores no logits.
//
// The work of a range is a list of units (group, chunk), which its blocks split evenly.
// A group may therefore begin in one block and end in another; such blocks write
// partial sums to the workspace, and FinishKernel adds them in order. So do the blocks
// of several ranges, unless a range adds to the sums of those before (StoreSums).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_moments/mma/rows.cuh"
#include "cuda/capsule_moments/mma/shares.cuh"
#include "cuda/capsule_moments/mma/statistics.cuh"
#include "cuda/capsule_moments/mma/sums.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments::mma {

// Computes for this block's units
//   - with out.scales: only the rows' softmaxes (see Results);
//   - else if kGradient: the gradients of statistics, and of each row's pose and
//     activation, and the block's sums of weight and prior gradients;
//   - else: the moments.
// kSecond: second moments take stored_sums; kLogit: see statistics.cuh; kDirect: for
// rules other than kSoftmax. Gradients and complete logits get one block per
// multiprocessor, and so up to 255 registers per thread instead of 128.
template <bool kGradient, bool kSecond, int kLogit, int Q, bool kSplit, bool kDirect>
__global__ void __launch_bounds__(kThreads, kGradient || kLogit == 2 ? 1 : 2)
    PassKernel(Inputs in, Division d, Gradient grad, Results out) {
  TriggerDependentLaunch();
  GridDependencySynchronize();
  extern __shared__ float4 shared[];
  constexpr bool kEqual = kLogit == 0;
  float* const memory = reinterpret_cast<float*>(shared);
  using Terms = VoteTerms<kGradient>;
  // If kDirect, the votes' memory holds the sums of share dq.
  float* const dqs = memory + 2 * StageSize<Q>(d);
  Terms* const votes = reinterpret_cast<Terms*>(dqs);
  float* const rows = dqs + TermsSize<kGradient>(d, kDirect);
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
  const int column = min(g % (kEight / kPair<Q>), Q - 1);
  const int back_at = (min(coord.parent, d.outs - 1) * Q + column) * kSide;
  // Offset in a stage of the pose row that this thread multiplies for the gradients of
  // weights.
  using WeightGradientOf = WeightGradient<kSplit, Q>;
  const int window_at = coord.window - g + WeightGradientOf::Window();
  const int pose_row_at = (window_at * Q + WeightGradientOf::Column()) * kSide;
  // Offsets of this thread's votes and this warp's rows of a chunk.
  const int vote_at = coord.window * (d.lanes() + 4) + coord.parent;
  const int vote_step = d.windows() * (d.lanes() + 4);
  float* const my_rows = rows + threadIdx.x / kLanes * kChunk * kEight * kRow<Q> +
                         (kPair<Q> == 1 ? 2 * t : t / 2 * kEight * kRow<Q> + t % 2 * 2);
  const bool sums = out.scales == nullptr;
  float* const my_dqs = dqs + threadIdx.x / kLanes * kChunk * kEight + g;
  // Whether vote gradients do not depend on the votes, which are then not computed.
  const bool linear = kEqual && !kSecond && in.center == nullptr;
  // Logit of padding after the last parent.
  const float none = in.rule == Rule::kLogit ? 0 : -INFINITY;
  // Whether each thread computes the shares of its own votes, which differ by parent.
  constexpr bool kOwnShares = kDirect && !kEqual;
  const int range = blockIdx.y, first_chunk = range * d.chunks;

  // The block's WeightSums: where they are stored between slices, and where this pass
  // adds.
  const WeightSums<Q> layout(d, in.prior != nullptr);
  float4* const stored_sums =
      reinterpret_cast<float4*>(out.weights) +
      int64_t{range * d.blocks + static_cast<int>(blockIdx.x)} * (layout.Size() / 4);
  float4* const weight_sums =
      d.sums_in_shared
          ? reinterpret_cast<float4*>(rows + kRowsSize<Q> + kSelectionsSize<Q>)
          : stored_sums;
  float4* const my_weights = weight_sums + threadIdx.x / kLanes * layout.vectors + lane;
  float* const my_prior =
      reinterpret_cast<float*>(my_weights - lane) + layout.Prior() + t;
  // In shared memory, because there are no registers left.
  float* const selections = rows + kRowsSize<Q>;
  if (kGradient && threadIdx.x < 2 * kLanes) {
    StoreSelection<Q>(g == t + threadIdx.x / kLanes * kFour,
                      selections + threadIdx.x * kSelectionWords<Q>);
  }
  const auto for_vectors = [&](const auto& visit) {
    const int vectors = kGradient && sums ? layout.Size() / 4 : 0;
    for (int i = threadIdx.x; i < vectors; i += kThreads) visit(i);
  };
  if (out.overwrite) {
    for_vectors([&](int i) { weight_sums[i] = {0, 0, 0, 0}; });
  } else if (d.sums_in_shared) {
    for_vectors([&](int i) {
      __pipeline_memcpy_async(weight_sums + i, stored_sums + i, sizeof(float4));
    });
  }

  const int begin = d.First(blockIdx.x), end = d.First(blockIdx.x + 1);
  // Starts the copies of the first unit.
  int chunk = first_chunk + begin % d.chunks, buffer = 0;
  ChildIterator<kEqual> source(in, d, begin / d.chunks, chunk);
  // Whether all children that this thread staged exist.
  bool exist = true;
  if (begin < end) {
    exist = FillStage<kEqual, Q>(in, d, chunk, &source, StageView<Q>(d, memory));
  }
  __pipeline_commit();
  for (int unit = begin; unit < end;) {
    const int group = unit / d.chunks, chunk0 = first_chunk + unit % d.chunks;
    const int chunk1 = min(first_chunk + d.chunks, chunk0 + (end - unit));
    const int position = (group << d.windows_log2()) + coord.window;
    const bool mine = parent_exists && position < d.positions;
    const int64_t parent = mine ? int64_t{position} * d.outs + coord.parent : 0;
    const Statistics<kGradient, kSecond, kLogit, kSplit, kOwnShares> statistics(
        mine ? ParentAt(in, grad, parent) : ParentAt{},
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
    for (chunk = chunk0; chunk < chunk1; ++chunk, buffer = 1 - buffer) {
      const int k0 = chunk * kChunk;
      const StageView<Q> stage(d, memory + buffer * StageSize<Q>(d));
      WaitForStage<kSplit, Q>(in, d, chunk, stage);
      // The barrier also ends all reads of the stage that is filled next.
      const bool whole = __syncthreads_and(exist);
      if (unit + chunk - chunk0 + 1 < end) {
        int next = chunk + 1;
        if (next == first_chunk + d.chunks) {
          next = first_chunk;
          source = ChildIterator<kEqual>(in, d, group + 1, next);
        }
        const StageView<Q> to(d, memory + (1 - buffer) * StageSize<Q>(d));
        exist = FillStage<kEqual, Q>(in, d, next, &source, to);
      }
      __pipeline_commit();
      // Computes the votes of two children at once.
      const auto vote = [&](const float* poses, const float* weights,
                            float (&u)[2][kSize]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          MakeVote<kSplit, Q>(poses + i * pose_step, weights + i * weights_step,
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
        [[maybe_unused]] const float* pose_rows = stage.poses + pose_row_at;
        [[maybe_unused]] const RowState* states = stage.state + window_at;
        Terms* terms = votes + vote_at;
        float* to = my_rows;
        [[maybe_unused]] float4* weights_to =
            my_weights + (chunk - first_chunk) * (kChunk / kPair<Q>)*kLanes;
#pragma unroll 1
        for (int j = 0; j < kChunk; j += 2) {
          float u[2][kSize], row_sums[2 / kPair<Q>][2][4] = {};
          [[maybe_unused]] WeightGradientOf weight_grads[2];
          [[maybe_unused]] uint32_t select[2][4];
          if constexpr (kGradient) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              LoadSelection<Q>(selections + (c * kLanes + lane) * kSelectionWords<Q>,
                               select[c]);
            }
          }
          if (!kGradient || !kEqual || kSecond || !linear) {
            vote(poses, weights, u);
            poses += 2 * pose_step, weights += 2 * weights_step;
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const bool exists = all_exist || state->scale != 0;
            [[maybe_unused]] float gradient[kSize] = {}, dq = 0, prior = 0, dz = 0;
            if (kOwnShares && kLogit > 1 && in.prior != nullptr && parent_exists &&
                k0 + j + i < d.children) {
              prior = in.prior[int64_t{k0 + j + i} * d.outs + coord.parent];
            }
            if (exists) {
              if constexpr (kGradient && kOwnShares) {
                dz = statistics.Differentiate(u[i], in.rule, *state, prior, gradient,
                                              &dq);
                sum += dz;
#pragma unroll
                for (int h = 0; h < kSize; ++h) {
                  const float term = dz * u[i][h];
                  first[h] += term;
                  second[h] += term * u[i][h];
                }
              } else if constexpr (kGradient && kEqual) {
                float unused;
                if (!linear) statistics.Sum(u[i], &unused, &dq);
#pragma unroll
                for (int h = 0; h < kSize; ++h) {
                  gradient[h] = statistics.MomentGradient(h, u[i][h]);
                }
              } else if constexpr (kGradient) {
                const float q = kDebias<kSplit> * terms->z;
                dz = kDebias<kSplit> * terms->dq;
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
              const bool counts = kPair<Q> == 1 || g / kFour == i;
              SumOverParents<kSplit>(gradient, back, counts, row_sums[i / kPair<Q>]);
              back += weights_step;
              float poses[WeightGradientOf::kParts][kSide];
#pragma unroll
              for (int e = 0; e < WeightGradientOf::kParts; ++e) {
                LoadWords(pose_rows + e * Q * kSide, poses[e]);
                if constexpr (kEqual) {
                  // Float poses have already been compensated for truncation.
                  const float factor =
                      states[e].activation * states[e].scale *
                      (in.element == Element::kFloat ? 1 : kDebias<kSplit>);
#pragma unroll
                  for (float& x : poses[e]) x *= factor;
                }
              }
              weight_grads[i].Compute(gradient, poses, select);
              pose_rows += pose_step, states += d.windows();
              if (kLogit > 1 && in.prior != nullptr) {
                // Sums the prior's gradient over the warp's windows.
                for (int by = kFour; by < kLanes; by *= 2) {
                  dz += __shfl_xor_sync(~0u, dz, by);
                }
                const int child = k0 + j + i - first_chunk * kChunk;
                if (g == 0)
                  my_prior[child * kFour] += kOwnShares ? dz : dz / kDebias<kSplit>;
              }
            }
            terms += vote_step, state += d.windows();
          }
#pragma unroll
          for (int e = 0; kGradient && e < 2 * kSide / kPair<Q>; ++e) {
            const int row = e % kSide;
            const float* const from = row_sums[e / kSide][row / 2] + row % 2 * 2;
            float* const at = to + (e / kSide) * kEight * kRow<Q> + RowAt<Q>(g, row, 0);
            if constexpr (kPair<Q> == 2) {
              *reinterpret_cast<float2*>(at) = {from[0], from[1]};
            } else {
              if (2 * t < Q) at[0] = from[0];
              if (2 * t + 1 < Q) at[1] = from[1];
            }
          }
          to += 2 * kEight * kRow<Q>;
          if constexpr (kGradient) {
            weight_grads[0].AddTo(weight_grads[1], weights_to);
            weights_to += 2 / kPair<Q> * kLanes;
          }
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
        SumRows<false, false, kSplit>(d, group, (chunk1 - 1) * kChunk, rows,
                                      StageView<Q>(d, memory), nullptr, false, out);
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
        const float zeros[4] = {};
        for (int h = 0; h < kSize; h += 4)
          Finish(in, grad, out, out.gradients, parent, h, 0, zeros, zeros);
      }
      continue;
    }
    StoreSums(in, d, grad, out, group, chunk1 - chunk0, mine, parent, sum, first,
              second);
  }
  if (!d.sums_in_shared) return;
  __pipeline_wait_prior(0);  // for a block without units
  __syncthreads();
  for_vectors([&](int i) { stored_sums[i] = weight_sums[i]; });
}

}  // namespace capsops::capsule_moments::mma
