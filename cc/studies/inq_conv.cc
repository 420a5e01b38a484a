// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers the schemes of cuda/studies/inq_conv.h, and on a CPU the paper's serial
// program, as an op of the studies' library. Shapes are checked by InqConv's own rule,
// then by the scheme.
#include "cuda/studies/inq_conv.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/shapes/inq_conv.h"
#include "cc/studies/study.h"

namespace capsops::studies::inq_conv {
namespace {

struct SchemeProblem : Problem {
  const Scheme* scheme = nullptr;  // null for the serial program
  int64_t powers = 0;
};

// The serial program: plain nested loops with the sum in memory.
void ConvolveSerially(const Problem& p, int powers, const float* input,
                      const uint8_t* codes, int32_t top_exponent, float* output) {
  const int64_t outer = p.kernel_height * p.kernel_width, channels = p.in_channels;
  std::vector<float> kernels(p.out_channels * outer * channels);
  for (int64_t n = 0; n < p.out_channels; ++n) {
    for (int64_t i = 0; i < outer * channels; ++i) {
      const Weight weight = WeightOf(codes[i * p.out_channels + n], powers);
      kernels[n * outer * channels + i] =
          weight.sign * std::ldexp(1.0f, top_exponent - weight.power);
    }
  }
  for (int64_t n = 0; n < p.out_channels; ++n) {
    for (int64_t y = 0; y < p.out_height; ++y) {
      for (int64_t x = 0; x < p.out_width; ++x) {
        const int64_t at = (n * p.out_height + y) * p.out_width + x;
        output[at] = 0;
        for (int64_t i = 0; i < p.kernel_height; ++i) {
          for (int64_t j = 0; j < p.kernel_width; ++j) {
            const int64_t row = y * p.stride_height + i,
                          column = x * p.stride_width + j;
            for (int64_t d = 0; d < channels; ++d) {
              output[at] +=
                  input[(row * p.in_width + column) * channels + d] *
                  kernels[(n * outer + i * p.kernel_width + j) * channels + d];
            }
          }
        }
      }
    }
  }
}

struct StudyOp : OpBase<SchemeProblem>, OpDefaults {
  static constexpr const char *kName = "InqConvStudy", *kOp = kName;

  // Reads strides and bits, fixes InqConv's other attributes, and reads its own.
  template <typename Context>
  absl::Status Read(Context* ctx) {
    attributes.dilations = {1, 1};
    attributes.padding = "VALID";
    TF_RETURN_IF_ERROR(ctx->GetAttr("strides", &attributes.strides));
    TF_RETURN_IF_ERROR(ctx->GetAttr("bits", &attributes.bits));
    TF_RETURN_IF_ERROR(ctx->GetAttr("powers", &powers));
    TF_RETURN_IF_ERROR(ctx->GetAttr("kernel", &kernel));
    for (const Scheme* known :
         {&kOutputBasic, &kOutput3, &kOutput5, &kOutput6, &kOutputUnread,
          &kOutputUnused, &kInputBasic, &kInput1, &kInput2}) {
      if (kernel == known->name) scheme = known;
    }
    return absl::OkStatus();
  }

  // Returns why the kernel does not support a problem, or "" if it does.
  std::string Unsupported(const capsops::inq_conv::Problem& p) const {
    if (scheme != nullptr) return scheme->unsupported(p);
    return p.batch == 1 ? "" : absl::StrCat("batch must be 1, got ", p.batch);
  }

  // Refuses a problem that the kernel does not support, once all dimensions are known.
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const {
    TF_ASSIGN_OR_RETURN(const auto p,
                        capsops::inq_conv::Resolve(inputs.shape(0), inputs.shape(1),
                                                   inputs.shape(2), attributes));
    ShapeRule rule(kName);
    const int most = attributes.bits == 2 ? 1 : attributes.bits == 3 ? 2 : kMostPowers;
    rule.Require(powers >= 1 && powers <= most,
                 absl::StrCat("powers must be from 1 to ", most, " with ",
                              attributes.bits, " bits, got ", powers));
    if (std::min({p.batch, p.in_height, p.in_width, p.in_channels}) >= 0 &&
        inputs.shape(1).IsFullyDefined()) {
      const std::string reason = Unsupported(p);
      rule.Require(reason.empty(), absl::StrCat("kernel ", kernel, ": ", reason));
    }
    if (!rule.status().ok()) return rule.status();
    TF_ASSIGN_OR_RETURN(const auto top_exponent, inputs.Value(2));
    return MakeCall(absl::OkStatus(), SchemeProblem{p, scheme, powers}, {0, 1},
                    {{p.batch, p.out_channels, p.out_height, p.out_width}},
                    {top_exponent});
  }

  template <typename T, typename Exec>
  static auto MakePlan(const Exec&, const Problem& p) {
    using Plan = capsops::inq_conv::InqPlan<Exec, T>;
    constexpr bool kOnCpu = std::is_same_v<Exec, CpuExec>;
    Plan plan;
    if ((p.scheme == nullptr) != kOnCpu) {
      plan.error = {absl::StrCat(kName, ": kernel ", kOnCpu ? p.scheme->name : "serial",
                                 " is not for a ", kOnCpu ? "CPU" : "GPU"),
                    Fault::kInvalidArgument};
      return plan;
    }
    return Plan::Make(
        kOnCpu ? 0 : p.scheme->workspace(p),
        [p](const Exec& exec, const T* input, const uint8_t* codes,
            int32_t top_exponent, T* output, void* workspace) -> LaunchError {
          const int powers = p.powers;
          if (top_exponent > 127 || top_exponent - int64_t{powers} + 1 < -126) {
            return {absl::StrCat(kName, ": top_exponent must be from ", powers - 127,
                                 " to 127, got ", top_exponent),
                    Fault::kInvalidArgument};
          }
          if constexpr (kOnCpu) {
            ConvolveSerially(p, powers, input, codes, top_exponent, output);
            return {};
          } else {
            return p.scheme->forward(exec, p, powers, input, codes, top_exponent,
                                     output, workspace);
          }
        });
  }

  std::string kernel;
  int32_t powers = 0;
  const Scheme* scheme = nullptr;
  capsops::inq_conv::Attributes attributes;
};

REGISTER_OP("InqConvStudy")
    .Input("input: float")
    .Input("codes: uint8")
    .Input("top_exponent: int32")
    .Output("output: float")
    .Attr(
        "kernel: {'serial', 'output_basic', 'output_3', 'output_5', 'output_6', "
        "'output_unread', 'output_unused', 'input_basic', 'input_1', 'input_2'}")
    .Attr("powers: int = 3")
    .Attr("bits: int = 4")
    .Attr("strides: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<StudyOp>)
    .Doc(R"doc(
InqConv with VALID padding as Khandwawala, "Weight Sharing on CNN", computes it.

input: One image, [1, in_height, in_width, in_channels].
codes: As InqConv's; of a kernel as high as wide, unless it is serial. A code past the powers reads as zero.
top_exponent: As InqConv's, if all powers of two are normal numbers.
output: Planes, [1, out_channels, out_height, out_width].
kernel: On a CPU serial. On a GPU output stationary, basic or version 3, 5 or 6, or input stationary, basic or version 1 or 2. output_unread and output_unused are output_basic without its multiplication: sums of pixels, with weights that are not read, or read and not used.
powers: How many powers of two weights have, the largest ones of the code book; 1 to 4.
bits: As InqConv's.
strides: As InqConv's.
)doc");

REGISTER_KERNEL_BUILDER(
    Name(StudyOp::kOp).Device(tensorflow::DEVICE_CPU).HostMemory("top_exponent"),
    PlannedOp<StudyOp, CpuExec, float>);
REGISTER_KERNEL_BUILDER(
    Name(StudyOp::kOp).Device(tensorflow::DEVICE_GPU).HostMemory("top_exponent"),
    PlannedOp<StudyOp, GpuExec, float>);

}  // namespace
}  // namespace capsops::studies::inq_conv
