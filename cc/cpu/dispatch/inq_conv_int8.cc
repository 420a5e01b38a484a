// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the steps of InqConvInt8 and divides each among threads. Activations and weights
// become integers in the workspace. No sum crosses a task.
#include "cc/cpu/inq_conv_int8.h"

#include <algorithm>
#include <atomic>

#include "cc/cpu/dispatch/inq_codes.h"
#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"
#include "cc/launch/round.h"

namespace capsops::inq_conv_int8 {
namespace {

CAPSOPS_SELECTED_KERNELS

// Chooses the fastest product. Codes of 5 bits include the weight 2^7, which does not
// fit in a signed byte.
Product Choose(const Problem& p) {
  if (!UseVnni()) return Product::kMaddWords;
  return p.bits < 5 ? Product::kDotBytes : Product::kDotWords;
}

const char* KernelName(Product product) {
  return product == Product::kMaddWords ? CpuKernelName() : "x86-64-v4-vnni";
}

}  // namespace

template <typename T>
Int8Plan<CpuExec, T> PlanForward(const CpuExec&, const Problem& p) {
  const CpuKernels<T>& kernels = Selected<T>();
  const Product product = Choose(p);
  const Division d = kernels.divide(p, product);
  const int64_t input = Inputs(p), pixels = Pixels(p);
  const int64_t image_bytes = RoundUp(input, 64);
  auto plan = Int8Plan<CpuExec, T>::Make(
      image_bytes + d.packed,
      [=, &kernels](const CpuExec& exec, const T* input_data, const uint8_t* codes,
                    const float* scale, int32_t zero_point, const float* multipliers,
                    T* output, void* workspace) -> LaunchError {
        uint8_t* const image = static_cast<uint8_t*>(workspace);
        char* const packed = static_cast<char*>(workspace) + image_bytes;
        std::atomic<bool> fit = true;
        const int64_t panels = d.blocks * d.panels;
        // The cost assumes 4 weights per cycle.
        ForEach(exec, panels, d.panel / 8, [&](int64_t task) {
          if (!kernels.pack(p, d, product, task, codes, packed)) fit = false;
        });
        if (!fit)
          return BadCode(Forward::kName, inq_conv::CodesShape(p), p.bits, codes);
        if (pixels * p.out_channels == 0) return {};  // codes are checked even then
        exec.parallel_for(input, 1, [&](int64_t begin, int64_t end) {
          kernels.quantize(end - begin, input_data + begin, *scale, zero_point,
                           image + begin);
        });
        // The cost assumes 64 products per cycle.
        const int64_t tasks = d.row_blocks * d.panel_groups;
        const int64_t products = pixels * p.out_channels * Terms(p);
        return ForTasks(exec, Forward::kName, tasks,
                        std::max<int64_t>(products / 64 / tasks, 1), d.scratch,
                        [&](int64_t task, void* scratch) {
                          kernels.run(p, d, product, task, image, zero_point, packed,
                                      multipliers, output, scratch);
                        });
      });
  plan.kernel = KernelName(product);
  return plan;
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, Int8Plan, CpuExec)

}  // namespace capsops::inq_conv_int8
