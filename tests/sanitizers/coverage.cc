// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A function that only the library which counts lines has (`make coverage`).

// Writes down which lines ran, once in a process. It belongs to GCC's runtime.
extern "C" void __gcov_dump();
// For tests, because a process that is killed in the end writes nothing.
extern "C" __attribute__((visibility("default"))) void WriteCoverage() {
  __gcov_dump();
}
