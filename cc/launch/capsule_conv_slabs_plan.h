// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs CapsuleConvRouting and its gradient slab by slab. The gradient makes the votes
// again. All sums over slabs are in the order of the slabs.
//
// A device is described by a struct `Steps`, with its Exec, kSlabBytes, the most bytes
// of a slab's votes unless a row has more, and static functions for an element type T.
// Those that return errors begin these with the op's name:
//   Unfolds        returns whether unfolded slabs may be faster
//   IsFast         returns whether a convolution of unfolded slabs is
//   Zero           zeros memory
//   CopyWeights    copies the weights of a phase
//   AddWeights     adds the gradient of this copy to the gradient of weights
//   Narrow         converts sums to T
//   CopyImage      copies a slab's channels
//   AddImage       adds the gradient of this copy to the gradient of the input
//   Space          returns how many sums Route or RouteBackward work on
//   Route          routes votes
//   Parts          returns how many sums the gradients of bias and logits have in parts
//   RouteBackward  replaces votes by their gradient, and adds to these parts
//   AddParts       adds the parts up
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/round.h"

namespace capsops::capsule_conv_routing {

// Consecutive arrays of a workspace. Without a base it only counts their bytes.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* Take(int64_t count) {
    char* const at = base_ + bytes_;
    bytes_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), 64);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

// The plans for all slabs of a problem.
template <typename Steps, typename T>
class Slabs {
 public:
  using Exec = typename Steps::Exec;
  using A = Accumulator<T>;

  Slabs(const Exec& exec, const char* op, const Problem& p, bool gradient)
      : op_(op), p_(p), gradient_(gradient) {
    const bool sums = gradient && Steps::template SumsWeights<T>(exec, p);
    reads_windows_ = (!gradient || sums) && Steps::template ReadsWindows<T>(exec, p);
    makes_votes_ = reads_windows_ || Steps::template MakesVotes<T>(exec, p);
    unfolded_ = !makes_votes_ && Steps::template Unfolds<T>(p, gradient);
    grads_image_ = gradient && Steps::template GradsImage<T>(exec, p);
    unfolded_grad_ = grads_image_ || (gradient && Steps::template UnfoldsGrad<T>(p));
    sums_weights_ = gradient && Steps::template SumsWeights<T>(exec, p);
    PlanSizes(exec);
    // The first slab is one of the largest, and decides for all.
    const bool planned = error_.empty() && !convs_.empty();
    const bool votes = planned && Steps::IsFast(convs_[0].votes.kernel) &&
                       (!gradient || sums_weights_ ||
                        Steps::IsFast(convs_[0].by_weights.kernel));
    const bool image = planned && gradient &&
                       (grads_image_ || Steps::IsFast(convs_[0].by_image.kernel));
    if (votes >= unfolded_ && image >= unfolded_grad_) return;
    unfolded_ = unfolded_ && votes;
    unfolded_grad_ = unfolded_grad_ && image;
    PlanSizes(exec);
  }
  void Debug() const {
    if (std::getenv("TFC_DEBUG") == nullptr || convs_.empty()) return;
    std::fprintf(stderr,
                 "%s slab %lld KB unfolded %d grad %d sums %d ws %.1f MB: votes %s, image "
                 "%s, weights %s; shapes %d votes %.1f image %.1f sums %.1f transposed "
                 "%.1f conv %.1f MB\n",
                 op_, static_cast<long long>(slab_bytes_ >> 10), unfolded_, unfolded_grad_,
                 sums_weights_, workspace() / 1e6, convs_[0].votes.kernel.c_str(),
                 convs_[0].by_image.kernel.c_str(), convs_[0].by_weights.kernel.c_str(),
                 static_cast<int>(convs_.size()), most_votes_ * sizeof(T) / 1e6,
                 most_image_ * sizeof(T) / 1e6, most_sums_ * 4 / 1e6,
                 most_transposed_ * 4 / 1e6, most_conv_ / 1e6);
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
      const LaunchError error =
          MakeVotes(exec, slab, Image(slab, input, a), input, filter, a);
      if (!error.empty()) return error;
      return Steps::Route(exec, op_, p_, Places(p_, slab), a.votes, bias, logits,
                          output, a.space);
    });
  }

  LaunchError Backward(const Exec& exec, const T* grad, const T* input,
                       const T* weights, const T* bias, const T* logits, T* grad_input,
                       T* grad_weights, T* grad_bias, T* grad_logits,
                       void* workspace) const {
    Arena arena(workspace);
    const Arrays a(*this, arena);
    A* const sums = SumsAreResult() ? reinterpret_cast<A*>(grad_weights) : a.sums;
    LaunchError error;
    const auto then = [&error](const auto& step) {
      if (error.empty()) error = step();
    };
    const auto zero = [&](void* data, int64_t bytes) {
      then([&] { return Steps::Zero(exec, op_, data, bytes); });
    };
    if (!writes_input_) zero(grad_input, InputSize(p_) * sizeof(T));
    if (!writes_weights_) zero(sums, WeightsSize(p_) * sizeof(A));
    zero(a.parts, parts_ * sizeof(A));
    bool begun = false;  // whether a slab of this phase has been read
    const auto slab_gradients = [&](const Slab& slab, const T* filter) {
      begun = begun && !slab.IsFirstOfPhase();
      const T* const image = Image(slab, input, a);
      T* const by_image = writes_input_ ? grad_input + InputOffset(slab) : a.image;
      T* const by_weights = writes_weights_ ? grad_weights : a.weights_part;
      then([&] { return MakeVotes(exec, slab, image, input, filter, a); });
      then([&] {
        return Steps::RouteBackward(exec, op_, p_, Places(p_, slab), grad, bias, logits,
                                    a.votes, a.parts, a.space);
      });
      const auto finish = [&] {
        if constexpr (Steps::kSumsWeights && std::is_same_v<T, float>) {
          if (!sums_weights_ || !begun || !slab.IsLastOfPhase(p_)) return;
          then([&] {
            return Steps::FinishWeights(exec, op_, p_, slab, a.weight_sums, sums);
          });
        }
      };
      if (!slab.Reads(p_)) {
        finish();
        return error;
      }
      const Convs& convs = Find(slab);
      if (!sums_weights_) {
        then([&] {
          return Run(exec, convs.by_weights, image, a.votes, by_weights, a);
        });
      } else if constexpr (Steps::kSumsWeights && std::is_same_v<T, float>) {
        then([&] {
          return Steps::SumWeights(exec, op_, p_, slab, !begun, input, a.votes,
                                   a.image, a.weight_sums);
        });
        begun = true;
        finish();
      }
      if (!grads_image_) {
        then([&] { return Run(exec, convs.by_image, a.votes, filter, by_image, a); });
      } else if constexpr (Steps::kSumsWeights && std::is_same_v<T, float>) {
        then([&] {
          return Steps::GradImage(exec, op_, p_, slab, a.votes, filter, by_image);
        });
      }
      if (!writes_weights_ && !sums_weights_) {
        then([&] {
          return Steps::AddWeights(exec, op_, Relay(p_, slab.phase), by_weights, sums);
        });
      }
      if (!writes_input_) {
        then([&] {
          return Steps::AddImage(exec, op_, PatchOf(ByImage(slab)), by_image,
                                 grad_input);
        });
      }
      return error;
    };
    then([&] { return ForEachFilter(exec, weights, a, slab_gradients); });
    if (!writes_weights_ && !SumsAreResult()) {
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
  using ConvPlan = capsule_conv::ConvPlan<Exec, T>;

  // The plans of slabs of one shape: their votes, and the gradients of their channels
  // and weights.
  struct Convs {
    capsule_conv::Problem problem;
    ConvPlan votes, by_image, by_weights;
  };

  // The arrays of the workspace. Arrays that are not used have no elements.
  struct Arrays {
    T *weights, *packed, *image, *votes, *weights_part;
    A* weight_sums;
    A *sums, *parts, *space;
    char* conv;
    int64_t bytes;

    Arrays(const Slabs& s, Arena& arena) {
      const auto take = [&](bool used, auto element, int64_t count) {
        return arena.template Take<decltype(element)>(used ? count : 0);
      };
      const bool gradient = s.gradient_;
      weights = take(s.relays_, T(), s.most_weights_);
      packed = take(s.makes_votes_, T(), s.most_weights_);
      // The transposed channels take their place, and then their gradient does.
      image = take(s.copies_ || (gradient && !s.writes_input_) || s.sums_weights_ ||
                       s.reads_windows_,
                   T(),
                   std::max(s.most_image_, s.most_transposed_));
      votes = take(true, T(), s.most_votes_);
      weights_part = take(gradient && !s.writes_weights_ && !s.sums_weights_, T(),
                          s.most_weights_);
      weight_sums = take(s.sums_weights_, A(), s.most_sums_);
      sums = take(gradient && !s.writes_weights_ && !SumsAreResult(), A(),
                  WeightsSize(s.p_));
      parts = take(gradient, A(), s.parts_);
      space = take(true, A(), s.space_);
      conv = take(true, char(), s.most_conv_);
      bytes = arena.bytes();
    }
  };

  // The bytes of the arrays that are smaller where slabs are.
  int64_t SlabBytes() const {
    const bool image = copies_ || (gradient_ && !writes_input_);
    return (most_votes_ + (image ? most_image_ : 0)) * sizeof(T);
  }

  static constexpr bool SumsAreResult() { return std::is_same_v<T, A>; }

  // The offset of the first row that a slab reads, if it reads no copy.
  int64_t InputOffset(const Slab& slab) const {
    return (slab.first * p_.in_height + slab.band.read) * InRow(p_);
  }
  // Whether an operand may begin at this offset.
  static bool IsAligned(int64_t offset) { return offset * sizeof(T) % 16 == 0; }
  bool Copies(const Slab& slab) const {
    return unfolded_ || !ReadsFrames(p_, slab.phase.depth) ||
           !IsAligned(InputOffset(slab));
  }
  bool Relays(const Relay& relay) const {
    return !relay.IsPart(p_) || !IsAligned(relay.From(0) * relay.matrix);
  }

  // Makes slabs smaller until the workspace has at most kMostBytes bytes, or until the
  // slabs' own arrays no longer dominate it.
  void PlanSizes(const Exec& exec) {
    constexpr int64_t kMostBytes = int64_t{64} << 20, kFewBytes = 2 << 20;
    for (slab_bytes_ = Steps::SlabBytes();; slab_bytes_ -= slab_bytes_ / 8) {
      const bool smallest = PlanConvs(exec);
      if (!error_.empty() || smallest || workspace() <= kMostBytes ||
          SlabBytes() <= kFewBytes) {
        return;
      }
    }
  }

  // Decides what is copied, and plans the convolutions of every shape of slabs. Returns
  // whether there are no smaller slabs.
  bool PlanConvs(const Exec& exec) {
    convs_.clear();
    most_votes_ = most_image_ = most_weights_ = most_conv_ = 0;
    most_transposed_ = most_sums_ = 0;
    copies_ = relays_ = false;
    bool smallest = true, whole = !p_.transposed, all_weights = true;
    int64_t slabs = 0;
    error_ = ForEachSlab(p_, sizeof(T), slab_bytes_, unfolded_, [&](const Slab& slab) {
      const Relay relay(p_, slab.phase);
      ++slabs;
      smallest = smallest && slab.frames == 1 && slab.band.rows == 1;
      most_votes_ = std::max(most_votes_, slab.Votes(p_));
      whole = whole && slab.Reads(p_) && slab.band.rows == p_.out_height;
      if (!slab.Reads(p_)) return LaunchError();
      copies_ = copies_ || Copies(slab);
      relays_ = relays_ || Relays(relay);
      all_weights = all_weights && relay.elements() == WeightsSize(p_);
      most_image_ = std::max({most_image_, Copies(slab) && !reads_windows_ ? slab.Image(p_) : 0,
                              gradient_ ? ByImage(slab).Image(p_) : 0});
      if constexpr (Steps::kSumsWeights) {
        if (reads_windows_) {
          most_image_ = std::max(most_image_, Steps::PaddedImage(p_, slab));
        }
        if (sums_weights_) {
          const auto [transposed, sums] = Steps::WeightSizes(exec, p_, slab);
          most_transposed_ = std::max(most_transposed_, transposed);
          most_sums_ = std::max(most_sums_, sums);
        }
      }
      most_weights_ = std::max(most_weights_, relay.elements());
      const capsule_conv::Problem conv = ConvOf(p_, slab);
      return Search(conv) != nullptr ? LaunchError()
                                     : PlanConv(exec, conv, ConvOf(p_, ByImage(slab)));
    });
    writes_input_ = !copies_ && !unfolded_grad_ && whole;
    writes_weights_ =
        !relays_ && whole && all_weights && slabs == 1 && !sums_weights_;
    space_ = Steps::template Space<T>(exec, p_, gradient_);
    parts_ = gradient_ ? Steps::template Parts<T>(exec, p_) : 0;
    return smallest;
  }

  LaunchError PlanConv(const Exec& exec, const capsule_conv::Problem& problem,
                       const capsule_conv::Problem& by_image) {
    using namespace capsule_conv;  // NOLINT: its planners
    LaunchError error;
    const auto kept = [&](const ConvPlan& plan) {
      if (error.empty() && !plan.run) error = Named(plan.error);
      most_conv_ = std::max(most_conv_, plan.workspace);
      return plan;
    };
    Convs convs{problem, {}, {}, {}};
    if (!makes_votes_) convs.votes = kept(PlanForward<T>(exec, problem));
    if (gradient_) {
      if (!grads_image_) {
        convs.by_image = kept(PlanBackpropInput<T>(exec, by_image));
      }
      if (!sums_weights_) {
        convs.by_weights = kept(PlanBackpropWeights<T>(exec, problem));
      }
    }
    convs_.push_back(convs);
    return error;
  }

  const Convs* Search(const capsule_conv::Problem& problem) const {
    for (const Convs& convs : convs_) {
      if (std::memcmp(&convs.problem, &problem, sizeof(problem)) == 0) return &convs;
    }
    return nullptr;
  }
  const Convs& Find(const Slab& slab) const { return *Search(ConvOf(p_, slab)); }

  // Puts the name of this op before that of its convolution.
  LaunchError Named(const LaunchError& error) const {
    if (error.empty()) return error;
    return {std::string(op_) + ": " + error.text(), error.fault()};
  }
  LaunchError Run(const Exec& exec, const ConvPlan& plan, const T* left, const T* right,
                  T* to, const Arrays& a) const {
    return Named(plan.run(exec, left, right, to, a.conv));
  }

  Patch PatchOf(const Slab& slab) const { return {p_, slab}; }
  // The slab as the gradient of its image sees it.
  Slab ByImage(Slab slab) const {
    slab.unfolded = unfolded_grad_;
    return slab;
  }

  // Calls visit(slab, filter) for each slab, with the weights of its convolution.
  template <typename Visit>
  LaunchError ForEachFilter(const Exec& exec, const T* weights, const Arrays& a,
                            const Visit& visit) const {
    bool relaid = false;  // whether those of this phase are copied
    bool packed = false;
    const auto packing = [&](const Slab& slab, const T* filter) {
      LaunchError error;
      if constexpr (Steps::kSumsWeights && std::is_same_v<T, float>) {
        if (makes_votes_ && !packed) {
          error = reads_windows_
                      ? Steps::PackWindows(exec, op_, p_, slab, filter, a.packed)
                      : Steps::PackVotes(exec, op_, p_, slab, filter, a.packed);
        }
        packed = true;
      }
      return error.empty() ? visit(slab, filter) : error;
    };
    return ForEachSlab(p_, sizeof(T), slab_bytes_, unfolded_, [&](const Slab& slab) {
      const Relay relay(p_, slab.phase);
      relaid = relaid && !slab.IsFirstOfPhase();
      packed = packed && !slab.IsFirstOfPhase();
      if (!slab.Reads(p_)) return visit(slab, weights);
      if (!Relays(relay)) return packing(slab, weights + relay.From(0) * relay.matrix);
      LaunchError error;
      if (!relaid) error = Steps::CopyWeights(exec, op_, relay, weights, a.weights);
      relaid = true;
      return error.empty() ? packing(slab, a.weights) : error;
    });
  }

  // The channels that a slab's convolution reads, which MakeVotes copies first.
  const T* Image(const Slab& slab, const T* input, const Arrays& a) const {
    return Copies(slab) ? a.image : input + InputOffset(slab);
  }
  LaunchError MakeVotes(const Exec& exec, const Slab& slab, const T* image,
                        const T* input, const T* filter, const Arrays& a) const {
    if (!slab.Reads(p_)) {
      return Steps::Zero(exec, op_, a.votes, slab.Votes(p_) * sizeof(T));
    }
    if constexpr (Steps::kSumsWeights && std::is_same_v<T, float>) {
      if (reads_windows_) {
        return Steps::MakeWindowVotes(exec, op_, p_, slab, input, a.packed, a.image,
                                      a.votes);
      }
    }
    LaunchError error;
    if (Copies(slab)) {
      error = Steps::CopyImage(exec, op_, PatchOf(slab), input, a.image);
    }
    if (!error.empty()) return error;
    if constexpr (Steps::kSumsWeights && std::is_same_v<T, float>) {
      if (makes_votes_) {
        return Steps::MakeVotes(exec, op_, p_, slab, image, a.packed, a.votes);
      }
    }
    return Run(exec, Find(slab).votes, image, filter, a.votes, a);
  }

  const char* op_;
  Problem p_;
  bool gradient_, unfolded_, unfolded_grad_, sums_weights_, grads_image_, makes_votes_,
      reads_windows_;
  int64_t slab_bytes_;
  std::vector<Convs> convs_;
  LaunchError error_;
  // Whether channels and weights are copied, and whether the gradients of slabs are
  // parts of the results, so that they need not be added.
  bool copies_, relays_, writes_input_, writes_weights_;
  int64_t most_votes_, most_image_, most_weights_, most_conv_, space_, parts_;
  int64_t most_transposed_, most_sums_;
};

// Returns a plan that runs slabs, or their error.
template <typename Plan, typename Slabs, typename Run>
Plan PlanSlabs(const Slabs& slabs, const Run& run) {
  if (slabs.error().empty()) return Plan::Make(slabs.workspace(), run);
  Plan plan;
  plan.error = slabs.error();
  return plan;
}

// Plan both directions of any problem. Without output there is nothing to route.
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
  slabs->Debug();
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
  slabs->Debug();
  return PlanSlabs<Plan>(
      *slabs, [slabs](auto... arguments) { return slabs->Backward(arguments...); });
}

}  // namespace capsops::capsule_conv_routing
