// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The products of CapsuleConvRouting's slabs: votes, and the gradients of channels and
// weights. Convolutions make them all; a device may have kernels of its own for some.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing {

// Which products are made.
struct Products {
  bool votes, by_image, by_weights;
};

// The plans of convolutions that make the `wanted` products, one for each shape of
// slabs. Errors begin with the op's name.
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
  // Puts the name of this op before that of its convolution.
  LaunchError Named(const LaunchError& error) const {
    if (error.empty()) return error;
    return {std::string(op_) + ": " + error.text(), error.fault()};
  }

  const char* op_;
  Products wanted_;
  std::vector<Plans> plans_;
  int64_t workspace_ = 0;
};

// A device's own kernels for products of slabs of a problem: none. Others have the same
// members.
struct NoProducts {
  template <typename Exec>
  NoProducts(const Exec&, const Problem&, bool) {}

  static constexpr Products made() { return {false, false, false}; }
  // Returns how many elements MakeVotes, SumWeights and AddImage work on.
  static int64_t Scratch(const Slab&) { return 0; }
  // Returns how many sums SumWeights keeps.
  static int64_t Sums(const Slab&) { return 0; }

  // Packs the weights of a phase for MakeVotes, which reads the input.
  template <typename... Arguments>
  LaunchError PackWeights(const Arguments&...) const {
    return {};
  }
  template <typename... Arguments>
  LaunchError MakeVotes(const Arguments&...) const {
    return {};
  }
  // Adds the slab's gradient of the input to it.
  template <typename... Arguments>
  LaunchError AddImage(const Arguments&...) const {
    return {};
  }
  // Adds the gradient of weights by this slab to the sums, or sets these if it is the
  // first one of its phase.
  template <typename... Arguments>
  LaunchError SumWeights(const Arguments&...) const {
    return {};
  }
  // Stores the gradient of a phase's weights.
  template <typename... Arguments>
  LaunchError FinishWeights(const Arguments&...) const {
    return {};
  }
};

}  // namespace capsops::capsule_conv_routing
