// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies the operands of a slab's convolution, adds the gradients of the copies, and
// adds partial sums.
#include "cuda/capsule_conv_routing/slabs/copies.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/common/divisor.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kThreads = 256;

// The number of blocks for `count` threads, each of which may handle several items.
inline int Blocks(const GpuExec& exec, int64_t count) {
  return static_cast<int>(
      std::min(CeilDivide(count, kThreads), int64_t{16} * exec.device.processors));
}

// Calls visit(n) for the n < count of this thread.
template <typename Visit>
__device__ void ForEach(int64_t count, const Visit& visit) {
  GridDependencySynchronize();
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  for (int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count;
       n += threads) {
    visit(n);
  }
}

// Calls visit(weight, copied) with the offsets of each pack of the copy. Packs have
// kPack elements of a matrix.
template <int kPack, typename Visit>
__device__ void ForWeights(const Relay& relay, const Visit& visit) {
  const int64_t packs = relay.matrix / kPack;
  ForEach(relay.matrices() * packs, [&](int64_t n) {
    const int64_t matrix = n / packs;
    visit(n * kPack + (relay.From(matrix) - matrix) * relay.matrix, n * kPack);
  });
}

template <typename S, int kPack>
__global__ void __launch_bounds__(kThreads)
    CopyWeightsKernel(const Relay relay, const S* weights, S* copy) {
  using P = Pack<S, kPack>;
  ForWeights<kPack>(relay, [&](int64_t weight, int64_t copied) {
    *reinterpret_cast<P*>(copy + copied) =
        *reinterpret_cast<const P*>(weights + weight);
  });
}

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

template <typename S, typename A>
__global__ void __launch_bounds__(kThreads)
    NarrowKernel(int64_t count, const A* sums, S* to) {
  ForEach(count, [&](int64_t n) { capsops::Narrow(sums[n], to + n); });
}

// Copies packs of kPack elements, of which a pixel of the copy has `packs`. Within a
// row, a thread copies the same pack of every pixel of its block.
template <typename S, int kPack>
__global__ void __launch_bounds__(kThreads)
    CopyImageKernel(const Patch patch, int64_t packs, const S* input, S* copy) {
  using P = Pack<S, kPack>;
  GridDependencySynchronize();
  for (int64_t row = blockIdx.x; row < patch.frames * patch.rows; row += gridDim.x) {
    const int64_t slice = row / patch.rows, y = row - slice * patch.rows;
    const int64_t frame = patch.first + slice, image = frame / patch.per_image;
    const int64_t place = frame - image * patch.per_image;
    for (int64_t n = int64_t{blockIdx.y} * kThreads + threadIdx.x; n < packs;
         n += int64_t{gridDim.y} * kThreads) {
      Digits<int64_t> digits(n);
      const int64_t element = digits.Next(patch.unit / kPack) * kPack;
      const int64_t c = digits.Next(patch.channels), tap = digits.Next(patch.x_taps);
      const int64_t depth = place * patch.read_step + c * patch.read_tap + patch.read;
      const bool inside = depth >= 0 && depth < patch.depth;
      const int64_t line = (image * patch.depth + depth) * patch.height + patch.row + y;
      const int64_t from =
          line * patch.width * patch.pixel + digits.rest * patch.unit + element;
      const int64_t left = tap * patch.x_dilation - patch.x_pad;
#pragma unroll 4
      for (int64_t x = blockIdx.z; x < patch.copy_width; x += gridDim.z) {
        const int64_t read = x * patch.x_stride + left;
        P numbers{};
        if (inside && read >= 0 && read < patch.width) {
          numbers = *reinterpret_cast<const P*>(input + from + read * patch.pixel);
        }
        *reinterpret_cast<P*>(copy + ((row * patch.copy_width + x) * packs + n) *
                                         kPack) = numbers;
      }
    }
  }
}

// Adds to packs of the input's gradient, of the rows that the patch reads in the frames
// from frame `first` on.
template <typename S, int kPack, typename Int>
__global__ void __launch_bounds__(kThreads)
    AddImageKernel(const Patch patch, int64_t first, int64_t count, const S* copy,
                   S* grad_input) {
  using P = Pack<S, kPack>;
  using A = decltype(Widen(S()));
  ForEach(count, [&](int64_t n) {
    Digits<Int> digits(static_cast<Int>(n));
    const int64_t element = digits.Next(patch.unit / kPack) * kPack;
    const int64_t group = digits.Next(patch.groups), x = digits.Next(patch.width);
    const int64_t y = digits.Next(patch.rows), frame = first + digits.rest;
    const int64_t image = frame / patch.depth, depth = frame - image * patch.depth;
    // Tap `first_tap` and every x_every-th reach this pixel, from pixel `last` on down.
    int64_t first_tap = 0, last = x + patch.x_pad;
    while (first_tap < patch.x_every && last % patch.x_stride != 0) {
      ++first_tap;
      last -= patch.x_dilation;
    }
    if (first_tap == patch.x_every) return;
    last /= patch.x_stride;
    A sums[kPack] = {};
    bool any = false;
    for (int64_t c = 0; c < patch.channels; ++c) {
      const int64_t place = depth - c * patch.read_tap - patch.read;
      if (place < 0 || place % patch.read_step != 0) continue;
      const int64_t in_image = place / patch.read_step;
      const int64_t from = image * patch.per_image + in_image - patch.first;
      if (in_image >= patch.per_image || from < 0 || from >= patch.frames) continue;
      int64_t to = last;
      for (int64_t tap = first_tap; tap < patch.x_taps;
           tap += patch.x_every, to -= patch.x_back) {
        if (to < 0 || to >= patch.copy_width) continue;
        any = true;
        const int64_t pixel = (from * patch.rows + y) * patch.copy_width + to;
        const int64_t channel =
            ((pixel * patch.groups + group) * patch.x_taps + tap) * patch.channels + c;
        const P added =
            *reinterpret_cast<const P*>(copy + channel * patch.unit + element);
#pragma unroll
        for (int e = 0; e < kPack; ++e) sums[e] += Widen(added.at[e]);
      }
    }
    if (!any) return;
    const int64_t line = frame * patch.height + patch.row + y;
    P* const to =
        reinterpret_cast<P*>(grad_input + (line * patch.width + x) * patch.pixel +
                             group * patch.unit + element);
    P numbers = *to;
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      capsops::Narrow(Widen(numbers.at[e]) + sums[e], &numbers.at[e]);
    }
    *to = numbers;
  });
}

constexpr int kPartColumns = 32, kPartRows = 32;

// A block adds kPartColumns columns of parts. Each warp adds every kPartRows-th part,
// then one thread per column adds the warps' sums.
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

// Calls launch(pack) with the number of elements of a row that are copied together.
template <typename S, typename Launch>
LaunchError WithPack(int64_t row, const Launch& launch) {
  constexpr int kPack = 16 / sizeof(S);
  if (row % kPack == 0) return launch(std::integral_constant<int, kPack>());
  return launch(std::integral_constant<int, 1>());
}

// Calls launch(zero) with the smallest integer type that holds `count`.
template <typename Launch>
LaunchError WithInt(int64_t count, const Launch& launch) {
  return count <= INT32_MAX ? launch(int32_t{}) : launch(int64_t{});
}

template <typename T>
LaunchError CopyWeights(const GpuExec& exec, const char* op, const Relay& relay,
                        const T* weights, T* copy) {
  using S = CudaType<T>;
  if (relay.elements() == 0) return {};
  return WithPack<S>(relay.matrix, [&](auto pack) {
    return LaunchDependent(op, CopyWeightsKernel<S, pack.value>,
                           Blocks(exec, relay.elements() / pack.value), kThreads, 0,
                           exec, relay, weights, copy);
  });
}

template <typename T>
LaunchError AddWeights(const GpuExec& exec, const char* op, const Relay& relay,
                       const T* copy, Accumulator<T>* sums) {
  using S = CudaType<T>;
  if (relay.elements() == 0) return {};
  return WithPack<S>(relay.matrix, [&](auto pack) {
    return LaunchDependent(op, AddWeightsKernel<S, pack.value, Accumulator<T>>,
                           Blocks(exec, relay.elements() / pack.value), kThreads, 0,
                           exec, relay, copy, sums);
  });
}

template <typename T>
LaunchError Narrow(const GpuExec& exec, const char* op, int64_t count,
                   const Accumulator<T>* sums, T* to) {
  if (count == 0) return {};
  return LaunchDependent(op, NarrowKernel<CudaType<T>, Accumulator<T>>,
                         Blocks(exec, count), kThreads, 0, exec, count, sums, to);
}

template <typename T>
LaunchError CopyImage(const GpuExec& exec, const char* op, const Patch& patch,
                      const T* input, T* copy) {
  using S = CudaType<T>;
  return WithPack<S>(patch.unit, [&](auto pack) -> LaunchError {
    const int64_t packs =
        patch.groups * patch.x_taps * patch.channels * (patch.unit / pack.value);
    const int64_t rows = patch.frames * patch.rows;
    if (rows == 0 || packs == 0 || patch.copy_width == 0) return {};
    // Sixteen blocks for each multiprocessor, if there is enough to copy.
    const int64_t all = int64_t{16} * exec.device.processors;
    const int64_t across = std::min(CeilDivide(packs, kThreads), all);
    const int64_t down = std::min(rows, all);
    const int64_t parts =
        std::clamp<int64_t>(all / (down * across), 1, patch.copy_width);
    return LaunchDependent(op, CopyImageKernel<S, pack.value>,
                           dim3(down, across, parts), kThreads, 0, exec, patch, packs,
                           input, copy);
  });
}

template <typename T>
LaunchError AddImage(const GpuExec& exec, const char* op, const Patch& patch,
                     const T* copy, T* grad_input) {
  using S = CudaType<T>;
  const int64_t first = patch.begin_frame(), frames = patch.end_frame() - first;
  return WithPack<S>(patch.unit, [&](auto pack) -> LaunchError {
    const int64_t count =
        frames * patch.rows * patch.width * (patch.pixel / pack.value);
    if (count <= 0 || patch.channels == 0) return {};
    return WithInt(count, [&](auto zero) {
      return LaunchDependent(op, AddImageKernel<S, pack.value, decltype(zero)>,
                             Blocks(exec, count), kThreads, 0, exec, patch, first,
                             count, copy, grad_input);
    });
  });
}

template <typename T>
LaunchError AddParts(const GpuExec& exec, const char* op, int64_t count, int64_t first,
                     int64_t second, const Accumulator<T>* parts, T* to_first,
                     T* to_second) {
  const int64_t blocks = CeilDivide(first + second, kPartColumns);
  LaunchError error = CheckGrid(op, blocks);
  if (!error.empty()) return error;
  return Launch(op, AddPartsKernel<CudaType<T>, Accumulator<T>>, dim3(blocks),
                kPartColumns * kPartRows, 0, exec, count, first, second, parts,
                to_first, to_second);
}

#define CAPSOPS_INSTANTIATE(T)                                                    \
  template LaunchError CopyWeights<T>(const GpuExec&, const char*, const Relay&,  \
                                      const T*, T*);                              \
  template LaunchError AddWeights<T>(const GpuExec&, const char*, const Relay&,   \
                                     const T*, Accumulator<T>*);                  \
  template LaunchError Narrow<T>(const GpuExec&, const char*, int64_t,            \
                                 const Accumulator<T>*, T*);                      \
  template LaunchError CopyImage<T>(const GpuExec&, const char*, const Patch&,    \
                                    const T*, T*);                                \
  template LaunchError AddImage<T>(const GpuExec&, const char*, const Patch&,     \
                                   const T*, T*);                                 \
  template LaunchError AddParts<T>(const GpuExec&, const char*, int64_t, int64_t, \
                                   int64_t, const Accumulator<T>*, T*, T*);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
