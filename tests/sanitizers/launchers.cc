// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs every op on the CPU in every type, without a framework, for `make test
// SANITIZE=...`: drawn problems, each first alone and then from 8 threads at once,
// pairs of which run the same problem at the same time. All share the plans that are
// kept and divide their work among threads of their own. Results must have the bits of
// the run alone, also after calls for which there was no memory. Tensors have exactly
// their size and no more than their type's alignment.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/cpu/dispatch/scratch.h"
#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_prediction.h"
#include "cc/launch/capsule_routing.h"
#include "cc/launch/high_order_conv.h"
#include "cc/launch/inq_conv.h"

namespace capsops {
namespace {

constexpr int kProblems = 40;       // of each op
constexpr int64_t kMostWork = 3e5;  // multiply-adds of one problem
constexpr int kThreads = 8;

// Whether plans run without memory for what their threads need.
std::atomic<bool> starve = false;
std::atomic<bool> starving = false;

using Bytes = std::vector<unsigned char>;

// Draws numbers between 0.5 and 1 in magnitude, and codes that every book has.
class Source {
 public:
  int64_t Pick(std::initializer_list<int64_t> from) {
    return from.begin()[bits_() % from.size()];
  }
  void Draw(float* x) { *x = Magnitude() * Sign(); }
  void Draw(double* x) { *x = Magnitude() * Sign(); }
  void Draw(Float16* x) { x->bits = 0x3800 | (bits_() & 0x83ff); }
  void Draw(BFloat16* x) { x->bits = 0x3f00 | (bits_() & 0x807f); }
  void Draw(uint8_t* x) { *x = bits_() % 3; }

 private:
  float Magnitude() { return 0.5f + (bits_() & 0xffff) / 131072.f; }
  float Sign() { return bits_() & 1 ? 1.f : -1.f; }

  std::mt19937 bits_;
};

// Finds a plan's arguments, for RunFrom: operands are the same each time.
class Arguments {
 public:
  explicit Arguments(const std::vector<int64_t>& counts) : counts_(counts) {}

  template <typename P>
  P Next() {
    if constexpr (std::is_pointer_v<P>) {
      using T = std::remove_const_t<std::remove_pointer_t<P>>;
      const int64_t count = counts_[tensors_.size()];
      Bytes& bytes = tensors_.emplace_back(count * sizeof(T), 0xff);
      T* const data = reinterpret_cast<T*>(bytes.data());
      if constexpr (kIsOperand<P>) {
        for (int64_t i = 0; i < count; ++i) source_.Draw(data + i);
      }
      return data;
    } else {
      return 3;  // the top exponent
    }
  }
  void* Workspace(int64_t bytes) {
    void* const workspace = workspace_.emplace(bytes).data();
    starving = starve.load();
    return workspace;
  }
  bool failed() const { return false; }
  std::vector<Bytes> TakeTensors() { return std::move(tensors_); }

 private:
  Source source_;
  std::vector<int64_t> counts_;
  std::vector<Bytes> tensors_;
  std::optional<Scratch> workspace_;
};

// An op on a problem. Sets the tensors where the call returns no error.
struct Run {
  std::string op;
  std::function<LaunchError(const CpuExec&, std::vector<Bytes>* tensors)> call;
};
std::vector<Run> runs;
std::atomic<int> failures = 0;

void Fail(const Run& run, const std::string& why) {
  std::fprintf(stderr, "%s, run %td: %s\n", run.op.c_str(), &run - runs.data(),
               why.c_str());
  ++failures;
}

// `counts` are the elements of the plan's tensors.
template <typename Op, typename T>
void Add(const typename Op::Problem& problem, const std::vector<int64_t>& counts) {
  static PlanCache<Op, T, CpuExec> plans;
  const auto call = [=](const CpuExec& exec, std::vector<Bytes>* tensors) {
    const auto plan = plans.Find(exec, problem);
    if (!plan->run) return plan->error;
    if (RecordsKernels()) RecordKernel(Op::kName, plan->kernel, plan->workspace);
    Arguments arguments(counts);
    const LaunchError error = RunFrom(arguments, *plan, exec);
    *tensors = arguments.TakeTensors();
    return error;
  };
  runs.push_back({Op::kName, call});
}

// Adds an op in every type.
template <typename Op>
void Add(const typename Op::Problem& problem, const std::vector<int64_t>& counts) {
#define CAPSOPS_ADD(T) Add<Op, T>(problem, counts);
  CAPSOPS_FOR_EACH_TYPE(CAPSOPS_ADD)
}

void AddPrediction(Source& draw) {
  capsule_prediction::Problem p;
  p.batch = draw.Pick({0, 1, 2, 5, 17});
  p.in_caps = draw.Pick({1, 3, 20});
  p.out_caps = draw.Pick({1, 3, 10});
  p.out_dim = draw.Pick({1, 4, 7, 16});
  p.in_dim = draw.Pick({0, 1, 3, 8, 17});
  const int64_t input = p.batch * p.in_caps * p.in_dim;
  const int64_t weights = p.in_caps * p.out_caps * p.out_dim * p.in_dim;
  const int64_t output = p.batch * p.in_caps * p.out_caps * p.out_dim;
  Add<capsule_prediction::Forward>(p, {input, weights, output});
  Add<capsule_prediction::Backward>(p, {output, input, weights, input, weights});
}

void AddRouting(Source& draw) {
  capsule_routing::Problem p;
  p.batch = draw.Pick({0, 1, 2, 5, 9});
  p.in_caps = draw.Pick({0, 1, 3, 20});
  p.out_caps = draw.Pick({1, 3, 10, 17});
  p.out_dim = draw.Pick({1, 4, 7, 16});
  p.in_dim = draw.Pick({1, 3, 8});
  p.iterations = draw.Pick({1, 2, 3});
  p.set_epsilon(1e-7f);
  const int64_t input = p.batch * p.in_caps * p.in_dim;
  const int64_t logits = p.in_caps * p.out_caps;
  const int64_t weights = logits * p.out_dim * p.in_dim;
  const int64_t output = p.batch * p.out_caps * p.out_dim;
  const int64_t sums = p.iterations * output;
  Add<capsule_routing::Forward>(p, {input, weights, logits, output, sums});
  Add<capsule_routing::Backward>(
      p, {output, input, weights, logits, sums, input, weights, logits});
  Add<capsule_routing::Coefficients>(p,
                                     {input, weights, logits, sums, p.batch * logits});
}

capsule_conv::WindowProblem DrawWindow(Source& draw) {
  capsule_conv::WindowProblem p;
  const auto out = [&](int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                       int64_t pad) {
    const int64_t beyond = in + pad + draw.Pick({0, 1, 2}) - (kernel - 1) * dilation;
    return beyond > 0 ? (beyond - 1) / stride + 1 : 0;
  };
  p.batch = draw.Pick({0, 1, 2, 3, 3});
  p.in_height = draw.Pick({1, 2, 5, 9});
  p.in_width = draw.Pick({1, 3, 8, 19});
  p.kernel_height = draw.Pick({1, 2, 3, 5});
  p.kernel_width = draw.Pick({1, 2, 3, 5});
  p.stride_height = draw.Pick({1, 1, 2, 3});
  p.stride_width = draw.Pick({1, 1, 2, 3});
  p.dilation_height = draw.Pick({1, 1, 2});
  p.dilation_width = draw.Pick({1, 1, 2});
  p.pad_top = draw.Pick({0, 1, 2});
  p.pad_left = draw.Pick({0, 1, 2});
  p.out_height =
      out(p.in_height, p.kernel_height, p.stride_height, p.dilation_height, p.pad_top);
  p.out_width =
      out(p.in_width, p.kernel_width, p.stride_width, p.dilation_width, p.pad_left);
  return p;
}

int64_t InPixels(const capsule_conv::WindowProblem& p) {
  return p.batch * p.in_height * p.in_width;
}
int64_t OutPixels(const capsule_conv::WindowProblem& p) {
  return p.batch * p.out_height * p.out_width;
}
int64_t Pairs(const capsule_conv::WindowProblem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels * p.out_channels;
}

void AddConv(Source& draw) {
  capsule_conv::Problem p;
  int64_t input, weights, output, work;
  do {
    p = {DrawWindow(draw)};
    p.in_channels = draw.Pick({0, 1, 2, 3, 8, 17});
    p.out_channels = draw.Pick({1, 2, 3, 8, 17});
    p.pose_depth = draw.Pick({1, 1, 2});
    p.pose_rows = draw.Pick({1, 1, 2, 4});
    p.pose_inner = draw.Pick({0, 1, 3, 4, 8});
    p.pose_columns = draw.Pick({0, 1, 3, 4, 16, 33});
    const int64_t rows = p.pose_depth * p.pose_rows;
    input = InPixels(p) * p.in_channels * rows * p.pose_inner;
    weights = Pairs(p) * p.pose_depth * p.pose_inner * p.pose_columns;
    output = OutPixels(p) * p.out_channels * rows * p.pose_columns;
    work = OutPixels(p) * Pairs(p) * rows * p.pose_inner * p.pose_columns;
  } while (work > kMostWork);
  Add<capsule_conv::Forward>(p, {input, weights, output});
  Add<capsule_conv::ForwardBiasRelu>(
      p, {input, weights, capsule_conv::PixelSize(p), output});
  Add<capsule_conv::BackpropInput>(p, {output, weights, input});
  Add<capsule_conv::BackpropWeights>(p, {input, output, weights});
}

void AddHighOrderConv(Source& draw) {
  high_order_conv::Problem p;
  int64_t input, filters;
  do {
    p.batch = draw.Pick({0, 1, 2, 3});
    p.height = draw.Pick({1, 2, 5, 9});
    p.width = draw.Pick({1, 3, 8, 19, 40});
    p.groups = draw.Pick({1, 1, 2, 3});
    p.channels = p.groups * draw.Pick({0, 1, 3, 8, 16, 17});
    p.kernel_height = draw.Pick({1, 3, 5});
    p.kernel_width = draw.Pick({1, 3, 5});
    p.dilation_height = draw.Pick({1, 1, 2, 11});
    p.dilation_width = draw.Pick({1, 1, 2, 11});
    p.channels_first = draw.Pick({0, 1}) == 1;
    const int64_t pixels = p.batch * p.height * p.width;
    input = pixels * p.channels;
    filters = pixels * p.groups * p.kernel_height * p.kernel_width;
  } while (input * p.kernel_height * p.kernel_width > kMostWork);
  Add<high_order_conv::Forward>(p, {input, filters, input});
  Add<high_order_conv::Backward>(p, {input, input, filters, input, filters});
}

void AddInqConv(Source& draw) {
  inq_conv::Problem p;
  do {
    p = {DrawWindow(draw)};
    p.in_channels = draw.Pick({0, 1, 3, 8, 16, 33});
    p.out_channels = draw.Pick({1, 3, 8, 16, 33});
    p.bits = draw.Pick({2, 5, 8});
  } while (OutPixels(p) * Pairs(p) > kMostWork);
  const int64_t input = InPixels(p) * p.in_channels;
  const int64_t output = OutPixels(p) * p.out_channels;
  Add<inq_conv::Forward>(p, {input, Pairs(p), output});
  Add<inq_conv::BackpropInput>(p, {output, Pairs(p), input});
}

void Compare(const Run& run, const CpuExec& exec, const std::vector<Bytes>& alone) {
  std::vector<Bytes> tensors;
  const LaunchError error = run.call(exec, &tensors);
  if (!error.empty()) Fail(run, error.text());
  if (tensors != alone) Fail(run, "other results than alone");
}

// Returns whether the run fails for want of memory, as an error that names the op.
bool Starves(const Run& run, const CpuExec& exec) {
  std::vector<Bytes> tensors;
  starve = true;
  const LaunchError error = run.call(exec, &tensors);
  starve = starving = false;
  if (error.empty()) return false;
  if (error.fault() != Fault::kOutOfMemory || error.text().find(run.op) != 0) {
    Fail(run, "without memory: " + error.text());
  }
  return true;
}

// Three threads, the caller's among them, share the items.
void ThreeThreads(int64_t count, int64_t, const CpuExec::Body& body) {
  const int64_t first = count / 3, second = count - count / 4;
  std::thread one([&] { body(0, first); });
  std::thread two([&] { body(first, second); });
  body(second, count);
  one.join();
  two.join();
}

int Main() {
  Source draw;
  for (int i = 0; i < kProblems; ++i) {
    AddPrediction(draw);
    AddRouting(draw);
    AddConv(draw);
    AddHighOrderConv(draw);
    AddInqConv(draw);
  }
  const CpuExec one{
      [](int64_t count, int64_t, const CpuExec::Body& body) { body(0, count); }};
  std::vector<std::vector<Bytes>> alone(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const LaunchError error = runs[i].call(one, &alone[i]);
    if (!error.empty()) Fail(runs[i], error.text());
  }

  const CpuExec several{ThreeThreads};
  size_t starved = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (Starves(runs[i], several)) {
      ++starved;
      Compare(runs[i], several, alone[i]);
    }
  }

  std::atomic<bool> done = false;
  std::thread settings([&] {
    while (!done) {  // old plans become stale, and what runs is recorded
      tf_capsops_force_kernels("");
      tf_capsops_record_kernels(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      tf_capsops_recorded_kernels();
      tf_capsops_record_kernels(0);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const size_t from = t / 2 * runs.size() / (kThreads / 2);
      for (size_t i = 0; i < runs.size(); ++i) {
        const size_t at = (from + i) % runs.size();
        Compare(runs[at], several, alone[at]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  settings.join();
  std::printf("%zu runs alone and by each of %d threads, %zu of them without memory\n",
              runs.size(), kThreads, starved);
  if (starved == 0) std::fprintf(stderr, "nothing ran out of memory\n");
  return failures > 0 || starved == 0;
}

}  // namespace
}  // namespace capsops

// What Scratch allocates with.
void* operator new(size_t bytes, std::align_val_t alignment,
                   const std::nothrow_t&) noexcept {
  void* data = nullptr;
  if (capsops::starving) return nullptr;
  return posix_memalign(&data, static_cast<size_t>(alignment), bytes) == 0 ? data
                                                                           : nullptr;
}
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }

int main() { return capsops::Main(); }
