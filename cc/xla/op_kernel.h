// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// tensorflow/compiler/tf2xla/xla_op_kernel.h, which names XLA's compiler and client
// without needing their definitions. Their headers take two thirds of the time to
// compile, so they are skipped: their guards are defined here. A TensorFlow with other
// guards would include them again.
#ifndef CAPSOPS_CC_XLA_OP_KERNEL_H_
#define CAPSOPS_CC_XLA_OP_KERNEL_H_

#define TENSORFLOW_COMPILER_TF2XLA_XLA_COMPILER_H_
#define XLA_CLIENT_CLIENT_H_
namespace tensorflow {
class XlaCompiler;
}  // namespace tensorflow
namespace xla {
class Client;
}  // namespace xla

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"

#endif  // CAPSOPS_CC_XLA_OP_KERNEL_H_
