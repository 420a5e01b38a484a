// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the steps of INQ convolution and divides each among threads. No sum crosses a
// task. Weights are decoded into the workspace. Images of 16-bit types are also
// converted to float, some samples at a time, because weights may not fit in 16 bits. A
// convolution that InqConv's own kernels do not support runs as a capsule convolution,
// with poses of 1 x in_channels and a weight matrix of in_channels x out_channels per
// tap.
#include "cc/cpu/inq_conv.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "cc/cpu/dispatch/inq_codes.h"
#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"
#include "cc/launch/capsule_conv.h"
#include "cc/launch/round.h"

namespace capsops::inq_conv {
namespace {

CAPSOPS_SELECTED_KERNELS

int64_t Weights(const Problem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels * p.out_channels;
}
int64_t Input(const Problem& p) {
  return p.batch * p.in_height * p.in_width * p.in_channels;
}
int64_t Output(const Problem& p) {
  return p.batch * p.out_height * p.out_width * p.out_channels;
}

// Sizes in bytes, rounded up so that arrays of the workspace begin at cache lines.
int64_t RoundedUp(int64_t bytes) { return RoundUp(bytes, 64); }
template <typename A>
int64_t Bytes(int64_t count) {
  return RoundedUp(count * static_cast<int64_t>(sizeof(A)));
}

template <typename Body>
void ForAll(const CpuExec& exec, int64_t count, const Body& body) {
  exec.parallel_for(count, 2, [&](int64_t begin, int64_t end) {
    if (begin < end) body(begin, end - begin);
  });
}

// The most bytes of the float copies of 16-bit images, unless one sample needs more.
constexpr int64_t kWideBytes = 16 << 20;

// The forward convolution or, with kGradient, the input gradient.
template <typename T, bool kGradient>
class Convolution {
 public:
  static InqPlan<CpuExec, T> Plan(const CpuExec& exec, const Problem& p) {
    const Convolution conv(exec, p);
    return CpuPlan<InqPlan<CpuExec, T>>(
        conv.Workspace(),
        [conv](const CpuExec& exec, const T* from, const uint8_t* codes,
               int32_t top_exponent, T* to, void* workspace) {
          return conv.Run(exec, codes, top_exponent, from, to, workspace);
        });
  }

 private:
  using A = Accumulator<T>;
  static constexpr bool kWidened = !std::is_same_v<T, A>;
  static constexpr const char* kOp = kGradient ? "InqConvBackpropInput" : "InqConv";

  // A batch of samples that are computed together: by InqConv's own kernels if these
  // support them (`division`), and otherwise by a capsule convolution (`decoded`).
  struct Part {
    Problem p;
    capsule_conv::Division division = {};
    capsule_conv::ConvPlan<CpuExec, A> decoded;
  };

  Convolution(const CpuExec& exec, const Problem& problem)
      : whole_(problem),
        kernels_(Selected<T>()),
        image_(kGradient ? kernels_.backprop_input : kernels_.forward) {
    int64_t samples = problem.batch;
    if constexpr (kWidened) {
      const int64_t sample = (Input(problem) + Output(problem)) /
                             std::max<int64_t>(problem.batch, 1) *
                             static_cast<int64_t>(sizeof(A));
      const int64_t fit = kWideBytes / std::max<int64_t>(sample, 1);
      samples = std::min(std::max<int64_t>(fit, 1), problem.batch);
    }
    if (Weights(problem) == 0) return;
    full_part_ = PlanPart(exec, samples);
    last_part_ = PlanPart(exec, samples > 0 ? problem.batch % samples : 0);
  }

  Part PlanPart(const CpuExec& exec, int64_t samples) const {
    Part part;
    part.p = whole_;
    part.p.batch = samples;
    part.division = image_.divide(part.p);
    if (!part.division.fits) {
      const auto poses = AsPoses(part.p, part.p.in_channels, part.p.out_channels);
      part.decoded = kGradient ? capsule_conv::PlanBackpropInput<A>(exec, poses)
                               : capsule_conv::PlanForward<A>(exec, poses);
    }
    return part;
  }

  // Returns the bytes of the weights and, if T is not A, of both images in type A.
  int64_t Workspace() const {
    if (Weights(whole_) == 0) return 0;
    return WeightsBytes() +
           (kWidened ? Bytes<A>(From(full_part_.p)) + Bytes<A>(To(full_part_.p)) : 0);
  }

  // Decodes the weights with a clamped top exponent, so that all are normal numbers,
  // convolves part by part, and scales the results by the rest of the exponent.
  LaunchError Run(const CpuExec& exec, const uint8_t* codes, int32_t top_exponent,
                  const T* from, T* to, void* workspace) const {
    if (Weights(whole_) == 0) {
      if (To(whole_) > 0) std::memset(to, 0, To(whole_) * sizeof(T));
      return {};
    }
    const int64_t top =
        std::clamp<int64_t>(top_exponent, -kLargestTop<A>, kLargestTop<A>);
    const int64_t rest = top_exponent - top;
    const auto scale = [&](int64_t all, const A* sums, T* to) {
      ForAll(exec, all, [&](int64_t at, int64_t count) {
        kernels_.scale(count, rest, sums + at, to + at);
      });
    };
    if (!Decode(exec, codes, static_cast<int>(top), workspace)) {
      return BadCode(kOp, CodesShape(whole_), whole_.bits, codes);
    }
    if (To(whole_) == 0) return {};  // codes are checked even then
    if constexpr (kWidened) {
      char* const images = static_cast<char*>(workspace) + WeightsBytes();
      A* const wide = reinterpret_cast<A*>(images);
      A* const sums = reinterpret_cast<A*>(images + Bytes<A>(From(full_part_.p)));
      for (int64_t left = whole_.batch; left > 0; left -= full_part_.p.batch) {
        const Part& part = left >= full_part_.p.batch ? full_part_ : last_part_;
        const int64_t read = From(part.p), written = To(part.p);
        ForAll(exec, read, [&](int64_t at, int64_t count) {
          kernels_.widen(count, from + at, wide + at);
        });
        CAPSOPS_RETURN_IF_ERROR(Convolve(exec, part, wide, sums, workspace));
        scale(written, sums, to);
        from += read;
        to += written;
      }
      return {};
    } else {
      LaunchError error = Convolve(exec, full_part_, from, to, workspace);
      if (error.empty() && rest != 0) scale(To(whole_), to, to);
      return error;
    }
  }

  static int64_t From(const Problem& p) { return kGradient ? Output(p) : Input(p); }
  static int64_t To(const Problem& p) { return kGradient ? Input(p) : Output(p); }

  // Returns the bytes of the decoded weights and of a capsule convolution's workspace.
  int64_t WeightsBytes() const {
    if (full_part_.division.fits) return RoundedUp(full_part_.division.workspace);
    return Bytes<A>(Weights(whole_)) +
           RoundedUp(
               std::max(full_part_.decoded.workspace, last_part_.decoded.workspace));
  }

  // Decodes all weights. Returns whether all codes are in the code book.
  bool Decode(const CpuExec& exec, const uint8_t* codes, int top, void* weights) const {
    std::atomic<bool> fit = true;
    if (full_part_.division.fits) {
      const int64_t tasks = full_part_.division.weights_tasks;
      ForEach(exec, tasks, 2 * Weights(whole_) / std::max<int64_t>(tasks, 1),
              [&](int64_t task) {
                if (!image_.pack(full_part_.p, task, top, codes, weights)) fit = false;
              });
    } else {
      A* const plain = static_cast<A*>(weights);
      ForAll(exec, Weights(whole_), [&](int64_t at, int64_t count) {
        if (!kernels_.decode(whole_, at, count, top, codes, plain)) fit = false;
      });
    }
    return fit;
  }

  LaunchError Convolve(const CpuExec& exec, const Part& part, const A* from, A* to,
                       void* weights) const {
    const Problem& p = part.p;
    if (!part.division.fits) {
      const LaunchError error =
          part.decoded.run(exec, from, static_cast<const A*>(weights), to,
                           static_cast<char*>(weights) + Bytes<A>(Weights(p)));
      if (error.empty()) return {};
      return {std::string(kOp) + ": " + error.text(), error.fault()};
    }
    const capsule_conv::Division& d = part.division;
    // The cost assumes 16 multiply-adds per cycle.
    const int64_t work = Output(p) * p.kernel_height * p.kernel_width * p.in_channels;
    const int64_t cost = work / 16 / std::max<int64_t>(d.tasks, 1);
    return ForTasks(exec, kOp, d.tasks, std::max<int64_t>(cost, 1), d.scratch,
                    [&](int64_t task, void* scratch) {
                      image_.run(p, task, from, weights, to, scratch);
                    });
  }

  Problem whole_;
  const CpuKernels<T>& kernels_;
  const ImageKernels<A>& image_;
  Part full_part_,
      last_part_;  // all parts but the last, and the last, with fewer samples
};

}  // namespace

template <typename T>
InqPlan<CpuExec, T> PlanForward(const CpuExec& exec, const Problem& p) {
  return Convolution<T, false>::Plan(exec, p);
}

template <typename T>
InqPlan<CpuExec, T> PlanBackpropInput(const CpuExec& exec, const Problem& p) {
  return Convolution<T, true>::Plan(exec, p);
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, InqPlan, CpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropInput, InqPlan, CpuExec)

}  // namespace capsops::inq_conv
