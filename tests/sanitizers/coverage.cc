// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Only the library built by `make coverage` includes this file.

// Writes which lines ran, once per process. Part of GCC's runtime.
extern "C" void __gcov_dump();
// Tests call this because a process that is killed at its end writes nothing.
extern "C" __attribute__((visibility("default"))) void WriteCoverage() {
  __gcov_dump();
}
