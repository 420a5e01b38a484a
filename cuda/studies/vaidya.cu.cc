// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launches of the kernels of vaidya.cuh.
#include "cuda/studies/vaidya.cuh"

#include <cstdint>
#include <string>

#include "cuda/studies/capsule_conv.h"
#include "cuda/studies/common.cuh"

namespace capsops::studies::capsule_conv {
namespace {

constexpr const char* kName = "CapsuleConvStudy";

int64_t SharedBytes(const Problem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels * kPose * sizeof(float);
}

// `geometry` describes the images to the kernel.
template <auto kKernel, typename Geometry>
LaunchError Launch(const GpuExec& exec, const Problem& p, const Geometry& geometry,
                   const float* input, const float* weights, float* output) {
  const int64_t elements = p.out_height * p.out_width * kPose;
  if (elements == 0) return {};
  const LaunchError error = Zero(exec, kName, output, elements);
  if (!error.empty() || p.in_channels == 0) return error;
  const int64_t shared = SharedBytes(p);
  const int64_t maximum = exec.device.shared;
  if (shared > maximum) {
    return std::string(kName) + ": the filter takes " + std::to_string(shared) +
           " bytes of shared memory, and this GPU has " + std::to_string(maximum);
  }
  CAPSOPS_RETURN_IF_ERROR(AllowMaxSharedMemory<kKernel>(exec, kName));
  const Filter filter{static_cast<int>(p.kernel_height),
                      static_cast<int>(p.kernel_width),
                      static_cast<int>(p.in_channels)};
  kKernel<<<p.out_height, p.out_width, shared, exec.stream>>>(
      filter, geometry, const_cast<float*>(input), const_cast<float*>(weights), output);
  return CheckLaunch(kName);
}

template <typename Product>
LaunchError Forward(const GpuExec& exec, const Problem& p, const float* input,
                    const float* weights, float* output, void*) {
  const int image_width = p.in_width;
  return Launch<RowKernel<Product>>(exec, p, image_width, input, weights, output);
}

// `order` names the axes from the outermost to the innermost: p is a pixel, c a
// channel, r and k are the row and the column of a pose.
Layout LayoutOf(const char* order, int64_t height, int64_t width, int64_t channels) {
  Layout layout{};
  int64_t distance = 1;
  for (int axis = 3; axis >= 0; axis--) {
    switch (order[axis]) {
      case 'p':
        layout.column = distance, layout.row = distance * width;
        distance *= height * width;
        break;
      case 'c':
        layout.channel = distance;
        distance *= channels;
        break;
      case 'r':
        layout.pose_row = distance;
        distance *= 4;
        break;
      case 'k':
        layout.pose_column = distance;
        distance *= 4;
        break;
    }
  }
  return layout;
}

template <const char* kOrder>
LaunchError ForwardIn(const GpuExec& exec, const Problem& p, const float* input,
                      const float* weights, float* output, void*) {
  const Layouts layouts{LayoutOf(kOrder, p.in_height, p.in_width, p.in_channels),
                        LayoutOf(kOrder, p.out_height, p.out_width, 1)};
  return Launch<LayoutKernel>(exec, p, layouts, input, weights, output);
}

std::string Unsupported(const Problem& p) {
  if (p.batch != 1) return Must("batch", 1, p.batch);
  if (p.out_channels != 1) return Must("out_channels", 1, p.out_channels);
  if (p.pose_depth != 1) return Must("pose_depth", 1, p.pose_depth);
  if (p.pose_rows != 4) return Must("pose_rows", 4, p.pose_rows);
  if (p.pose_inner != 4) return Must("pose_inner", 4, p.pose_inner);
  if (p.pose_columns != 4) return Must("pose_columns", 4, p.pose_columns);
  for (const int64_t step :
       {p.stride_height, p.stride_width, p.dilation_height, p.dilation_width}) {
    if (step != 1) return Must("strides and dilations", 1, step);
  }
  // Accepts empty images, whose output is empty whatever the kernel.
  if ((p.in_height > 0 && p.out_height != p.in_height - p.kernel_height + 1) ||
      (p.in_width > 0 && p.out_width != p.in_width - p.kernel_width + 1)) {
    return "padding must be VALID";
  }
  return MustBeAtMost("out_width", kMaxThreads, "a thread each", p.out_width);
}

int64_t NoWorkspace(const Problem&) { return 0; }

}  // namespace

#define CAPSOPS_SCHEME(NAME) \
  const Scheme kVaidya##NAME = {#NAME, Unsupported, NoWorkspace, Forward<NAME>}
CAPSOPS_SCHEME(B);
CAPSOPS_SCHEME(I1);
CAPSOPS_SCHEME(I2);
CAPSOPS_SCHEME(I3);
#undef CAPSOPS_SCHEME

namespace {
constexpr char kPcrk[] = "pcrk", kPrkc[] = "prkc", kCrkp[] = "crkp", kRpck[] = "rpck",
               kRckp[] = "rckp";
}  // namespace

#define CAPSOPS_LAYOUT(NAME, ORDER) \
  const Scheme kLayout##NAME = {ORDER, Unsupported, NoWorkspace, ForwardIn<k##NAME>}
CAPSOPS_LAYOUT(Pcrk, "layout_pcrk");
CAPSOPS_LAYOUT(Prkc, "layout_prkc");
CAPSOPS_LAYOUT(Crkp, "layout_crkp");
CAPSOPS_LAYOUT(Rpck, "layout_rpck");
CAPSOPS_LAYOUT(Rckp, "layout_rckp");
#undef CAPSOPS_LAYOUT

}  // namespace capsops::studies::capsule_conv
