// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs every op on the CPU in every type, without a framework, for `make test
// SANITIZE=...`. Each random problem runs first alone and then from 8 threads, pairs of
// which run the same problem at the same time. The 8 threads share cached plans, and
// each splits its work among three of its own. Results must equal those of the first
// run bit by bit, even after calls that ran out of memory. Tensors are allocated with
// exactly their size, and aligned only as their type requires.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/sanitizers/problems.h"
#include "tests/sanitizers/small_problems.h"

#include "cc/cpu/dispatch/tasks.h"

namespace capsops {
namespace {

constexpr int kProblems = 40;       // problems per op
constexpr int64_t kMostWork = 3e5;  // most multiply-adds per problem
constexpr int kThreads = 8;

// If `starve`, allocations fail once a plan has its workspace: `starving` is then true.
std::atomic<bool> starve = false;
std::atomic<bool> starving = false;

// Supplies RunPlan with a plan's arguments. Operands are the same each time.
class Arguments {
 public:
  explicit Arguments(const Counts& counts) : counts_(counts) {}

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
      return kTopExponent;
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
  Counts counts_;
  std::vector<Bytes> tensors_;
  std::optional<Scratch> workspace_;
};

// An op on a problem. `call` sets the tensors unless it returns an error.
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

// Adds a run; `counts` are the elements of the plan's tensors.
template <typename Op, typename T>
void Add(const typename Op::Problem& problem, const Counts& counts) {
  static PlanCache<Op, T, CpuExec> plans;
  const auto call = [=](const CpuExec& exec, std::vector<Bytes>* tensors) {
    const auto plan = plans.Find(exec, problem);
    if (!plan->run) return plan->error;
    if (RecordsKernels()) RecordKernel(Op::kName, plan->kernel, plan->workspace);
    Arguments arguments(counts);
    const LaunchError error = RunPlan(arguments, *plan, exec);
    *tensors = arguments.TakeTensors();
    return error;
  };
  runs.push_back({Op::kName, call});
}

// Adds a problem's ops in every type.
template <typename Problem>
void Add(Source& draw) {
  const auto problem = DrawProblem<Problem>(draw, kMostWork);
  ForEachOp(problem, [&](auto op, const Counts& counts) {
#define CAPSOPS_ADD(T) Add<decltype(op), T>(problem, counts);
    CAPSOPS_FOR_EACH_TYPE(CAPSOPS_ADD)
#undef CAPSOPS_ADD
  });
}

void Compare(const Run& run, const CpuExec& exec, const std::vector<Bytes>& alone) {
  std::vector<Bytes> tensors;
  const LaunchError error = run.call(exec, &tensors);
  if (!error.empty()) Fail(run, error.text());
  if (tensors != alone) Fail(run, "other results than alone");
}

// Returns whether the run fails without memory, and checks that the error names the op.
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

// Splits the items among three threads, one of which is the caller's.
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
    Add<capsule_prediction::Problem>(draw);
    Add<capsule_routing::Problem>(draw);
    Add<inq_capsule_routing::Problem>(draw);
    Add<capsule_conv::Problem>(draw);
    Add<high_order_conv::Problem>(draw);
    Add<inq_conv::Problem>(draw);
    Add<inq_conv_int8::Problem>(draw);
    Add<inq_decode::Problem>(draw);
    Add<capsule_conv_routing::Problem>(draw);
    Add<capsule_moments::Problem>(draw);
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
    while (!done) {  // invalidates cached plans and records kernels
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

// Replacements for the allocation functions that Scratch calls.
void* operator new(size_t bytes, std::align_val_t alignment,
                   const std::nothrow_t&) noexcept {
  void* data = nullptr;
  if (capsops::starving) return nullptr;
  return posix_memalign(&data, static_cast<size_t>(alignment), bytes) == 0 ? data
                                                                           : nullptr;
}
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }

int main() { return capsops::Main(); }
