// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Scratch memory of one task on one thread.
#ifndef CAPSOPS_CC_CPU_DISPATCH_SCRATCH_H_
#define CAPSOPS_CC_CPU_DISPATCH_SCRATCH_H_

#include <cstdint>
#include <new>

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

}  // namespace capsops

#endif  // CAPSOPS_CC_CPU_DISPATCH_SCRATCH_H_
