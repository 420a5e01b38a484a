// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A pass over the children of windows. A thread keeps the statistics and the sums of
// one parent of one window in registers. A block has the windows of a group, with all
// their parents, and takes kChunk children at a time: it makes the votes and from them
// logits, which become shares in shared memory, makes the votes again, and adds up.
// Votes come from the tensor cores, so making them twice costs less than keeping them.
//
// The work is the list of all chunks of the first group, then of the second and so on,
// and each block has an equal part of it: a group may begin in one block and end in
// another. Such blocks leave their sums in the workspace, where FinishKernel adds them
// up in order.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_PASS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_PASS_CUH_

#include <cstdint>

#include "cuda/capsule_moments/mma/shares.cuh"
#include "cuda/capsule_moments/mma/statistics.cuh"

namespace capsops::capsule_moments::mma {

// Where number (row, q) of window g's gradient is, of those that a warp makes of a
// child: rows of whole 16-byte words are swapped so that no bank is met twice.
template <int Q>
__device__ int RowAt(int g, int row, int q) {
  return g * kSide * Q + (Q == 4 ? row ^ (g / 2 % kSide) : row) * Q + q;
}

// Adds up the gradients of poses that the warps of a window made of a chunk.
template <int Q>
__device__ void SumRows(const Division& d, int group, int k0, const float* rows,
                        float* poses) {
  const int warps = d.lanes() / kFour, used = (d.outs + kFour - 1) / kFour;
  const int p = threadIdx.x % kSide, end = kChunk << d.windows_log2();
  for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
    const int window = e & (d.windows() - 1), j = e >> d.windows_log2();
    const int position = (group << d.windows_log2()) + window, k = k0 + j;
    if (position >= d.positions || k >= d.children) continue;
    const float* from = rows +
                        (window / kEight * warps * kChunk + j) * kEight * kSide * Q +
                        RowAt<Q>(window % kEight, p, 0);
    float* const to = poses + ((int64_t{position} * d.children + k) * kSide + p) * Q;
    float sums[Q] = {};
#pragma unroll 4
    for (int w = 0; w < used; ++w, from += kChunk * kEight * kSide * Q) {
      float row[Q];
      LoadRow(from, row);
#pragma unroll
      for (int q = 0; q < Q; ++q) sums[q] += row[q];
    }
    StoreRow(sums, to);
  }
}

template <bool kGradient, bool kSecond, int kLogit, int Q>
__global__ void __launch_bounds__(kThreads, kGradient || kLogit == 2 ? 1 : 2)
    PassKernel(Inputs in, Division d, Gradient grad, Results out) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);
  float* const logits = memory + 2 * StageSize<Q>(d);
  float* const dqs = logits + VotesSize(d);
  float* const rows = dqs + VotesSize(d);
  const Seat seat(d);
  const int lane = threadIdx.x % kLanes, g = lane / kFour, t = lane % kFour;
  const int first_parent = seat.parent - t;
  const bool parent_exists = seat.parent < d.outs, any = first_parent < d.outs;
  // In a stage, the operands of products: the pose of this thread's window, the weights
  // for the votes, and those for the gradients of poses.
  const int pose_at = (seat.window * Q + t) * kSide;
  const int weights_at =
      (min(first_parent + g / 2, d.outs - 1) * Q + t) * kSide + g % 2 * 2;
  const int back_at = (min(seat.parent, d.outs - 1) * Q + min(g, Q - 1)) * kSide;
  // Of a chunk's votes, this thread's; and of its rows, this warp's.
  const int vote_at = seat.window * (d.lanes() + 4) + seat.parent;
  const int vote_step = d.windows() * (d.lanes() + 4);
  float* const my_rows = rows + threadIdx.x / kLanes * kChunk * kEight * kSide * Q;
  const bool equal = !kGradient && in.rule == Rule::kGiven && in.scales == nullptr;
  const bool sums = out.scales == nullptr && out.dots == nullptr;

  const int begin = d.First(blockIdx.x), end = d.First(blockIdx.x + 1);
  for (int unit = begin; unit < end;) {
    const int group = unit / d.chunks, chunk0 = unit % d.chunks;
    const int chunk1 = min(d.chunks, chunk0 + (end - unit));
    const int position = (group << d.windows_log2()) + seat.window;
    const bool mine = parent_exists && position < d.positions;
    const int64_t parent = mine ? int64_t{position} * d.outs + seat.parent : 0;
    // Where there is no parent there are no votes either, and any statistics will do.
    const Statistics<kGradient, kSecond, kLogit> statistics(
        ParentAt(in, grad, parent), At(in.bias, parent), At(grad.mass, parent));
    float sum = 0, first[kSize] = {}, second[kSize] = {};
    Source source(in, d, group, chunk0);
    FillStage<Q>(in, d, chunk0, &source, StageOf<Q>(d, memory));
    __pipeline_commit();
    for (int chunk = chunk0; chunk < chunk1; ++chunk) {
      const int turn = (chunk - chunk0) % 2, k0 = chunk * kChunk;
      const StageOf<Q> stage(d, memory + turn * StageSize<Q>(d));
      AwaitStage<Q>(in, d, chunk, stage);
      __syncthreads();
      if (chunk + 1 < chunk1) {
        FillStage<Q>(in, d, chunk + 1, &source,
                     StageOf<Q>(d, memory + (1 - turn) * StageSize<Q>(d)));
      }
      __pipeline_commit();
      // The votes of two children at a time; those beyond the last count for nothing.
      const auto vote = [&](int j, float (&u)[2][kSize]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          MakeVote<false, Q>(
              stage.poses + (j + i) * (Q * kSide << d.windows_log2()) + pose_at,
              stage.weights + (j + i) * d.outs * Q * kSide + weights_at,
              statistics.minus_center, u[i]);
        }
      };
      if (!equal) {
#pragma unroll 1
        for (int j = 0; any && j < kChunk; j += 2) {
          float u[2][kSize], z[2], dq[2];
          vote(j, u);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            statistics.Sum(u[i], &z[i], &dq[i]);
            const int k = k0 + j + i;
            if (in.prior != nullptr && parent_exists && k < d.children) {
              z[i] += in.prior[int64_t{k} * d.outs + seat.parent];
            }
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            logits[(j + i) * vote_step + vote_at] = z[i];
            if constexpr (kGradient) dqs[(j + i) * vote_step + vote_at] = dq[i];
          }
        }
        __syncthreads();
        if constexpr (kGradient) {
          if (sums && chunk > chunk0)
            SumRows<Q>(d, group, k0 - kChunk, rows, out.poses);
        }
        ShareChunk<kGradient>(in, d, group, k0, stage.facts, logits, dqs, out);
        if (!sums) continue;
        __syncthreads();
      }
#pragma unroll 1
      for (int j = 0; any && j < kChunk; j += 2) {
        float u[2][kSize], row_sums[2][2][4] = {};
        vote(j, u);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Facts facts = stage.facts[((j + i) << d.windows_log2()) + seat.window];
          // A vote of what is not there may be infinite.
          const bool exists = facts.scale != 0 && parent_exists;
          if constexpr (kGradient) {
            const float q = logits[(j + i) * vote_step + vote_at];
            const float dz = dqs[(j + i) * vote_step + vote_at];
            float gradient[kSize] = {};
            if (exists) {
              statistics.Differentiate(u[i], q, dz, gradient);
              sum += dz;
#pragma unroll
              for (int h = 0; kLogit > 0 && h < kSize; ++h) {
                first[h] += dz * u[i][h];
                second[h] += dz * u[i][h] * u[i][h];
              }
            }
            Contract<false>(gradient,
                            stage.weights + (j + i) * d.outs * Q * kSide + back_at,
                            row_sums[i]);
          } else if (exists) {
            const float q = equal ? facts.activation * facts.scale
                                  : logits[(j + i) * vote_step + vote_at];
            sum += q;
#pragma unroll
            for (int h = 0; h < kSize; ++h) {
              first[h] += q * u[i][h];
              if constexpr (kSecond) second[h] += q * (u[i][h] * u[i][h]);
            }
          }
        }
#pragma unroll
        for (int e = 0; kGradient && e < 16; ++e) {
          const int row = e / 2 % 4, q = 2 * t + e % 2;
          if (q < Q) {
            my_rows[(j + e / 8) * kEight * kSide * Q + RowAt<Q>(g, row, q)] =
                row_sums[e / 8][row / 2][row % 2 * 2 + e % 2];
          }
        }
      }
    }
    __syncthreads();
    if constexpr (kGradient) {
      if (sums) SumRows<Q>(d, group, (chunk1 - 1) * kChunk, rows, out.poses);
    }
    unit += chunk1 - chunk0;
    if (!sums) continue;
    const bool whole = chunk0 == 0 && chunk1 == d.chunks;
    const int64_t slot = int64_t{2} * blockIdx.x + (begin / d.chunks == group ? 0 : 1);
    float* const partial = out.partial + slot * kSums * kThreads + threadIdx.x;
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
      if (whole && mine) Finish(in, grad, out, parent, h, sum, firsts, seconds);
    }
  }
}

// Adds up the sums of each group that several blocks have. A block has four numbers of
// the parents of a group, from 4 blockIdx.y on.
__global__ void __launch_bounds__(kThreads)
    FinishKernel(Inputs in, Division d, Gradient grad, Results out) {
  const int group = blockIdx.x, h = blockIdx.y * 4;
  const int block0 = d.BlockOf(group * d.chunks);
  const int block1 = d.BlockOf((group + 1) * d.chunks - 1);
  const Seat seat(d);
  const int position = (group << d.windows_log2()) + seat.window;
  if (block0 == block1 || position >= d.positions || seat.parent >= d.outs) return;
  float sum = 0, first[4] = {}, second[4] = {};
  for (int block = block0; block <= block1; ++block) {
    const int64_t slot =
        int64_t{2} * block + (d.First(block) / d.chunks == group ? 0 : 1);
    const float* const partial = out.partial + slot * kSums * kThreads + threadIdx.x;
    sum += partial[0];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      first[e] += partial[(1 + h + e) * kThreads];
      second[e] += partial[(1 + kSize + h + e) * kThreads];
    }
  }
  Finish(in, grad, out, int64_t{position} * d.outs + seat.parent, h, sum, first,
         second);
}

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_PASS_CUH_
