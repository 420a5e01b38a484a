// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies the operands of a slab's convolution, adds the gradients of the copies, and
// adds partial sums. All operands are in global memory, and a thread handles packs of
// up to 16 bytes.
#include "cuda/capsule_conv_routing/slabs/copies.h"

#include <algorithm>
#include <cstdint>

#include "cuda/common/divisor.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kThreads = 256;

// Returns the number of blocks for `count` items. With many items, threads loop over
// several.
inline int Blocks(const GpuExec& exec, int64_t count) {
  return static_cast<int>(
      std::min(CeilDivide(count, kThreads), int64_t{16} * exec.device.processors));
}

// Calls visit(n) for each item n < count of this thread.
template <typename Visit>
__device__ void ForEach(int64_t count, const Visit& visit) {
  GridDependencySynchronize();
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count;
       n += threads) {
    visit(n);
  }
}

// Calls visit(weight, copied) for each pack of kPack elements, with its offsets in the
// weights and in the copy.
template <int kPack, typename Visit>
__device__ void ForWeights(const Relay& relay, const Visit& visit) {
  const int64_t packs = relay.matrix / kPack;
  ForEach(relay.matrices() * packs, [&](int64_t n) {
    const int64_t matrix = n / packs;
    visit(n * kPack + (relay.From(matrix) - matrix) * relay.matrix, n * kPack);
  });
}

// Copies the weights of a phase's taps.
template <typename S, int kPack>
__global__ void __launch_bounds__(kThreads)
    CopyWeightsKernel(const Relay relay, const S* weights, S* copy) {
  using P = Pack<S, kPack>;
  ForWeights<kPack>(relay, [&](int64_t weight, int64_t copied) {
    *reinterpret_cast<P*>(copy + copied) =
        *reinterpret_cast<const P*>(weights + weight);
  });
}

// Adds `copy`, the gradient of CopyWeightsKernel's copy, to `sums`, the gradient of
// weights.
template <typename S, int kPack, typename A>
__global__ void __launch_bounds__(kThreads)
    AddWeightsKernel(const Relay relay, const S* copy, A* sums) {
  ForWeights<kPack>(relay, [&](int64_t weight, int64_t copied) {
    const auto added = *reinterpret_cast<const Pack<S, kPack>*>(copy + copied);
    auto& pack = *reinterpret_cast<Pack<A, kPack>*>(sums + weight);
    Pack<A, kPack> numbers = pack;
#pragma unroll
    for (int e = 0; e < kPack; ++e) numbers.at[e] += Widen(added.at[e]);
    pack = numbers;
  });
}

// Converts sums to S.
template <typename S, typename A>
__global__ void __launch_bounds__(kThreads)
    NarrowKernel(int64_t count, const A* sums, S* to) {
  ForEach(count, [&](int64_t n) { capsops::Narrow(sums[n], to + n); });
}

// Copies the rows that a slab reads, a pack of kPack elements at a time. The frames
// that depth taps read become channels; frames outside of the image become zeros.
template <typename S, int kPack, typename Int>
__global__ void __launch_bounds__(kThreads)
    CopyImageKernel(const Patch patch, int64_t count, const S* input, S* copy) {
  using P = Pack<S, kPack>;
  ForEach(count, [&](int64_t n) {
    Digits<Int> digits(static_cast<Int>(n));
    const int64_t element = digits.Next(patch.pixel / kPack) * int64_t{kPack};
    const Int c = digits.Next(patch.channels), x = digits.Next(patch.width);
    const Int y = digits.Next(patch.rows);
    const Int frame = static_cast<Int>(patch.first) + digits.rest;
    const Int image = frame / static_cast<Int>(patch.per_image);
    const int64_t place = frame - image * static_cast<Int>(patch.per_image);
    const int64_t depth = place * patch.read_step + c * patch.read_tap + patch.read;
    P numbers{};
    if (depth >= 0 && depth < patch.depth) {
      const int64_t line = (image * patch.depth + depth) * patch.height + patch.row + y;
      numbers = *reinterpret_cast<const P*>(
          input + (line * patch.width + x) * patch.pixel + element);
    }
    *reinterpret_cast<P*>(copy + n * kPack) = numbers;
  });
}

// Adds `copy`, the gradient of CopyImageKernel's copy, to the input's gradient, a pack
// at a time, for the rows that the patch reads in the frames from `first` on. A thread
// adds up all channels of the copy that come from its pack.
template <typename S, int kPack, typename Int>
__global__ void __launch_bounds__(kThreads)
    AddImageKernel(const Patch patch, int64_t first, int64_t count, const S* copy,
                   S* grad_input) {
  using P = Pack<S, kPack>;
  using A = decltype(Widen(S()));
  const Int all_depth = patch.depth, read_step = patch.read_step;
  ForEach(count, [&](int64_t n) {
    Digits<Int> digits(static_cast<Int>(n));
    const int64_t element = digits.Next(patch.pixel / kPack) * int64_t{kPack};
    const Int x = digits.Next(patch.width), y = digits.Next(patch.rows);
    const Int frame = static_cast<Int>(first) + digits.rest;
    const Int image = frame / all_depth, depth = frame - image * all_depth;
    A sums[kPack] = {};
    bool any = false;
    for (Int c = 0; c < static_cast<Int>(patch.channels); ++c) {
      const Int place =
          depth - c * static_cast<Int>(patch.read_tap) - static_cast<Int>(patch.read);
      const Int in_image = place / read_step;
      if (place < 0 || in_image * read_step != place) continue;
      const int64_t from = image * patch.per_image + in_image - patch.first;
      if (in_image >= patch.per_image || from < 0 || from >= patch.frames) continue;
      any = true;
      const int64_t line = (from * patch.rows + y) * patch.width + x;
      const P added = *reinterpret_cast<const P*>(
          copy + (line * patch.channels + c) * patch.pixel + element);
#pragma unroll
      for (int e = 0; e < kPack; ++e) sums[e] += Widen(added.at[e]);
    }
    if (!any) return;
    const int64_t line = int64_t{frame} * patch.height + patch.row + y;
    P* const to = reinterpret_cast<P*>(
        grad_input + (line * patch.width + x) * patch.pixel + element);
    P numbers = *to;
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      capsops::Narrow(Widen(numbers.at[e]) + sums[e], &numbers.at[e]);
    }
    *to = numbers;
  });
}

constexpr int kPartColumns = 32, kPartRows = 32;

// A block adds up kPartColumns columns of the parts. Each warp adds every kPartRows-th
// part, then one thread per column adds the sums of the warps.
template <typename S, typename A>
__global__ void __launch_bounds__(kPartColumns* kPartRows)
    AddPartsKernel(int64_t count, int64_t first, int64_t second, const A* parts,
                   S* to_first, S* to_second) {
  __shared__ A sums[kPartRows][kPartColumns];
  const int column = threadIdx.x % kPartColumns, row = threadIdx.x / kPartColumns;
  const int64_t n = int64_t{blockIdx.x} * kPartColumns + column, size = first + second;
  A sum = 0;
  if (n < size) {
#pragma unroll 8
    for (int64_t part = row; part < count; part += kPartRows) {
      sum += parts[part * size + n];
    }
  }
  sums[row][column] = sum;
  __syncthreads();
  if (row > 0 || n >= size) return;
  for (int other = 1; other < kPartRows; ++other) sum += sums[other][column];
  capsops::Narrow(sum, n < first ? to_first + n : to_second + n - first);
}

// Calls launch(pack) with the number of elements to copy at once, if contiguous runs
// have `row` elements.
template <typename S, typename Launch>
LaunchError WithPack(int64_t row, const Launch& launch) {
  constexpr int kPack = 16 / sizeof(S);
  return WithConstant<1, kPack>(row % kPack == 0 ? kPack : 1, launch);
}

// Calls launch(zero) with a zero of the smallest integer type that can count the items
// of a patch and hold their coordinates.
template <typename Launch>
LaunchError WithInt(const Patch& patch, int64_t count, const Launch& launch) {
  const bool fits = std::max(count, patch.Reach()) <= INT32_MAX / 2;
  return fits ? launch(int32_t{}) : launch(int64_t{});
}

template <typename T>
LaunchError Copies<T>::CopyWeights(const GpuExec& exec, const char* op,
                                   const Relay& relay, const T* weights, T* copy) {
  using S = CudaType<T>;
  if (relay.elements() == 0) return {};
  return WithPack<S>(relay.matrix, [&](auto pack) {
    return LaunchDependent(op, CopyWeightsKernel<S, pack.value>,
                           Blocks(exec, relay.elements() / pack.value), kThreads, 0,
                           exec, relay, weights, copy);
  });
}

template <typename T>
LaunchError Copies<T>::AddWeights(const GpuExec& exec, const char* op,
                                  const Relay& relay, const T* copy,
                                  Accumulator<T>* sums) {
  using S = CudaType<T>;
  if (relay.elements() == 0) return {};
  return WithPack<S>(relay.matrix, [&](auto pack) {
    return LaunchDependent(op, AddWeightsKernel<S, pack.value, Accumulator<T>>,
                           Blocks(exec, relay.elements() / pack.value), kThreads, 0,
                           exec, relay, copy, sums);
  });
}

template <typename T>
LaunchError Copies<T>::Narrow(const GpuExec& exec, const char* op, int64_t count,
                              const Accumulator<T>* sums, T* to) {
  if (count == 0) return {};
  return LaunchDependent(op, NarrowKernel<CudaType<T>, Accumulator<T>>,
                         Blocks(exec, count), kThreads, 0, exec, count, sums, to);
}

template <typename T>
LaunchError Copies<T>::CopyImage(const GpuExec& exec, const char* op,
                                 const Patch& patch, const T* input, T* copy) {
  using S = CudaType<T>;
  return WithPack<S>(patch.pixel, [&](auto pack) -> LaunchError {
    const int64_t count = patch.elements() / pack.value;
    if (count == 0) return {};
    return WithInt(patch, count, [&](auto zero) {
      return LaunchDependent(op, CopyImageKernel<S, pack.value, decltype(zero)>,
                             Blocks(exec, count), kThreads, 0, exec, patch, count,
                             input, copy);
    });
  });
}

template <typename T>
LaunchError Copies<T>::AddImage(const GpuExec& exec, const char* op, const Patch& patch,
                                const T* copy, T* grad_input) {
  using S = CudaType<T>;
  const int64_t first = patch.begin_frame(), frames = patch.end_frame() - first;
  return WithPack<S>(patch.pixel, [&](auto pack) -> LaunchError {
    const int64_t count =
        frames * patch.rows * patch.width * (patch.pixel / pack.value);
    if (count <= 0 || patch.channels == 0) return {};
    return WithInt(patch, count, [&](auto zero) {
      return LaunchDependent(op, AddImageKernel<S, pack.value, decltype(zero)>,
                             Blocks(exec, count), kThreads, 0, exec, patch, first,
                             count, copy, grad_input);
    });
  });
}

template <typename T>
LaunchError Copies<T>::AddParts(const GpuExec& exec, const char* op, int64_t count,
                                int64_t first, int64_t second,
                                const Accumulator<T>* parts, T* to_first,
                                T* to_second) {
  const int64_t blocks = CeilDivide(first + second, kPartColumns);
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, blocks));
  return Launch(op, AddPartsKernel<CudaType<T>, Accumulator<T>>, dim3(blocks),
                kPartColumns * kPartRows, 0, exec, count, first, second, parts,
                to_first, to_second);
}

#define CAPSOPS_INSTANTIATE(T) template struct Copies<T>;
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
