// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolves bytes on int8 tensor cores. The kernels of a call:
// 1. PackKernel decodes the weights to bytes and transposes them. If the zero point is
//    not 0, AddWeightsKernel sums them per output channel.
// 2. QuantizeKernel quantizes the images of a round to bytes.
// 3. ProductKernel multiplies (int8_product.cuh). If there are too few tiles for the
//    GPU, several blocks share a tile's contraction (split-K).
// 4. AddSplitsKernel adds the partial sums of split-K.
// Steps 2 to 4 repeat in rounds of as many samples as fit in a limited workspace.
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/launch/inq_conv_int8.h"
#include "cuda/inq_conv/codes.cuh"
#include "cuda/inq_conv/int8_product.cuh"
#include "cuda/inq_conv/paths.h"

namespace capsops::inq_conv_int8::int8 {
namespace {

constexpr int kLeastChannels = kPieceBytes / 2;  // fewer would waste most of a piece
constexpr int64_t kFarthest = 1 << 30;           // limit of positions and sizes
// Limit of the quantized images of a round, unless one sample needs more. It keeps the
// workspace under 64 MiB with up to 20 MiB of packed weights.
constexpr int64_t kImageBytes = int64_t{32} << 20;
constexpr int kLeastSteps = 4;  // fewest steps per split, to fill the pipeline

// Quantizes 16 channels of a pixel per thread. Channels past the last one, and the
// piece before the image, are filled with the zero point, which represents 0.
template <typename S>
__global__ void QuantizeKernel(const S* from, const float* scale, int zero_point,
                               int channels, int pieces, uint4* to) {
  TriggerDependentLaunch();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= pieces) return;
  if (i == 0) {
    const uint32_t word = zero_point * 0x01010101u;
    to[0] = {word, word, word, word};
  }
  const int groups = (channels + kPieceBytes - 1) / kPieceBytes;
  const int pixel = static_cast<int>(i) / groups;
  const int channel = (static_cast<int>(i) - pixel * groups) * kPieceBytes;
  float values[kPieceBytes];
  LoadRow(from + int64_t{pixel} * channels + channel, channels - channel,
          channels % kPieceBytes == 0, values);
  const float unit = *scale, least = -zero_point, most = 255 - zero_point;
  Pack<uint8_t, kPieceBytes> bytes;
#pragma unroll
  for (int e = 0; e < kPieceBytes; ++e) {
    float x = rint(values[e] / unit);
    x = x > least ? x : least;  // also if x is NaN
    x = x < most ? x : most;
    bytes.at[e] = static_cast<uint8_t>(static_cast<int>(x) + zero_point);
  }
  to[1 + i] = *reinterpret_cast<const uint4*>(&bytes);
}

// Decodes kStepBytes weights of kColumns output channels per block, splits each into
// kOperands bytes, and transposes them through shared memory. Codes are
// [taps][channels][out_channels].
template <int kOperands>
__global__ void __launch_bounds__(kThreads)
    PackKernel(const Product p, const uint8_t* codes, int levels, int taps,
               int channels, int8_t* packed) {
  constexpr int kPitch = kStepBytes + 4;  // avoids bank conflicts between columns
  __shared__ __align__(4) int8_t tile[kOperands][kColumns][kPitch];
  const int step = blockIdx.x / p.column_tiles;
  const int first_column = (blockIdx.x - step * p.column_tiles) * kColumns;
#pragma unroll 4
  for (int i = threadIdx.x; i < kStepBytes * kColumns; i += kThreads) {
    const int byte = i / kColumns, column = i % kColumns;
    const int at = step * kStepBytes + byte, tap = at / p.channel_bytes;
    const int channel = at - tap * p.channel_bytes, o = first_column + column;
    int code = -1;
    if (tap < taps && channel < channels && o < p.out_channels) {
      code = codes[(int64_t{tap} * channels + channel) * p.out_channels + o] - 1;
    }
    const int level = code >> 1;
    const int magnitude = code >= 0 && level < levels ? 1 << (levels - 1 - level) : 0;
#pragma unroll
    for (int j = 0; j < kOperands; ++j) {
      const int part = magnitude >> j * kOperandBits & ((1 << kOperandBits) - 1);
      tile[j][column][byte] = static_cast<int8_t>(code % 2 == 0 ? part : -part);
    }
  }
  __syncthreads();
  const int column = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
#pragma unroll
  for (int j = 0; j < kOperands; ++j) {
    const auto* const words =
        reinterpret_cast<const int*>(&tile[j][column][piece * kPieceBytes]);
    const int4 four = {words[0], words[1], words[2], words[3]};
    const int64_t row = int64_t{j} * p.columns() + first_column + column;
    *reinterpret_cast<int4*>(packed + row * p.row_bytes() + step * int64_t{kStepBytes} +
                             piece * kPieceBytes) = four;
  }
}

// Sums the packed weights of one output channel per block of one warp. dp4a with ones
// adds four bytes.
template <int kOperands>
__global__ void __launch_bounds__(kLanes)
    AddWeightsKernel(const Product p, const int8_t* packed, int32_t* weight_sums) {
  constexpr int kOnes = 0x01010101;
  int sum = 0;
#pragma unroll
  for (int j = 0; j < kOperands; ++j) {
    const int64_t row = int64_t{j} * p.columns() + blockIdx.x;
    const auto* const words =
        reinterpret_cast<const int*>(packed + row * p.row_bytes());
    int part = 0;
    for (int64_t w = threadIdx.x; w < p.row_bytes() / 4; w += kLanes) {
      part = __dp4a(words[w], kOnes, part);
    }
    sum += part * (1 << j * kOperandBits);
  }
  sum = SumOfWarp(sum);
  if (threadIdx.x == 0) weight_sums[blockIdx.x] = sum;
}

// Adds the partial sums of split-K, and completes one output per thread.
template <typename S>
__global__ void AddSplitsKernel(const int32_t* partial, int splits,
                                const int32_t* weight_sums, int zero_point,
                                const float* multipliers, int channels, int64_t count,
                                S* output) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  GridDependencySynchronize();
  if (i >= count) return;
  int sum = 0;
#pragma unroll 4
  for (int split = 0; split < splits; ++split) sum += partial[split * count + i];
  const int channel = i % channels;
  const int weights = zero_point != 0 ? weight_sums[channel] : 0;
  Narrow(Complete(sum, zero_point, weights, multipliers[channel]), output + i);
}

// Number of bytes that a weight is split into. Weights of 5-bit codes go up to 2^7,
// which exceeds a signed byte.
int Operands(const Problem& p) { return p.bits > 4 ? 2 : 1; }

// The sizes of a round, and the offsets of buffers in the workspace.
struct Layout {
  Product product{};
  int operands, samples, splits;
  int64_t weight_sums = 0, packed, image, partial, size;

  Layout(const GpuDevice& device, const Problem& p) {
    const int64_t channel_bytes = RoundUp(p.in_channels, kPieceBytes);
    const int64_t sample = p.in_height * p.in_width * channel_bytes;
    const int64_t out_area = p.out_height * p.out_width;
    const int64_t most = std::clamp<int64_t>(
        std::min(kImageBytes / sample, kFarthest / out_area), 1, p.batch);
    samples = CeilDivide(p.batch, CeilDivide(p.batch, most));
    operands = Operands(p);

    Product& to = product;
    to.in_height = p.in_height, to.in_width = p.in_width;
    to.out_width = p.out_width, to.out_area = out_area;
    to.stride_height = p.stride_height, to.stride_width = p.stride_width;
    to.dilation_height = p.dilation_height, to.dilation_width = p.dilation_width;
    to.pad_top = p.pad_top, to.pad_left = p.pad_left;
    to.kernel_width = p.kernel_width;
    to.channel_bytes = channel_bytes;
    to.out_channels = p.out_channels;
    to.column_tiles = CeilDivide(p.out_channels, kColumns);
    to.steps = CeilDivide(p.kernel_height * p.kernel_width * channel_bytes, kStepBytes);
    const int64_t next_taps = kStepBytes / channel_bytes;
    to.next_row = next_taps / p.kernel_width;
    to.next_column = next_taps % p.kernel_width;
    to.next_channel = kStepBytes % channel_bytes;

    // Split-K, if one block per tile would leave multiprocessors idle.
    const int64_t pixels = samples * out_area;
    const int64_t blocks = CeilDivide(pixels, kRows) * to.column_tiles;
    const int64_t wanted = blocks < device.processors
                               ? std::min<int64_t>(kBlocks * device.processors / blocks,
                                                   to.steps / kLeastSteps)
                               : 1;
    to.split_steps = CeilDivide(to.steps, std::max<int64_t>(wanted, 1));
    splits = CeilDivide(to.steps, to.split_steps);

    packed = RoundUp(to.columns() * sizeof(int32_t), 64);
    image = packed + operands * to.columns() * to.row_bytes();
    partial = image + RoundUp(kPieceBytes + samples * sample, 64);
    const int64_t sums = splits > 1 ? splits * pixels * p.out_channels : 0;
    size = partial + RoundUp(sums * sizeof(int32_t), 64);
  }
};

// Returns why this path refuses the problem, or "".
std::string Refusal(const GpuDevice& device, const Problem& p) {
  if (device.capability < 80) return "it needs compute capability 8.0 or newer";
  if (p.in_channels < kLeastChannels) {
    return "it needs at least " + std::to_string(kLeastChannels) + " input channels";
  }
  if (kStages * StageBytes(Operands(p)) > device.shared) {
    return "a block has too little shared memory";
  }
  if (Inputs(p) == 0 || Pixels(p) == 0 || p.out_channels == 0) {
    return "a tensor is empty";
  }
  // A thread's piece may be up to two steps past the last tap.
  const int64_t past = 2 * kPieces;
  const int64_t channel_bytes = RoundUp(p.in_channels, kPieceBytes);
  for (const int64_t size :
       {p.in_height, p.in_width, p.in_channels, p.out_height, p.out_width,
        p.out_channels, p.pad_top, p.pad_left, p.kernel_height, p.kernel_width,
        (p.kernel_height + past) * p.dilation_height,
        (p.kernel_width + past) * p.dilation_width, p.out_height * p.stride_height,
        p.out_width * p.stride_width, p.out_height * p.out_width,
        p.in_height * p.in_width, p.kernel_height * p.kernel_width}) {
    if (size > kFarthest) return "a size is over 2^30";
  }
  for (const int64_t size : {p.in_height * p.in_width * channel_bytes,
                             p.kernel_height * p.kernel_width * channel_bytes}) {
    if (size > kFarthest) return "a sample or a filter is over 2^30 bytes";
  }
  return "";
}

template <typename S, int kOperands>
LaunchError Run(const GpuExec& exec, const Problem& p, const Layout& layout,
                const S* input, const uint8_t* codes, const float* scale,
                int32_t zero_point, const float* multipliers, S* output,
                void* workspace) {
  constexpr const char* kOp = Forward::kName;
  const Product& product = layout.product;
  char* const bytes = static_cast<char*>(workspace);
  int32_t* const weight_sums = reinterpret_cast<int32_t*>(bytes + layout.weight_sums);
  int8_t* const packed = reinterpret_cast<int8_t*>(bytes + layout.packed);
  uint8_t* const image = reinterpret_cast<uint8_t*>(bytes + layout.image);
  int32_t* const partial =
      layout.splits > 1 ? reinterpret_cast<int32_t*>(bytes + layout.partial) : nullptr;

  const int64_t packs = int64_t{product.steps} * product.column_tiles;
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(kOp, packs));
  CAPSOPS_RETURN_IF_ERROR(Launch(
      kOp, PackKernel<kOperands>, dim3(packs), kThreads, 0, exec, product, codes,
      1 << (p.bits - 2), p.kernel_height * p.kernel_width, p.in_channels, packed));
  if (zero_point != 0) {
    CAPSOPS_RETURN_IF_ERROR(Launch(kOp, AddWeightsKernel<kOperands>,
                                   dim3(product.columns()), kLanes, 0, exec, product,
                                   packed, weight_sums));
  }
  const int64_t in_area = p.in_height * p.in_width;
  for (int64_t sample = 0; sample < p.batch; sample += layout.samples) {
    const int64_t samples = std::min<int64_t>(layout.samples, p.batch - sample);
    const int64_t pieces = samples * in_area * product.channel_bytes / kPieceBytes;
    const int64_t pixels = samples * product.out_area;
    const int64_t written = pixels * p.out_channels;
    const int64_t tiles = CeilDivide(pixels, kRows) * product.column_tiles;
    S* const to = output + sample * product.out_area * p.out_channels;
    CAPSOPS_RETURN_IF_ERROR(ForEach(
        exec, kOp, pieces, QuantizeKernel<S>, input + sample * in_area * p.in_channels,
        scale, zero_point, p.in_channels, pieces, reinterpret_cast<uint4*>(image)));
    CAPSOPS_RETURN_IF_ERROR(CheckGrid(kOp, tiles));
    CAPSOPS_RETURN_IF_ERROR((LaunchDependent<ProductKernel<S, kOperands>>(
        kOp, dim3(tiles, layout.splits), kThreads, kStages * StageBytes(kOperands),
        exec, product, pixels, image, packed, weight_sums, zero_point, multipliers,
        partial, to)));
    if (partial == nullptr) continue;
    constexpr int kAddThreads = 256;
    CAPSOPS_RETURN_IF_ERROR(
        LaunchDependent(kOp, AddSplitsKernel<S>, dim3(CeilDivide(written, kAddThreads)),
                        kAddThreads, 0, exec, partial, layout.splits, weight_sums,
                        zero_point, multipliers, p.out_channels, written, to));
  }
  return {};
}

}  // namespace

template <typename T>
Int8Plan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = Int8Plan<GpuExec, T>;
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("it has no products of double");
  } else {
    using S = CudaType<T>;
    CAPSOPS_REFUSE_IF(Refusal(exec.device, p));
    const Layout layout(exec.device, p);
    const auto run = layout.operands == 1 ? Run<S, 1> : Run<S, 2>;
    return Plan::Make(layout.size,
                      [=](const GpuExec& exec, const T* input, const uint8_t* codes,
                          const float* scale, int32_t zero_point,
                          const float* multipliers, T* output, void* workspace) {
                        return run(exec, p, layout, Native(input), codes, scale,
                                   zero_point, multipliers, Native(output), workspace);
                      });
  }
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, Int8Plan, GpuExec)

}  // namespace capsops::inq_conv_int8::int8
