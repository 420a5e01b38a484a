// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the tasks of a CPU kernel in a pool of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <string>

#include "cc/launch/exec.h"

namespace capsops {

// Uninitialized memory aligned to a cache line, freed at the end of the scope. data()
// is null if there was not enough memory.
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      : data_(::operator new(static_cast<size_t>(bytes), std::align_val_t{64},
                             std::nothrow)) {}
  ~Scratch() { ::operator delete(data_, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
  void* data_;
};

// Calls run(n) for n < count. `cost` is the number of cycles of one call.
template <typename Run>
LaunchError ForEach(const CpuExec& exec, int64_t count, int64_t cost, const Run& run) {
  exec.parallel_for(count, std::max<int64_t>(cost, 1), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) run(n);
  });
  return {};
}

// Calls run(begin, end, scratch) on ranges of tasks. `cost` is the number of cycles of
// one task. Each call has its own scratch of `scratch_bytes` bytes.
template <typename Run>
LaunchError ForRanges(const CpuExec& exec, const char* op, int64_t count, int64_t cost,
                      int64_t scratch_bytes, const Run& run) {
  std::atomic<bool> out_of_memory = false;
  exec.parallel_for(count, cost, [&](int64_t begin, int64_t end) {
    const Scratch scratch(scratch_bytes);
    if (scratch.data() == nullptr) {
      out_of_memory = true;
    } else {
      run(begin, end, scratch.data());
    }
  });
  if (!out_of_memory) return {};
  return {std::string(op) + ": no memory for " + std::to_string(scratch_bytes) +
              " bytes of a thread's working space",
          Fault::kOutOfMemory};
}

// Calls run(task, scratch) for each task.
template <typename Run>
LaunchError ForTasks(const CpuExec& exec, const char* op, int64_t count, int64_t cost,
                     int64_t scratch_bytes, const Run& run) {
  return ForRanges(exec, op, count, cost, scratch_bytes,
                   [&](int64_t begin, int64_t end, void* scratch) {
                     for (int64_t task = begin; task < end; ++task) run(task, scratch);
                   });
}

}  // namespace capsops
