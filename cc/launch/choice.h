// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Overrides the choice of kernels on GPUs, and records which kernels ran. Two
// environment variables give the initial settings of a process:
//   TF_CAPSOPS_KERNEL=CapsuleConv=mma,CapsuleRouting=phases  forces kernels by name
//   TF_CAPSOPS_DEVICE=capability=86,shared=101376  plans as for another device
// The functions of the C interface change them later; Python calls those through
// tf_capsops/kernels.py.
#pragma once

#include <cstdint>
#include <string>

#include "cc/launch/exec.h"

namespace capsops {

// Sets `kernel` to the one that is forced for `op`, or to "". Fails on bad settings.
LaunchError ForcedKernel(const char* op, std::string* kernel);

// Replaces the properties in `device` that TF_CAPSOPS_DEVICE names, if it is set.
LaunchError PretendDevice(GpuDevice* device, bool* pretended);

// Returns the device to plan for: the calling thread's current device, with the
// properties that TF_CAPSOPS_DEVICE overrides.
inline LaunchError DescribeDevice(GpuDevice* device) {
  bool pretended;
  const LaunchError error = QueryDevice(device);
  return error.empty() ? PretendDevice(device, &pretended) : error;
}

// Counts the changes of the settings. Plans of an earlier generation are stale.
uint64_t ChoiceGeneration();

// Record the kernels that run, and the candidates that were planned. `refusal` says why
// a candidate does not support the problem, and is empty if it does.
bool RecordsKernels();
void RecordKernel(const std::string& op, const std::string& kernel, int64_t workspace);
bool RecordsCandidates();
void RecordCandidate(const std::string& op, const std::string& kernel,
                     const std::string& refusal);

}  // namespace capsops

#define CAPSOPS_EXPORT extern "C" __attribute__((used, visibility("default")))

// The C interface. An empty string removes a setting.
CAPSOPS_EXPORT void tf_capsops_force_kernels(const char* text);
CAPSOPS_EXPORT void tf_capsops_pretend_device(const char* text);
// Clears the record, and sets what is recorded from now on:
//   0  nothing
//   1  the kernels that run
//   2  also the candidates of all plans
CAPSOPS_EXPORT void tf_capsops_record_kernels(int what);
// Returns the record in order: a line "op kernel workspace" for each distinct call, and
// a line "op kernel refusal" for each candidate, with tabs between the fields. The
// string is valid until the same thread calls this function again.
CAPSOPS_EXPORT const char* tf_capsops_recorded_kernels();
