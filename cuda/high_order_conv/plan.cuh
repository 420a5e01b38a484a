// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Functions shared by the planners of all kernel paths.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_PLAN_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_PLAN_CUH_

#include <cstdint>
#include <type_traits>

#include "cc/launch/high_order_conv.h"

namespace capsops::high_order_conv {

constexpr char kForwardName[] = "HighOrderConv";
constexpr char kBackwardName[] = "HighOrderConvGrad";

constexpr char kEmpty[] = "a dimension is 0";
constexpr char kTooLarge[] = "the image is too large";

inline bool Empty(const Problem& p) {
  return p.batch == 0 || p.height == 0 || p.width == 0 || p.channels == 0;
}

// Returns make(K) with a compile-time K for a K x K window.
template <typename Plan, typename T, typename Make>
Plan WithKernel(const Problem& p, const Make& make) {
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("T is float64");
  } else {
    switch (p.kernel_height == p.kernel_width ? p.kernel_height : 0) {
      case 3:
        return make(std::integral_constant<int, 3>{});
      case 5:
        return make(std::integral_constant<int, 5>{});
      case 7:
        return make(std::integral_constant<int, 7>{});
    }
    return Plan::Refuse("kernel_size is not 3x3, 5x5 or 7x7");
  }
}

// Returns make(channels) with a compile-time number of channels of a group that are
// computed at once: 1, 3 or kMany.
template <int kMany, typename Make>
auto WithChannels(int64_t of_group, const Make& make) {
  if (of_group == 1) return make(std::integral_constant<int, 1>{});
  if (of_group <= 3) return make(std::integral_constant<int, 3>{});
  return make(std::integral_constant<int, kMany>{});
}

}  // namespace capsops::high_order_conv

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_PLAN_CUH_
