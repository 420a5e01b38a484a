// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What was found out for a problem on a device, for the next time it is asked.
#ifndef CAPSOPS_CUDA_COMMON_MEMORY_CUH_
#define CAPSOPS_CUDA_COMMON_MEMORY_CUH_

#include <cstring>
#include <mutex>
#include <type_traits>

#include "cuda/common/launch.cuh"

namespace capsops {

// Keeps the last 256 results: those of a network with strides, whose convolutions have
// several. Threads may share it.
template <typename Key, typename Value>
class Memory {
  static_assert(std::has_unique_object_representations_v<Key>);

 public:
  // What is kept for `key` on the current device, else what `find` returns.
  template <typename Find>
  Value Recall(const Key& key, const Find& find) {
    const DeviceLimits device = CurrentDevice();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Entry& entry : entries_) {
        if (entry.device == device && std::memcmp(&entry.key, &key, sizeof(Key)) == 0) {
          return entry.value;
        }
      }
    }
    const Value value = find();
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_[next_++ % kEntries] = {device, key, value};
    return value;
  }

 private:
  static constexpr unsigned kEntries = 256;
  struct Entry {
    DeviceLimits device;
    Key key;
    Value value;
  };

  std::mutex mutex_;
  Entry entries_[kEntries];
  unsigned next_ = 0;
};

}  // namespace capsops

#endif  // CAPSOPS_CUDA_COMMON_MEMORY_CUH_
