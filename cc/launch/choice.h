// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How a user or a test steers planning on GPUs, and sees which kernels ran. Two
// environment variables give the settings that a process starts with:
//   TF_CAPSOPS_KERNEL=CapsuleConv=mma,CapsuleRouting=phases  forces kernels by name
//   TF_CAPSOPS_DEVICE=capability=86,shared=101376  plans as for another device
// The functions of the C interface replace them later; Python calls those through
// tf_capsops/kernels.py.
#ifndef CAPSOPS_CC_LAUNCH_CHOICE_H_
#define CAPSOPS_CC_LAUNCH_CHOICE_H_

#include <cstdint>
#include <string>

#include "cc/launch/exec.h"

namespace capsops {

// Sets `kernel` to the one that is forced for `op`, or to "". Fails where the setting
// cannot be read.
LaunchError ForcedKernel(const char* op, std::string* kernel);

// Replaces the properties in `device` that TF_CAPSOPS_DEVICE names. `pretended` says
// whether it names any.
LaunchError PretendDevice(GpuDevice* device, bool* pretended);

// The device that plans are for: the calling thread's, with what is pretended of it.
inline LaunchError DescribeDevice(GpuDevice* device) {
  bool pretended;
  const LaunchError error = QueryDevice(device);
  return error.empty() ? PretendDevice(device, &pretended) : error;
}

// Grows with every change of the settings: plans of an earlier number are stale.
uint64_t ChoiceGeneration();

// Whether the names of kernels that run are recorded.
bool RecordsKernels();
void RecordKernel(const std::string& op, const std::string& kernel, int64_t workspace);

}  // namespace capsops

#define CAPSOPS_EXPORT extern "C" __attribute__((used, visibility("default")))

// The C interface. An empty text removes a setting.
CAPSOPS_EXPORT void tf_capsops_force_kernels(const char* text);
CAPSOPS_EXPORT void tf_capsops_pretend_device(const char* text);
// Begins (1) or ends (0) recording, and forgets what was recorded before.
CAPSOPS_EXPORT void tf_capsops_record_kernels(int on);
// Lines "op kernel workspace", of each distinct call in order; valid until the next
// call of this function by the same thread.
CAPSOPS_EXPORT const char* tf_capsops_recorded_kernels();

#endif  // CAPSOPS_CC_LAUNCH_CHOICE_H_
