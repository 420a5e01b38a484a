// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers cuda/studies/inq_conv.h as an op of the studies' library, and on a CPU the
// paper's serial program. Shapes are checked by InqConv's own rule, then by the scheme.
#include "cuda/studies/inq_conv.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/shapes/inq_conv.h"
#include "cc/studies/study.h"

namespace capsops::studies::inq_conv {
namespace {

using capsops::inq_conv::Convolution;

constexpr const char* kOp = "InqConvStudy";
constexpr const char* kSerial = "serial";

// InqConv's attributes, of which this op has strides and bits, and its own.
struct Attributes : capsops::inq_conv::Attributes {
  std::string kernel;
  int32_t powers = 0;
  const Scheme* scheme = nullptr;  // null for the serial program
};

template <typename Context>
absl::Status GetAttributes(Context* ctx, Attributes* attributes) {
  attributes->dilations = {1, 1};
  attributes->padding = "VALID";
  TF_RETURN_IF_ERROR(ctx->GetAttr("strides", &attributes->strides));
  TF_RETURN_IF_ERROR(ctx->GetAttr("bits", &attributes->bits));
  TF_RETURN_IF_ERROR(ctx->GetAttr("powers", &attributes->powers));
  TF_RETURN_IF_ERROR(ctx->GetAttr("kernel", &attributes->kernel));
  for (const Scheme* known :
       {&kOutputBasic, &kOutput3, &kOutput5, &kOutput6, &kOutputUnread, &kOutputUnused,
        &kInputBasic, &kInput1, &kInput2}) {
    if (attributes->kernel == known->name) attributes->scheme = known;
  }
  return absl::OkStatus();
}

// Returns why the kernel does not support a problem, or "" if it does.
std::string UnsupportedBy(const Attributes& attributes, const Problem& p) {
  if (attributes.scheme != nullptr) return attributes.scheme->unsupported(p);
  return p.batch == 1 ? "" : absl::StrCat("batch must be 1, got ", p.batch);
}

// Refuses a problem that the kernel does not support, once all dimensions are known.
absl::StatusOr<Convolution> Resolve(const Attributes& attributes,
                                    const PartialTensorShape& input,
                                    const PartialTensorShape& codes,
                                    const PartialTensorShape& top_exponent) {
  auto conv = capsops::inq_conv::Resolve(input, codes, top_exponent, attributes);
  if (!conv.ok()) return conv;
  ShapeRule rule(kOp);
  const int most = attributes.bits == 2 ? 1 : attributes.bits == 3 ? 2 : kMostPowers;
  rule.Require(attributes.powers >= 1 && attributes.powers <= most,
               absl::StrCat("powers must be from 1 to ", most, " with ",
                            attributes.bits, " bits, got ", attributes.powers));
  if (conv->input.IsFullyDefined() && codes.IsFullyDefined()) {
    const std::string reason = UnsupportedBy(attributes, conv->problem);
    rule.Require(reason.empty(),
                 absl::StrCat("kernel ", attributes.kernel, ": ", reason));
  }
  if (!rule.status().ok()) return rule.status();
  return conv;
}

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
    .SetShapeFn([](InferenceContext* ctx) -> absl::Status {
      Attributes attributes;
      TF_RETURN_IF_ERROR(GetAttributes(ctx, &attributes));
      const auto conv = Resolve(attributes, InputShape(ctx, 0), InputShape(ctx, 1),
                                InputShape(ctx, 2));
      if (!conv.ok()) return conv.status();
      const Problem& p = conv->problem;
      return SetOutputShape(ctx, 0,
                            {p.batch, p.out_channels, p.out_height, p.out_width});
    })
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

template <typename Exec>
class InqConvStudyOp : public OpKernel {
 public:
  explicit InqConvStudyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetAttributes(ctx, &attributes_));
    constexpr bool kOnCpu = std::is_same_v<Exec, CpuExec>;
    OP_REQUIRES(ctx, (attributes_.kernel == kSerial) == kOnCpu,
                absl::InvalidArgumentError(
                    absl::StrCat(kOp, ": kernel ", attributes_.kernel, " is not for a ",
                                 kOnCpu ? "CPU" : "GPU")));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& codes = ctx->input(1);
    const Tensor& top_exponent = ctx->input(2);
    const auto conv =
        Resolve(attributes_, input.shape(), codes.shape(), top_exponent.shape());
    OP_REQUIRES_OK(ctx, conv.status());
    const Problem& p = conv->problem;
    const int powers = attributes_.powers;
    const int64_t top = top_exponent.scalar<int32_t>()();
    OP_REQUIRES(
        ctx, top <= 127 && top - powers + 1 >= -126,
        absl::InvalidArgumentError(absl::StrCat(kOp, ": top_exponent must be from ",
                                                powers - 127, " to 127, got ", top)));
    const Scheme* const scheme = attributes_.scheme;
    Tensor* output;
    OP_REQUIRES_OK(
        ctx,
        AllocateOutput(ctx, 0, {p.batch, p.out_channels, p.out_height, p.out_width},
                       &output));
    if constexpr (std::is_same_v<Exec, CpuExec>) {
      ConvolveSerially(p, powers, Data<float>(input), Data<uint8_t>(codes), top,
                       Data<float>(output));
    } else {
      Exec exec;
      OP_REQUIRES_OK(ctx, MakeExec(ctx, &exec));
      Tensor workspace;
      OP_REQUIRES_OK(ctx, AllocateWorkspace(ctx, scheme->workspace(p), &workspace));
      OP_REQUIRES_OK(ctx, ToStatus(scheme->forward(
                              exec, p, powers, Data<float>(input), Data<uint8_t>(codes),
                              top, Data<float>(output), workspace.data())));
    }
  }

 private:
  Attributes attributes_;
};

REGISTER_KERNEL_BUILDER(
    Name(kOp).Device(tensorflow::DEVICE_CPU).HostMemory("top_exponent"),
    InqConvStudyOp<CpuExec>);
REGISTER_KERNEL_BUILDER(
    Name(kOp).Device(tensorflow::DEVICE_GPU).HostMemory("top_exponent"),
    InqConvStudyOp<GpuExec>);

}  // namespace
}  // namespace capsops::studies::inq_conv
