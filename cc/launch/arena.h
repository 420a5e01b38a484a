// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides a workspace into arrays.
#pragma once

#include <cstdint>

#include "cc/launch/round.h"

namespace capsops {

// Takes consecutive arrays from a workspace. With a null base, it only counts bytes.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* Take(int64_t count) {
    char* const at = base_ + bytes_;
    bytes_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), 64);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

}  // namespace capsops
