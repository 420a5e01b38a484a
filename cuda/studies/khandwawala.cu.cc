// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The seven programs of Khandwawala, "Weight Sharing on CNN", and two that do not
// multiply. Each converts the codes to its form of the kernel matrix, in a few
// microseconds, and then convolves. docs/notebook/papers.md describes our reading.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/studies/common.cuh"
#include "cuda/studies/khandwawala_input.cuh"
#include "cuda/studies/khandwawala_output.cuh"

namespace capsops::studies::inq_conv {
namespace {

constexpr const char* kName = "InqConvStudy";
constexpr int64_t kShared = 48 << 10, kGrid = 65535;

template <int n>
using Constant = std::integral_constant<int, n>;

// One block per kernel. To sort, every weight counts those before it.
template <Form kForm>
__global__ void Prepare(Sizes s, int powers, const uint8_t* __restrict__ codes,
                        int* __restrict__ kernels, int* __restrict__ ends) {
  constexpr int kNumbers = NumbersOf(kForm);
  const int weights = s.size * s.size * s.channels;
  const auto weight_at = [&](int place) {
    return WeightOf(codes[int64_t{place} * s.out_channels + blockIdx.x], powers);
  };
  const auto rank = [&](Weight weight) {  // ascending powers, negative first
    if (weight.sign == 0) return 2 * powers;
    return 2 * (powers - 1 - weight.power) + (weight.sign > 0);
  };
  int* const own = kernels + int64_t{blockIdx.x} * weights * kNumbers;
  for (int place = threadIdx.x; place < weights; place += blockDim.x) {
    const Weight weight = weight_at(place);
    const int exponent = s.lowest + powers - 1 - weight.power;
    if constexpr (kNumbers == 1) {
      own[place] = __float_as_int(weight.sign * scalbnf(1, exponent));
    } else if constexpr (kForm == Form::kSorted) {
      int before = 0;
      for (int other = 0; other < weights; ++other) {
        const int difference = rank(weight_at(other)) - rank(weight);
        before += difference < 0 || (difference == 0 && other < place);
      }
      own[4 * before] = exponent;
      own[4 * before + 1] = place / s.channels / s.size;
      own[4 * before + 2] = place / s.channels % s.size;
      own[4 * before + 3] = place % s.channels;
    } else {
      own[2 * place] = exponent;
      own[2 * place + 1] = weight.sign;
    }
  }
  if (kForm == Form::kSorted && threadIdx.x < 2 * powers) {
    int end = 0;
    for (int place = 0; place < weights; ++place) {
      end += rank(weight_at(place)) <= static_cast<int>(threadIdx.x);
    }
    ends[int64_t{blockIdx.x} * 2 * powers + threadIdx.x] = end;
  }
}

int64_t Weights(const Problem& p) {  // per kernel
  return p.kernel_height * p.kernel_width * p.in_channels;
}

template <Form kForm>
int64_t Workspace(const Problem& p) {
  const int64_t ends = kForm == Form::kSorted ? 2 * kMostPowers : 0;
  return 4 * p.out_channels * (Weights(p) * NumbersOf(kForm) + ends);
}

// Checks the requirements of all programs; kernels may have at most `max_size` rows.
std::string Unsupported(const Problem& p, int64_t max_size) {
  if (p.batch != 1) return Must("batch", 1, p.batch);
  if (p.pad_top != 0 || p.pad_left != 0) return "padding must be VALID";
  if (p.dilation_height != 1 || p.dilation_width != 1) return "dilations must be 1";
  if (p.kernel_height != p.kernel_width) {
    return Must("kernel_width", "kernel_height, " + std::to_string(p.kernel_height),
                p.kernel_width);
  }
  if (p.kernel_height < 1) return Must("kernel_height", "at least 1", p.kernel_height);
  if (p.in_channels < 1) return Must("in_channels", "at least 1", p.in_channels);
  std::string reason = MustBeAtMost("kernel_height", max_size,
                                    "threads for a tile of the image", p.kernel_height);
  if (!reason.empty()) return reason;
  return MustBeAtMost("out_channels", kGrid, "a dimension of the grid", p.out_channels);
}

// Rows of the image's tile, for a kernel of `size` rows.
int64_t OutputTile(int64_t size) { return size <= 8 ? 16 : 32; }

template <Form kForm>
std::string OutputUnsupported(const Problem& p) {
  std::string reason = Unsupported(p, 16);
  if (!reason.empty()) return reason;
  const int64_t size = p.kernel_height, tile = OutputTile(size);
  reason = MustBeAtMost("in_channels",
                        kShared / (4 * (tile * tile + size * size * NumbersOf(kForm))),
                        "48 KB of shared memory", p.in_channels);
  if (!reason.empty()) return reason;
  return MustBeAtMost("in_height", kGrid * (tile - size + 1), "a dimension of the grid",
                      p.in_height);
}

// Rows of the image's tile that have an output.
int64_t InputTile(int64_t size, int64_t channels) {
  return channels * (8 + size - 1) * (8 + size - 1) <= kMaxThreads ? 8 : 4;
}

int64_t InputShared(Form form, int64_t size, int64_t channels) {
  const int64_t edge = InputTile(size, channels) + size - 1;
  const int64_t kernels =
      form == Form::kConstant ? 0 : channels * size * size * NumbersOf(form);
  return 4 * channels * (edge * edge + kernels);
}

template <Form kForm>
std::string InputUnsupported(const Problem& p) {
  std::string reason = Unsupported(p, 29);
  if (!reason.empty()) return reason;
  const int64_t size = p.kernel_height, edge = 4 + size - 1;
  reason = MustBeAtMost("in_channels", kMaxThreads / (edge * edge),
                        "a thread for each number of a tile", p.in_channels);
  if (!reason.empty()) return reason;
  reason = MustBeAtMost("shared memory", kShared, "48 KB",
                        InputShared(kForm, size, p.in_channels));
  if (!reason.empty()) return reason;
  if (kForm == Form::kConstant) {
    reason = MustBeAtMost("weights", kConstantWeights, "64 KB of constant memory",
                          p.out_channels * Weights(p));
    if (!reason.empty()) return reason;
  }
  return MustBeAtMost("in_height and in_width", kGrid * InputTile(size, p.in_channels),
                      "dimensions of the grid", std::max(p.in_height, p.in_width));
}

Sizes SizesOf(const Problem& p, int powers, int32_t top_exponent) {
  Sizes s{};
  s.in_height = p.in_height, s.in_width = p.in_width;
  s.out_height = p.out_height, s.out_width = p.out_width;
  s.stride_height = p.stride_height, s.stride_width = p.stride_width;
  s.out_channels = p.out_channels, s.size = p.kernel_height, s.channels = p.in_channels;
  s.lowest = top_exponent - powers + 1;
  s.lowest_weight = std::ldexp(1.0f, s.lowest);
  return s;
}

template <Form kForm, int kPowers, int kTile, int kSize, int kChannels>
void LaunchOutput(const GpuExec& exec, const Sizes& s, const float* image,
                  const int* kernels, const int* ends, float* output) {
  const int block = kTile - s.size + 1;
  const dim3 grid(CeilDivide(s.columns(), block), CeilDivide(s.rows(), block),
                  s.out_channels);
  const int shared =
      4 * s.channels * (kTile * kTile + s.size * s.size * NumbersOf(kForm));
  OutputStationary<kForm, kPowers, kTile, kSize, kChannels>
      <<<grid, dim3(block, block), shared, exec.stream>>>(s, image, kernels, ends,
                                                          output);
}

template <Form kForm, int kPowers, int kTile, int kSize, int kChannels>
void LaunchInput(const GpuExec& exec, const Sizes& s, const float* image,
                 const int* kernels, const int*, float* output) {
  const unsigned edge = kTile + s.size - 1;
  const dim3 grid(CeilDivide(s.out_channels, s.channels), CeilDivide(s.in_width, kTile),
                  CeilDivide(s.in_height, kTile));
  InputStationary<kForm, kPowers, kTile, kSize, kChannels>
      <<<grid, dim3(s.channels, edge, edge), InputShared(kForm, s.size, s.channels),
         exec.stream>>>(s, image, kernels, output);
}

// Calls `launch` with compile-time constants: `sums`, the number of sums per thread,
// the tile, and the size and channels that the benchmark times, else 0.
template <bool kIsOutput, typename Launch>
void WithConstants(const Sizes& s, int sums, const Launch& launch) {
  using None = Constant<0>;
  if (s.stride_height == 1 && s.stride_width == 1 && (sums == 3 || sums == 0)) {
    constexpr Constant<kIsOutput ? 16 : 8> tile;
    bool launched = false;
    const auto try_one = [&](auto size, auto channels) {
      if (s.size != size || s.channels != channels) return;
      launched = true;
      if (sums == 0) return launch(Constant<0>(), tile, size, channels);
      launch(Constant<3>(), tile, size, channels);
    };
    const auto try_all = [&](auto size, auto... channels) {
      (try_one(size, channels), ...);
    };
    try_all(Constant<3>(), Constant<1>(), Constant<2>(), Constant<3>(), Constant<4>(),
            Constant<5>(), Constant<6>());
    try_all(Constant<5>(), Constant<3>());
    try_all(Constant<7>(), Constant<3>());
    if (launched) return;
  }
  const auto with_tile = [&](auto tile) {
    WithConstant<0, 1, 2, 3, 4>(
        sums, [&](auto count) { launch(count, tile, None(), None()); });
  };
  if constexpr (kIsOutput) {
    WithConstant<16, 32>(OutputTile(s.size), with_tile);
  } else {
    WithConstant<4, 8>(InputTile(s.size, s.channels), with_tile);
  }
}

template <bool kIsOutput, Form kForm>
LaunchError Forward(const GpuExec& exec, const Problem& p, int powers,
                    const float* image, const uint8_t* codes, int32_t top_exponent,
                    float* output, void* workspace) {
  if (powers < 1 || powers > kMostPowers) {
    return std::string(kName) + ": no kernel for " + std::to_string(powers) + " powers";
  }
  if (p.out_height * p.out_width * p.out_channels == 0) return {};
  const Sizes s = SizesOf(p, powers, top_exponent);
  int* const kernels = static_cast<int*>(workspace);
  int* const ends = kernels + p.out_channels * Weights(p) * NumbersOf(kForm);
  Prepare<kForm>
      <<<s.out_channels, 256, 0, exec.stream>>>(s, powers, codes, kernels, ends);
  CAPSOPS_RETURN_IF_ERROR(CheckLaunch(kName));
  if constexpr (kForm == Form::kConstant) {
    CAPSOPS_RETURN_IF_ERROR(CheckLaunch(
        kName, cudaMemcpyToSymbolAsync(constant_weights, kernels, Workspace<kForm>(p),
                                       0, cudaMemcpyDeviceToDevice, exec.stream)));
  }
  WithConstants<kIsOutput>(s, SumsByWeight(kForm) ? powers : 0,
                           [&](auto sums, auto tile, auto size, auto channels) {
                             constexpr bool kHasSums = sums != 0;
                             if constexpr (kHasSums == SumsByWeight(kForm)) {
                               if constexpr (kIsOutput) {
                                 LaunchOutput<kForm, sums, tile, size, channels>(
                                     exec, s, image, kernels, ends, output);
                               } else {
                                 LaunchInput<kForm, sums, tile, size, channels>(
                                     exec, s, image, kernels, ends, output);
                               }
                             }
                           });
  return CheckLaunch(kName);
}

template <Form kForm>
constexpr Scheme Output(const char* name) {
  return {name, OutputUnsupported<kForm>, Workspace<kForm>, Forward<true, kForm>};
}

template <Form kForm>
constexpr Scheme Input(const char* name) {
  return {name, InputUnsupported<kForm>, Workspace<kForm>, Forward<false, kForm>};
}

}  // namespace

const Scheme kOutputBasic = Output<Form::kValues>("output_basic");
const Scheme kOutput3 = Output<Form::kPowerSign>("output_3");
const Scheme kOutput5 = Output<Form::kSorted>("output_5");
const Scheme kOutput6 = Output<Form::kPowerChain>("output_6");
const Scheme kOutputUnread = Output<Form::kUnread>("output_unread");
const Scheme kOutputUnused = Output<Form::kUnused>("output_unused");
const Scheme kInputBasic = Input<Form::kValues>("input_basic");
const Scheme kInput1 = Input<Form::kPowerSign>("input_1");
const Scheme kInput2 = Input<Form::kConstant>("input_2");

}  // namespace capsops::studies::inq_conv
