// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/launch/choice.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

namespace capsops {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Settings {
  std::mutex mutex;
  std::string kernels = Environment("TF_CAPSOPS_KERNEL");
  std::string device = Environment("TF_CAPSOPS_DEVICE");
  std::vector<std::string> recorded;
};

Settings& TheSettings() {
  static Settings* const settings = new Settings;
  return *settings;
}
std::atomic<uint64_t> generation = 1;
std::atomic<int> records = 0;

void Set(std::string Settings::* setting, const char* text) {
  Settings& settings = TheSettings();
  const std::lock_guard<std::mutex> lock(settings.mutex);
  settings.*setting = text == nullptr ? "" : text;
  ++generation;
}

std::string Get(std::string Settings::* setting) {
  Settings& settings = TheSettings();
  const std::lock_guard<std::mutex> lock(settings.mutex);
  return settings.*setting;
}

// Splits "a=1,b=2" into pairs. Returns false if the text has another form.
bool Split(const std::string& text, std::map<std::string, std::string>* pairs) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t equals = text.find('=', begin);
    if (equals == begin || equals >= end || equals + 1 == end) return false;
    (*pairs)[text.substr(begin, equals - begin)] =
        text.substr(equals + 1, end - equals - 1);
    begin = end + 1;
  }
  return true;
}

constexpr const char* kOps[] = {"CapsulePrediction",
                                "CapsulePredictionGrad",
                                "CapsuleRouting",
                                "CapsuleRoutingGrad",
                                "CapsuleRoutingCoefficients",
                                "CapsuleConv",
                                "CapsuleConvBiasRelu",
                                "CapsuleConvBackpropInput",
                                "CapsuleConvBackpropWeights",
                                "CapsuleConvRouting",
                                "CapsuleConvRoutingGrad",
                                "HighOrderConv",
                                "HighOrderConvGrad",
                                "InqConv",
                                "InqConvBackpropInput",
                                "InqConvInt8",
                                "InqDecode",
                                "InqCapsuleRouting",
                                "CapsuleMoments",
                                "CapsuleMomentsGrad",
                                "CapsuleMomentShares"};

LaunchError Unreadable(const char* op, const std::string& variable,
                       const std::string& text, const std::string& wanted) {
  return {
      std::string(op) + ": " + variable + " must be " + wanted + ", got '" + text + "'",
      Fault::kInvalidArgument};
}

void Record(const std::string& op, const std::string& kernel, const std::string& what) {
  const std::string line = op + "\t" + kernel + "\t" + what;
  Settings& settings = TheSettings();
  const std::lock_guard<std::mutex> lock(settings.mutex);
  std::vector<std::string>& all = settings.recorded;
  if (std::find(all.begin(), all.end(), line) == all.end()) all.push_back(line);
}

}  // namespace

LaunchError ForcedKernel(const char* op, std::string* kernel) {
  kernel->clear();
  const std::string text = Get(&Settings::kernels);
  if (text.empty()) return {};
  std::map<std::string, std::string> pairs;
  const bool known =
      Split(text, &pairs) && std::all_of(pairs.begin(), pairs.end(), [](auto& pair) {
        return std::find(std::begin(kOps), std::end(kOps), pair.first) !=
               std::end(kOps);
      });
  if (!known) {
    std::string ops;
    for (const char* name : kOps) ops += (ops.empty() ? "" : ", ") + std::string(name);
    return Unreadable(op, "TF_CAPSOPS_KERNEL", text,
                      "OP=KERNEL,... with OP one of " + ops);
  }
  *kernel = pairs[op];
  return {};
}

LaunchError PretendDevice(GpuDevice* device, bool* pretended) {
  const std::string text = Get(&Settings::device);
  *pretended = !text.empty();
  if (text.empty()) return {};
  std::map<std::string, std::string> pairs;
  bool read = Split(text, &pairs);
  for (const auto& [name, value] : pairs) {
    char* end;
    const long number = std::strtol(value.c_str(), &end, 10);
    int* const property = name == "processors"         ? &device->processors
                          : name == "shared"           ? &device->shared
                          : name == "processor_shared" ? &device->processor_shared
                          : name == "capability"       ? &device->capability
                                                       : nullptr;
    read = read && property != nullptr && *end == 0 && number > 0 && number < 1 << 30;
    if (read) *property = static_cast<int>(number);
  }
  if (read) return {};
  return Unreadable("tf_capsops", "TF_CAPSOPS_DEVICE", text,
                    "NAME=NUMBER,... with NAME one of processors, shared, "
                    "processor_shared, capability");
}

uint64_t ChoiceGeneration() { return generation; }

bool RecordsKernels() { return records > 0; }

void RecordKernel(const std::string& op, const std::string& kernel, int64_t workspace) {
  Record(op, kernel, std::to_string(workspace));
}

bool RecordsCandidates() { return records > 1; }

void RecordCandidate(const std::string& op, const std::string& kernel,
                     const std::string& refusal) {
  Record(op, kernel, refusal);
}

}  // namespace capsops

void tf_capsops_force_kernels(const char* text) {
  capsops::Set(&capsops::Settings::kernels, text);
}

void tf_capsops_pretend_device(const char* text) {
  capsops::Set(&capsops::Settings::device, text);
}

void tf_capsops_record_kernels(int what) {
  capsops::Settings& settings = capsops::TheSettings();
  const std::lock_guard<std::mutex> lock(settings.mutex);
  settings.recorded.clear();
  capsops::records = what;
  if (what > 1) ++capsops::generation;  // Cached plans become stale.
}

const char* tf_capsops_recorded_kernels() {
  static thread_local std::string lines;
  capsops::Settings& settings = capsops::TheSettings();
  const std::lock_guard<std::mutex> lock(settings.mutex);
  lines.clear();
  for (const std::string& line : settings.recorded) lines += line + "\n";
  return lines.c_str();
}
