// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Maps each element type of the launchers to TensorFlow's DataType.
#ifndef CAPSOPS_CC_FRAMEWORK_TYPES_H_
#define CAPSOPS_CC_FRAMEWORK_TYPES_H_

#include "tensorflow/core/framework/types.h"

#include "cc/launch/exec.h"

namespace capsops {

template <typename T>
inline constexpr tensorflow::DataType kDataType = tensorflow::DataTypeToEnum<T>::value;
template <>
inline constexpr tensorflow::DataType kDataType<Float16> = tensorflow::DT_HALF;
template <>
inline constexpr tensorflow::DataType kDataType<BFloat16> = tensorflow::DT_BFLOAT16;

}  // namespace capsops

#endif  // CAPSOPS_CC_FRAMEWORK_TYPES_H_
