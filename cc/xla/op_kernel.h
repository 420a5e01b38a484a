// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Includes tensorflow/compiler/tf2xla/xla_op_kernel.h without XLA's compiler and
// client, because it only needs their names. Their headers take two thirds of the
// compile time, so they are skipped by defining their include guards here. If a
// TensorFlow version renames the guards, the headers are merely included again.
#pragma once

#define TENSORFLOW_COMPILER_TF2XLA_XLA_COMPILER_H_
#define XLA_CLIENT_CLIENT_H_
namespace tensorflow {
class XlaCompiler;
}  // namespace tensorflow
namespace xla {
class Client;
}  // namespace xla

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
