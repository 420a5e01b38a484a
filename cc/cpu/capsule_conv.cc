// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/cpu/capsule_conv.h"

#include "cc/cpu/capsule_conv_columns.h"
#include "cc/cpu/capsule_conv_image.h"
#include "cc/cpu/capsule_conv_outer.h"
#include "cc/cpu/capsule_conv_spread.h"
#include "cc/cpu/capsule_conv_weights.h"
#include "cc/cpu/convert.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

// Implements CpuKernels::bias_relu.
template <typename T>
void BiasRelu(int64_t pixels, int64_t pixel, const T* bias, T* image) {
  for (; pixels > 0; --pixels, image += pixel) {
    for (int64_t i = 0; i < pixel; ++i) {
      const Accumulator<T> sum = Widen(image[i]) + Widen(bias[i]);
      Narrow(sum < 0 ? Accumulator<T>{0} : sum, &image[i]);
    }
  }
}

template <typename T>
CpuKernels<T> Kernels() {
  return {{{DivideColumns<T, false>, PackColumns<T, false>, RunColumns<T, false>},
           {DivideColumns<T, true>, PackColumns<T, true>, RunColumns<T, true>},
           {DivideOuter<T>, RunOuter<T>, ReduceOuter<T>}},
          {DivideSpread<T>, PackSpread<T>, RunSpread<T>},
          {{DivideImage<T, false>, PackWeights<T, false>, RunImage<T, false>},
           {DivideImage<T, true>, PackWeights<T, true>, RunImage<T, true>},
           {DivideWeights<T>, RunWeights<T>, ReduceWeights<T>}},
          BiasRelu<T>};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
