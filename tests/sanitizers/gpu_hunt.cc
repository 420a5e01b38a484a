// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Looks for results that vary from run to run. A chain of calls runs on one stream as
// in a framework: nothing waits between calls, they share a workspace, and each result
// is the next call's operand if it fits. Results and workspace are overwritten before
// each run.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/sanitizers/gpu_compare.h"
#include "tests/sanitizers/gpu_memory.h"

namespace capsops {
namespace {

constexpr int kCalls = 3;                   // calls per chain
constexpr int kAlone = 60, kCrowded = 240;  // runs of a chain, alone and with others
constexpr int kDraws = 30;  // attempts at drawing a problem that a path accepts

// A chain of calls, and the results of its first run.
class Chain {
 public:
  Chain(const HuntOptions& options, const std::vector<Path*>& paths, uint32_t seed)
      : options_(options), draw_(seed), different_(kCalls * sizeof(uint64_t)) {
    int64_t workspace = 0;
    for (Path* const path : paths) {
      calls_.emplace_back(path, Plan(path), draw_, stream_);
      workspace = std::max(workspace, calls_.back().call.workspace);
    }
    workspace_ = std::make_unique<Memory>(workspace);
    Check();
    Link();
    Run(true);
    for (const LoadedCall& call : calls_) {
      for (size_t t = 0; t < call.tensors.size(); ++t) {
        if (call.call.tensors[t].operand) continue;
        const Memory& first = first_.emplace_back(call.tensors[t].bytes());
        if (first.bytes() == 0) continue;
        Need(cudaMemcpyAsync(first.data(), call.tensors[t].data(), first.bytes(),
                             cudaMemcpyDefault, stream_),
             "copy");
      }
    }
    different_.Fill(0, stream_);
    Finish("first run");
  }

  // Runs the chain `times` times, and counts the bytes that differ from the first run's
  // results.
  void Repeat(int times, const char* how) {
    for (int i = 0; i < times; ++i) {
      Run(false);
      Compare();
    }
    Finish(how);
    const Bytes bytes = different_.Get(stream_);
    for (size_t c = 0; c < calls_.size(); ++c) {
      uint64_t different;
      std::memcpy(&different, bytes.data() + c * sizeof(different), sizeof(different));
      calls_[c].path->repeats += times;
      if (different == 0) continue;
      calls_[c].Fault(std::string(how) + ", " + std::to_string(different) +
                      " bytes of " + std::to_string(times) + " runs differ");
    }
    different_.Fill(0, stream_);
  }

 private:
  // Plans a random problem that the path accepts.
  Call Plan(Path* path) {
    for (int i = 0; i < kDraws; ++i) {
      Call call;
      if (path->draw(options_.exec, draw_, options_.most_work, &call).empty()) {
        return call;
      }
    }
    Call call;
    path->plan(options_.exec, draw_.Pick(path->accepted), &call);
    return call;
  }

  // Runs each call alone, and compares its results with the CPU's.
  void Check() {
    for (const LoadedCall& call : calls_) {
      call.FillResults(0xff, stream_);
      workspace_->Fill(0xff, stream_);
      call.Run(options_.exec, stream_, call.pointers, workspace_->data());
      Finish(call.text());
      std::string wrong;
      const double error = call.Error(call.Results(stream_), &wrong);
      call.path->worst = std::max(call.path->worst, error);
      if (!wrong.empty()) call.Fault(wrong);
    }
  }

  // Makes the first result of a call the first operand of the next one if it fits.
  void Link() {
    for (size_t c = 0; c < calls_.size(); ++c) {
      on_.push_back(calls_[c].pointers);
      if (c == 0) continue;
      const LoadedCall& before = calls_[c - 1];
      size_t result = 0;
      while (before.call.tensors[result].operand) ++result;
      const Tensor &from = before.call.tensors[result], &to = calls_[c].call.tensors[0];
      const bool aligned =
          reinterpret_cast<uintptr_t>(before.pointers[result]) % 16 == 0;
      if (aligned && from.widen == to.widen && from.count >= to.count) {
        on_[c][0] = before.pointers[result];
      }
    }
  }

  // Runs all calls, waiting for each one if `apart`.
  void Run(bool apart) {
    for (const LoadedCall& call : calls_) call.FillResults(0xff, stream_);
    workspace_->Fill(0xff, stream_);
    for (size_t c = 0; c < calls_.size(); ++c) {
      calls_[c].Run(options_.exec, stream_, on_[c], workspace_->data());
      if (apart) Finish(calls_[c].text());
    }
  }

  void Compare() {
    size_t first = 0;
    for (size_t c = 0; c < calls_.size(); ++c) {
      for (size_t t = 0; t < calls_[c].tensors.size(); ++t) {
        if (calls_[c].call.tensors[t].operand) continue;
        const Memory& tensor = calls_[c].tensors[t];
        CompareBytes(tensor.data(), first_[first++].data(), tensor.bytes(),
                     static_cast<unsigned long long*>(different_.data()) + c, stream_);
      }
    }
  }

  void Finish(const std::string& what) { Need(cudaStreamSynchronize(stream_), what); }

  const HuntOptions& options_;
  Source draw_;
  Stream stream_;
  std::vector<LoadedCall> calls_;
  std::vector<std::vector<void*>> on_;  // tensors of each call, after linking
  std::unique_ptr<Memory> workspace_;
  std::vector<Memory> first_;  // results of the first run
  Memory different_;
};

template <typename Do>
void InThreads(int threads, const Do& work) {
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) all.emplace_back([&, t] { work(t); });
  for (std::thread& thread : all) thread.join();
}

}  // namespace

void Hunt(const HuntOptions& options, const std::vector<Path*>& paths) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  Source draw(options.seed);
  std::vector<Path*> turn;  // the paths left in this pass over all, in random order
  int rounds = 0;
  for (; seconds() < options.seconds; ++rounds) {
    // A path is in at most one chain per round, so its counts need no lock.
    if (turn.size() < static_cast<size_t>(kCalls * options.threads)) {
      turn = paths;
      std::mt19937 order(options.seed + rounds);
      std::shuffle(turn.begin(), turn.end(), order);
    }
    std::vector<std::unique_ptr<Chain>> chains(options.threads);
    std::vector<std::vector<Path*>> of(options.threads);
    for (auto& chosen : of) {
      for (int c = 0; c < kCalls && !turn.empty(); ++c) {
        chosen.push_back(turn.back());
        turn.pop_back();
      }
    }
    const uint32_t seed = options.seed * 1000003 + rounds * options.threads;
    InThreads(options.threads, [&](int t) {
      chains[t] = std::make_unique<Chain>(options, of[t], seed + t);
    });
    for (auto& chain : chains) chain->Repeat(kAlone, "alone");
    InThreads(options.threads,
              [&](int t) { chains[t]->Repeat(kCrowded, "with other work"); });
    for (int t = 0; t < options.threads; ++t) {
      for (Path* const path : of[t]) ++path->runs;
    }
  }
  std::printf("hunt\t%d rounds of %d threads\n", rounds, options.threads);
}

}  // namespace capsops
