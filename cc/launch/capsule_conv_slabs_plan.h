// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs CapsuleConvRouting and its gradient slab by slab: computes votes, then routes
// them. The gradient recomputes the votes. Sums over slabs are added in slab order.
//
// A device provides a struct `Steps` with its Exec, its own product kernels Own
// (capsule_conv_slabs_products.h), and static functions for an element type T, whose
// errors begin with the op's name:
//   SlabBytes        returns the most bytes of votes per slab, unless one row has more
//   Convolution      returns the convolution of a slab's votes: ConvOf or an equal one
//   Zero             zeros memory
//   CopyWeights      copies the weights of a phase (Relay)
//   AddWeights       adds the gradient of this copy to the weight gradient
//   Narrow           converts sums to T
//   CopyImage        copies the channels that a slab reads (Patch)
//   AddImage         adds the gradient of this copy to the input gradient
//   RouteMakesVotes  whether Route and RouteBackward compute the votes themselves
//   Space            returns how many sums Route or RouteBackward need as scratch
//   Route            routes votes
//   Parts            returns the size of all partial sums of bias and logits gradients
//   RouteBackward    replaces votes by their gradients, and adds to these partial sums
//   AddParts         adds up the partial sums
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "cc/launch/arena.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/capsule_conv_slabs_products.h"

namespace capsops::capsule_conv_routing {

// Plans and runs all slabs of a problem.
template <typename Steps, typename T>
class Slabs {
 public:
  using Exec = typename Steps::Exec;
  using A = Accumulator<T>;

  Slabs(const Exec& exec, const char* op, const Problem& p, bool gradient)
      : op_(op),
        p_(Shortened(p)),
        gradient_(gradient),
        own_(exec, p, gradient),
        convs_(op, Convolved()) {
    PlanSizes(exec);
  }

  const LaunchError& error() const { return error_; }
  int64_t workspace() const {
    Arena arena(nullptr);
    return Arrays(*this, arena).bytes;
  }

  LaunchError Forward(const Exec& exec, const T* input, const T* weights, const T* bias,
                      const T* logits, T* output, void* workspace) const {
    Arena arena(workspace);
    const Arrays a(*this, arena);
    return ForEachFilter(exec, weights, a, [&](const Slab& slab, const T* filter) {
      const LaunchError error = MakeVotes(exec, slab, input, filter, a);
      if (!error.empty()) return error;
      return Steps::Route(exec, op_, p_, Places(p_, slab), Image(slab, input, a),
                          filter, a.votes, bias, logits, output, a.space);
    });
  }

  LaunchError Backward(const Exec& exec, const T* grad, const T* input,
                       const T* weights, const T* bias, const T* logits, T* grad_input,
                       T* grad_weights, T* grad_bias, T* grad_logits,
                       void* workspace) const {
    Arena arena(workspace);
    const Arrays a(*this, arena);
    A* const sums = SumsApart() ? a.sums : reinterpret_cast<A*>(grad_weights);
    LaunchError error;
    const auto then = [&error](const auto& step) {
      if (error.empty()) error = step();
    };
    const auto zero = [&](void* data, int64_t bytes) {
      then([&] { return Steps::Zero(exec, op_, data, bytes); });
    };
    if (zeroes_input_) zero(grad_input, InputSize(p_) * sizeof(T));
    if (SumsApart()) {
      zero(a.sums, WeightsSize(p_) * sizeof(A));
    } else if (!writes_weights_) {
      zero(grad_weights, WeightsSize(p_) * sizeof(T));
    }
    zero(a.parts, parts_ * sizeof(A));
    bool begun = false;  // whether a slab of this phase has read anything
    const auto slab_gradients = [&](const Slab& slab, const T* filter) {
      begun = begun && !slab.IsFirstOfPhase();
      then([&] { return MakeVotes(exec, slab, input, filter, a); });
      then([&] {
        return Steps::RouteBackward(exec, op_, p_, Places(p_, slab),
                                    Image(slab, input, a), filter, grad, bias, logits,
                                    a.votes, a.parts, a.space);
      });
      if (slab.Reads(p_)) {
        then([&] {
          return ByWeights(exec, slab, !begun, input, grad_weights, sums, a);
        });
        then([&] { return ByImage(exec, slab, filter, grad_input, a); });
        begun = true;
      }
      if (own_.made().by_weights && begun && slab.IsLastOfPhase(p_)) {
        then([&] {
          return own_.FinishWeights(exec, op_, slab, a.weight_sums, grad_weights);
        });
      }
      return error;
    };
    then([&] { return ForEachFilter(exec, weights, a, slab_gradients); });
    if (SumsApart()) {
      then([&] {
        return Steps::Narrow(exec, op_, WeightsSize(p_), sums, grad_weights);
      });
    }
    then([&] {
      return Steps::AddParts(exec, op_, p_, a.parts, grad_bias, grad_logits);
    });
    return error;
  }

 private:
  // The arrays of the workspace. Unused arrays are empty.
  struct Arrays {
    T *weights, *packed, *image, *votes, *weights_part;
    A *weight_sums, *sums, *parts, *space;
    char* conv;
    int64_t bytes;

    Arrays(const Slabs& s, Arena& arena) {
      const auto take = [&](bool used, auto element, int64_t count) {
        return arena.template Take<decltype(element)>(used ? count : 0);
      };
      const bool adds = s.gradient_ && !s.writes_weights_;
      const bool by_weights = s.own_.made().by_weights;
      weights = take(s.relays_, T(), s.most_weights_);
      packed = take(s.own_.made().votes, T(), s.most_weights_);
      // Reused for a copy of the slab's channels, then for their gradient, and as the
      // scratch of the device's own product kernels.
      image = take(true, T(), s.ImageSize());
      votes = take(true, T(), s.most_votes_);
      weights_part = take(adds && !by_weights, T(), s.most_weights_);
      weight_sums = take(by_weights, A(), s.most_weight_sums_);
      sums = take(s.gradient_ && s.SumsApart(), A(), WeightsSize(s.p_));
      parts = take(s.gradient_, A(), s.parts_);
      space = take(true, A(), s.space_);
      conv = take(true, char(), s.convs_.workspace());
      bytes = arena.bytes();
    }
  };

  // Returns the products that CapsuleConv's plans compute, not Own or Route.
  Products Convolved() const {
    const Products own = own_.made();
    const bool votes = !own.votes && !Steps::RouteMakesVotes(p_);
    return {votes, gradient_ && !own.by_image, gradient_ && !own.by_weights};
  }

  int64_t ImageSize() const {
    const bool image = copies_ || (gradient_ && !writes_input_);
    return std::max(image ? most_image_ : 0, most_scratch_);
  }
  // Returns the bytes of the arrays that shrink with the slabs.
  int64_t SlabBytes() const { return (most_votes_ + ImageSize()) * sizeof(T); }

  // Whether the weight gradient is summed in a separate array of type A.
  bool SumsApart() const {
    return !writes_weights_ && !own_.made().by_weights && !std::is_same_v<T, A>;
  }

  // Whether an operand at this offset has the alignment that plans require.
  static bool IsAligned(int64_t offset) { return offset * sizeof(T) % 16 == 0; }
  // Whether the slab's channels are a contiguous, aligned part of the input.
  bool IsPart(const Slab& slab) const {
    return ReadsFrames(p_, slab.phase.depth) && IsAligned(InputOffset(p_, slab));
  }
  bool Copies(const Slab& slab) const {
    const Products convolved = Convolved();
    return (convolved.votes || convolved.by_weights) && !IsPart(slab);
  }
  bool Relays(const Relay& relay) const {
    if (!gradient_ && own_.made().votes) return false;
    return !relay.IsPart(p_) || !IsAligned(relay.From(0) * relay.matrix);
  }

  // Halves the slabs until the workspace fits in kMostBytes, the arrays that shrink
  // with the slabs fit in kFewBytes, or slabs cannot get smaller.
  void PlanSizes(const Exec& exec) {
    constexpr int64_t kMostBytes = int64_t{64} << 20, kFewBytes = 2 << 20;
    for (slab_bytes_ = Steps::SlabBytes(exec);; slab_bytes_ /= 2) {
      const bool smallest = PlanConvs(exec);
      if (!error_.empty() || smallest || workspace() <= kMostBytes ||
          SlabBytes() <= kFewBytes) {
        return;
      }
    }
  }

  // Decides what is copied, and plans the convolutions for every slab shape. Returns
  // whether slabs cannot get smaller.
  bool PlanConvs(const Exec& exec) {
    convs_ = SlabConvs<Exec, T>(op_, Convolved());
    most_votes_ = most_image_ = most_scratch_ = most_weights_ = most_weight_sums_ = 0;
    copies_ = relays_ = false;
    bool smallest = true, whole = !p_.transposed, parts = true, all_weights = true;
    int64_t slabs = 0;
    error_ = ForEachSlab(p_, sizeof(T), slab_bytes_, [&](const Slab& slab) {
      const Relay relay(p_, slab.phase);
      ++slabs;
      smallest = smallest && slab.frames == 1 && slab.band.rows == 1;
      most_votes_ = std::max(most_votes_, slab.Votes(p_));
      whole = whole && slab.Reads(p_) && slab.band.rows == p_.out_height;
      if (!slab.Reads(p_)) return LaunchError();
      copies_ = copies_ || Copies(slab);
      parts = parts && IsPart(slab);
      relays_ = relays_ || Relays(relay);
      all_weights = all_weights && relay.elements() == WeightsSize(p_);
      const bool adds_copy = gradient_ && !own_.made().by_image;
      most_image_ = std::max({most_image_, Copies(slab) ? slab.Image(p_) : 0,
                              adds_copy ? Patch(p_, slab).elements() : 0});
      most_scratch_ = std::max(most_scratch_, own_.Scratch(slab));
      most_weights_ = std::max(most_weights_, relay.elements());
      most_weight_sums_ = std::max(most_weight_sums_, own_.Sums(slab));
      return convs_.Plan(exec, Steps::Convolution(p_, slab));
    });
    const Products own = own_.made();
    writes_input_ = parts && !own.by_image && whole;
    zeroes_input_ = !writes_input_ && !own_.StoresImage();
    writes_weights_ = !relays_ && !own.by_weights && whole && all_weights && slabs == 1;
    space_ = Steps::Space(exec, p_, gradient_);
    parts_ = gradient_ ? Steps::Parts(exec, p_) : 0;
    return smallest;
  }

  // Calls visit(slab, filter) for each slab. Copies and packs weights once per phase.
  // Forward, the device's own kernel needs only the packed ones.
  template <typename Visit>
  LaunchError ForEachFilter(const Exec& exec, const T* weights, const Arrays& a,
                            const Visit& visit) const {
    bool ready = false;  // whether this phase's weights are copied and packed
    return ForEachSlab(p_, sizeof(T), slab_bytes_, [&](const Slab& slab) {
      const Relay relay(p_, slab.phase);
      ready = ready && !slab.IsFirstOfPhase();
      if (!slab.Reads(p_)) return visit(slab, weights);
      const bool relays = Relays(relay);
      const T* const filter =
          relays ? a.weights : weights + relay.From(0) * relay.matrix;
      LaunchError error;
      if (!ready && relays) {
        error = Steps::CopyWeights(exec, op_, relay, weights, a.weights);
      }
      if (!ready && own_.made().votes && error.empty()) {
        error = own_.PackWeights(exec, op_, slab, weights, a.packed);
      }
      ready = true;
      return error.empty() ? visit(slab, filter) : error;
    });
  }

  // Returns the channels that a slab's convolution reads: the copy, or the input.
  const T* Image(const Slab& slab, const T* input, const Arrays& a) const {
    return Copies(slab) ? a.image : input + InputOffset(p_, slab);
  }
  LaunchError CopyImage(const Exec& exec, const Slab& slab, const T* input,
                        const Arrays& a) const {
    if (!Copies(slab)) return {};
    return Steps::CopyImage(exec, op_, Patch(p_, slab), input, a.image);
  }

  LaunchError MakeVotes(const Exec& exec, const Slab& slab, const T* input,
                        const T* filter, const Arrays& a) const {
    if (!slab.Reads(p_)) {
      return Steps::Zero(exec, op_, a.votes, slab.Votes(p_) * sizeof(T));
    }
    if (own_.made().votes) {
      return own_.MakeVotes(exec, op_, slab, input, a.packed, a.votes);
    }
    const LaunchError error = CopyImage(exec, slab, input, a);
    if (!error.empty() || Steps::RouteMakesVotes(p_)) return error;
    return convs_.Votes(exec, Steps::Convolution(p_, slab), Image(slab, input, a),
                        filter, a.votes, a.conv);
  }

  // Adds the slab's weight gradient to `sums`, or stores it if there is a single slab.
  // If the device's own kernel computed the votes, the channels are not copied yet.
  LaunchError ByWeights(const Exec& exec, const Slab& slab, bool first, const T* input,
                        T* grad_weights, A* sums, const Arrays& a) const {
    if (own_.made().by_weights) {
      return own_.SumWeights(exec, op_, slab, first, input, a.votes, a.image,
                             a.weight_sums);
    }
    LaunchError error;
    if (own_.made().votes) error = CopyImage(exec, slab, input, a);
    if (!error.empty()) return error;
    T* const to = writes_weights_ ? grad_weights : a.weights_part;
    error = convs_.ByWeights(exec, Steps::Convolution(p_, slab), Image(slab, input, a),
                             a.votes, to, a.conv);
    if (!error.empty() || writes_weights_) return error;
    return Steps::AddWeights(exec, op_, Relay(p_, slab.phase), to, sums);
  }

  LaunchError ByImage(const Exec& exec, const Slab& slab, const T* filter,
                      T* grad_input, const Arrays& a) const {
    if (own_.made().by_image) {
      return own_.AddImage(exec, op_, slab, a.votes, filter, a.image, grad_input);
    }
    T* const to = writes_input_ ? grad_input + InputOffset(p_, slab) : a.image;
    const LaunchError error =
        convs_.ByImage(exec, Steps::Convolution(p_, slab), a.votes, filter, to, a.conv);
    if (!error.empty() || writes_input_) return error;
    return Steps::AddImage(exec, op_, Patch(p_, slab), to, grad_input);
  }

  const char* op_;
  Problem p_;
  bool gradient_;
  typename Steps::Own own_;
  SlabConvs<Exec, T> convs_;
  int64_t slab_bytes_;
  LaunchError error_;
  // Whether any slab copies channels, or any phase weights, whether slabs store their
  // gradients directly in the results instead of adding them, and whether the input's
  // needs zeros.
  bool copies_, relays_, writes_input_, writes_weights_, zeroes_input_;
  int64_t most_votes_, most_image_, most_scratch_, most_weights_, most_weight_sums_;
  int64_t space_, parts_;
};

// Returns a plan that calls `run`, or the error of `slabs`.
template <typename Plan, typename Slabs, typename Run>
Plan PlanSlabs(const Slabs& slabs, const Run& run) {
  if (slabs.error().empty()) return Plan::Make(slabs.workspace(), run);
  Plan plan;
  plan.error = slabs.error();
  return plan;
}

// Plan both directions of any problem. An empty output needs no routing.
template <typename Steps, typename T>
ForwardPlan<typename Steps::Exec, T> PlanForwardBySlabs(
    const typename Steps::Exec& exec, const Problem& p) {
  using Exec = typename Steps::Exec;
  using Plan = ForwardPlan<Exec, T>;
  if (IsEmpty(p)) {
    return Plan::Make(0, [](auto...) { return LaunchError(); });
  }
  const auto slabs =
      std::make_shared<const Slabs<Steps, T>>(exec, Forward::kName, p, false);
  return PlanSlabs<Plan>(
      *slabs, [slabs](auto... arguments) { return slabs->Forward(arguments...); });
}

template <typename Steps, typename T>
BackwardPlan<typename Steps::Exec, T> PlanBackwardBySlabs(
    const typename Steps::Exec& exec, const Problem& p) {
  using Exec = typename Steps::Exec;
  using Plan = BackwardPlan<Exec, T>;
  if (IsEmpty(p)) {
    return Plan::Make(
        0, [p](const Exec& exec, const T*, const T*, const T*, const T*, const T*,
               T* grad_input, T* grad_weights, T* grad_bias, T* grad_logits, void*) {
          LaunchError error;
          const auto zero = [&](T* data, int64_t count) {
            if (!error.empty() || count == 0) return;
            error = Steps::Zero(exec, Backward::kName, data, count * sizeof(T));
          };
          zero(grad_input, InputSize(p));
          zero(grad_weights, WeightsSize(p));
          zero(grad_bias, Columns(p));
          zero(grad_logits, p.types * p.parents);
          return error;
        });
  }
  const auto slabs =
      std::make_shared<const Slabs<Steps, T>>(exec, Backward::kName, p, true);
  return PlanSlabs<Plan>(
      *slabs, [slabs](auto... arguments) { return slabs->Backward(arguments...); });
}

}  // namespace capsops::capsule_conv_routing
