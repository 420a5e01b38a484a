// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The three products that CapsuleConvRouting computes for a slab:
//   votes       the convolution of its channels with the weights
//   by_image    the gradient of its channels
//   by_weights  its contribution to the weight gradient
// CapsuleConv's plans compute them, but a device may have its own kernels for some.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing {

// A subset of these products.
struct Products {
  bool votes, by_image, by_weights;
};

// CapsuleConv's plans for the `wanted` products, one set for each slab shape. Errors
// begin with the op's name.
template <typename Exec, typename T>
class SlabConvs {
 public:
  SlabConvs(const char* op, const Products& wanted) : op_(op), wanted_(wanted) {}

  int64_t workspace() const { return workspace_; }

  LaunchError Plan(const Exec& exec, const capsule_conv::Problem& problem) {
    using namespace capsule_conv;  // NOLINT: its planners
    if (Search(problem) != nullptr) return {};
    LaunchError error;
    const auto kept = [&](const ConvPlan<Exec, T>& plan) {
      if (error.empty() && !plan.run) error = Named(plan.error);
      workspace_ = std::max(workspace_, plan.workspace);
      return plan;
    };
    Plans plans{problem, {}, {}, {}};
    if (wanted_.votes) plans.votes = kept(PlanForward<T>(exec, problem));
    if (wanted_.by_image) plans.by_image = kept(PlanBackpropInput<T>(exec, problem));
    if (wanted_.by_weights) {
      plans.by_weights = kept(PlanBackpropWeights<T>(exec, problem));
    }
    plans_.push_back(plans);
    return error;
  }

  LaunchError Votes(const Exec& exec, const capsule_conv::Problem& problem,
                    const T* image, const T* filter, T* votes, void* workspace) const {
    return Named(Search(problem)->votes.run(exec, image, filter, votes, workspace));
  }
  LaunchError ByImage(const Exec& exec, const capsule_conv::Problem& problem,
                      const T* grads, const T* filter, T* image,
                      void* workspace) const {
    return Named(Search(problem)->by_image.run(exec, grads, filter, image, workspace));
  }
  LaunchError ByWeights(const Exec& exec, const capsule_conv::Problem& problem,
                        const T* image, const T* grads, T* weights,
                        void* workspace) const {
    return Named(
        Search(problem)->by_weights.run(exec, image, grads, weights, workspace));
  }

 private:
  struct Plans {
    capsule_conv::Problem problem;
    capsule_conv::ConvPlan<Exec, T> votes, by_image, by_weights;
  };

  const Plans* Search(const capsule_conv::Problem& problem) const {
    for (const Plans& plans : plans_) {
      if (std::memcmp(&plans.problem, &problem, sizeof(problem)) == 0) return &plans;
    }
    return nullptr;
  }
  // Prefixes the error of a convolution with the name of this op.
  LaunchError Named(const LaunchError& error) const {
    if (error.empty()) return error;
    return {std::string(op_) + ": " + error.text(), error.fault()};
  }

  const char* op_;
  Products wanted_;
  std::vector<Plans> plans_;
  int64_t workspace_ = 0;
};

// The class Own of a device without product kernels. Other devices have a class with
// the same members, whose made() returns the products that their kernels compute.
struct NoProducts {
  template <typename Exec>
  NoProducts(const Exec&, const Problem&, bool) {}

  static constexpr Products made() { return {false, false, false}; }
  // Whether the calls of AddImage write every element of the input gradient, so that it
  // need not be zeroed.
  static constexpr bool StoresImage() { return false; }
  // Returns how many elements of scratch SumWeights and AddImage need.
  static int64_t Scratch(const Slab&) { return 0; }
  // Returns how many sums SumWeights keeps.
  static int64_t Sums(const Slab&) { return 0; }

  // Packs the weights of a phase for MakeVotes.
  static constexpr auto PackWeights = [](const auto&...) { return LaunchError(); };
  // Computes a slab's votes from the input and the packed weights.
  static constexpr auto MakeVotes = [](const auto&...) { return LaunchError(); };
  // Adds the slab's contribution to the input gradient, or stores it where
  // StoresImage().
  static constexpr auto AddImage = [](const auto&...) { return LaunchError(); };
  // Adds the slab's contribution to the sums of the weight gradient. The first slab of
  // a phase that contributes sets the sums instead.
  static constexpr auto SumWeights = [](const auto&...) { return LaunchError(); };
  // Stores the weight gradient of a phase, given its sums.
  static constexpr auto FinishWeights = [](const auto&...) { return LaunchError(); };
};

}  // namespace capsops::capsule_conv_routing
