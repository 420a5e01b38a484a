// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <map>
#include <set>
#include <string>

namespace capsops {

// Returns the names of all CUDA kernels of the library, and whether each was launched.
std::map<std::string, bool> LaunchedKernels();

}  // namespace capsops
