// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs every kernel path of every op and type on the GPU, each forced by name, without
// a framework. gpu_checks.py runs this under compute-sanitizer's tools.
//   gpu_launchers plan                 plans each path's problems; needs no GPU if
//                                      TF_CAPSOPS_DEVICE describes one
//   gpu_launchers check [bare]         runs each path at the edges of all tiles. Unless
//                                      `bare`, runs it twice on overwritten memory, and
//                                      compares it with the CPU in double precision
//   gpu_launchers hunt SECONDS THREADS runs gpu_hunt.cc
// Options follow as NAME=VALUE: seed (1), work (most multiply-adds of a problem),
// problems (most problems of a path, spread over all), shard and shards, and op (a
// prefix of the ops to run). Fails if a result is wrong, or if a path rejects every
// problem only for its sizes.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/sanitizers/gpu_coverage.h"
#include "tests/sanitizers/gpu_memory.h"
#include "tests/sanitizers/gpu_paths.h"

namespace capsops {
namespace {

struct Item {
  Path* path;
  size_t problem;
};

// Divides the items into `shards` sequences that take about equally long, and returns
// one of them. Items of a path stay together because tools take long over each new
// kernel.
std::vector<Item> Share(std::vector<Path>& paths, size_t most, int64_t shard,
                        int64_t shards) {
  // Routing launches many kernels, so it takes several times as long under the tools.
  const auto cost = [](const Item& item) {
    return (item.path->linear() ? 1 : 5) * (1 + item.path->work(item.problem) * 1e-6);
  };
  std::vector<Item> all, share;
  double total = 0, before = 0;
  for (Path& path : paths) {
    const size_t count = std::min(most, path.accepted.size());
    for (size_t i = 0; i < count; ++i) {
      all.push_back({&path, path.accepted[i * path.accepted.size() / count]});
      total += cost(all.back());
    }
  }
  for (const Item& item : all) {
    if (static_cast<int64_t>(before / total * shards) == shard) share.push_back(item);
    before += cost(item);
  }
  return share;
}

// Prints and counts the paths that reject every problem, and only for its sizes.
int PathsWithoutProblems(const std::vector<Path>& paths) {
  int missing = 0;
  for (const Path& path : paths) {
    const bool none =
        path.accepted.empty() &&
        std::none_of(path.refusals.begin(), path.refusals.end(), RefusesAll);
    if (!none) continue;
    ++missing;
    std::fprintf(stderr, "%s: no problem reaches it\n", path.name().c_str());
  }
  return missing;
}

void Check(const GpuExec& exec, const Item& item, bool bare, cudaStream_t stream) {
  Call planned;
  if (!item.path->plan(exec, item.problem, &planned).empty()) std::abort();  // a bug
  Source draw(item.problem);
  const LoadedCall call(item.path, std::move(planned), draw, stream);
  const Memory workspace(call.call.workspace);
  std::vector<Bytes> first;
  for (const int byte : {0xff, 0x3c}) {
    if (!bare) call.FillResults(byte, stream);
    if (!bare || item.path->stores_bulks()) workspace.Fill(byte, stream);
    call.Run(exec, stream, call.pointers, workspace.data());
    Need(cudaStreamSynchronize(stream), call.text());
    std::vector<Bytes> results = call.Results(stream);
    if (bare) break;
    if (byte == 0xff) {
      first = std::move(results);
    } else if (results != first) {
      call.Fault("a second run differs");
    }
  }
  ++item.path->runs;
  if (bare) return;
  if (!call.OperandsUnchanged(stream)) call.Fault("an operand was written");
  std::string wrong;
  item.path->worst = std::max(item.path->worst, call.Error(first, &wrong));
  if (!wrong.empty()) call.Fault(wrong);
}

// Prints lines that gpu_checks.py reads and adds up.
int64_t Report(const std::vector<Path>& paths) {
  int64_t faults = 0;
  for (const Path& path : paths) {
    std::printf("path\t%s\t%lld\t%lld\t%zu\t%zu\t%lld\t%.2g\n", path.name().c_str(),
                static_cast<long long>(path.runs), static_cast<long long>(path.repeats),
                path.accepted.size(), path.problems - path.accepted.size(),
                static_cast<long long>(path.faults), path.worst);
    faults += path.faults;
  }
  for (const auto& [name, launched] : LaunchedKernels()) {
    std::printf("kernel\t%d\t%s\n", launched, name.c_str());
  }
  return faults;
}

int Main(const std::vector<std::string>& words, const std::string& op,
         std::map<std::string, double> numbers) {
  const std::string mode = words.empty() ? "" : words[0];
  const bool hunt = mode == "hunt";
  if ((mode != "plan" && mode != "check" && !hunt) || (hunt && words.size() != 3)) {
    std::fprintf(stderr, "plan, check [bare], or hunt SECONDS THREADS\n");
    return 2;
  }
  GpuExec exec;
  bool pretended;
  LaunchError error = mode == "plan" ? PretendDevice(&exec.device, &pretended)
                                     : DescribeDevice(&exec.device);
  if (!error.empty()) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return 2;
  }
  const auto work = static_cast<int64_t>(numbers["work"]);
  const auto seed = static_cast<uint32_t>(numbers["seed"]);
  std::vector<Path> paths = AllPaths(exec, op, seed, work);
  if (paths.empty()) {
    std::fprintf(stderr, "no op's name begins with %s\n", op.c_str());
    return 2;
  }
  const int missing = PathsWithoutProblems(paths);
  if (hunt) {
    std::vector<Path*> able;
    for (Path& path : paths) {
      if (!path.accepted.empty()) able.push_back(&path);
    }
    Hunt({exec, std::stod(words[1]), seed, std::stoi(words[2]), work}, able);
  } else if (mode == "check") {
    const Stream stream;
    for (const Item& item : Share(paths, static_cast<size_t>(numbers["problems"]),
                                  static_cast<int64_t>(numbers["shard"]),
                                  static_cast<int64_t>(numbers["shards"]))) {
      Check(exec, item, words.size() > 1, stream);
    }
  }
  const int64_t faults = Report(paths);
  if (mode != "plan") Need(cudaDeviceReset(), "the end");  // memcheck looks for leaks
  return faults > 0 || missing > 0;
}

}  // namespace
}  // namespace capsops

int main(int count, char** arguments) {
  std::vector<std::string> words;
  std::string op;
  std::map<std::string, double> numbers = {
      {"seed", 1}, {"work", 1e7}, {"problems", 1e9}, {"shard", 0}, {"shards", 1}};
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      words.push_back(word);
    } else if (word.substr(0, equals) == "op") {
      op = word.substr(equals + 1);
    } else {
      numbers[word.substr(0, equals)] = std::stod(word.substr(equals + 1));
    }
  }
  return capsops::Main(words, op, numbers);
}
