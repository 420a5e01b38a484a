// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Lists every kernel path of every op and type, as the library names them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/sanitizers/gpu_call.h"
#include "tests/sanitizers/gpu_problems.h"

namespace capsops {

// A kernel path of an op in a type.
struct Path {
  std::string op, type, kernel;
  bool tf32;
  double tolerance;  // relative error allowed; see Tolerance()
  size_t problems;   // number of problems that were tried
  // `plan` plans a problem by its index; `draw` draws one of at most `most_work`.
  std::function<LaunchError(const GpuExec&, size_t problem, Call*)> plan;
  std::function<LaunchError(const GpuExec&, Source&, int64_t most_work, Call*)> draw;
  std::function<int64_t(size_t problem)> work;

  std::vector<size_t> accepted;    // indices of problems
  std::set<std::string> refusals;  // reasons for rejecting the others
  int64_t runs = 0, repeats = 0, faults = 0;
  double worst = 0;  // largest error, as a multiple of the tolerance

  std::string name() const {
    return op + "\t" + type + (tf32 ? " tf32" : "") + "\t" + kernel;
  }
  bool linear() const {
    return op.find("Routing") == std::string::npos &&
           op.find("Moment") == std::string::npos;
  }
  // Whether the path writes the workspace with asynchronous bulk stores, which
  // initcheck does not see.
  bool stores_bulks() const {
    return op == "CapsuleConvBackpropWeights" && kernel == "wgmma";
  }
  // Whether tensors must be aligned to 16 bytes.
  bool aligned() const { return op.find("Prediction") == std::string::npos; }
};

inline const char* TypeName(const float*) { return "float32"; }
inline const char* TypeName(const double*) { return "float64"; }
inline const char* TypeName(const Float16*) { return "float16"; }
inline const char* TypeName(const BFloat16*) { return "bfloat16"; }

// The allowed difference from the result in double precision. It is relative to the sum
// of the terms' magnitudes for ops that are linear in each operand, and to the largest
// result for routing and moments.
inline double Tolerance(const Path& path) {
  const bool rounded = path.tf32 && path.kernel != "fma";
  if (!path.linear()) {
    return path.type == "float64"               ? 1e-11
           : path.type == "float32" && !rounded ? 1e-4
                                                : 1e-1;
  }
  if (path.type == "float64") return 1e-14;
  if (path.type == "float32") return rounded ? 1.1e-3 : 3e-6;
  // Some kernels store the convolution before they add the bias.
  const int roundings = path.op == "CapsuleConvBiasRelu" ? 2 : 1;
  return roundings * (path.type == "float16" ? 6e-4 : 4.5e-3);
}

// Plans with a kernel forced. The choice is global, so a lock serializes the threads.
inline LaunchError PlanForced(const std::string& op, const std::string& kernel,
                              const std::function<LaunchError()>& plan) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  tf_capsops_force_kernels((op + "=" + kernel).c_str());
  LaunchError error = plan();
  tf_capsops_force_kernels("");
  return error;
}

// Returns the names of kernels that an error about an unknown one lists.
inline std::vector<std::string> ListedKernels(const std::string& error) {
  const std::string before = "but the kernels are ";
  std::vector<std::string> names;
  for (size_t at = error.find(before); at != std::string::npos;) {
    const size_t begin = at == error.find(before) ? at + before.size() : at + 2;
    at = error.find(", ", begin);
    names.push_back(error.substr(begin, at - begin));
  }
  return names;
}

// Whether the results of an op depend on GpuExec::tf32.
template <typename Problem>
constexpr bool kReadsTf32 = !std::is_same_v<Problem, capsule_prediction::Problem> &&
                            !std::is_same_v<Problem, high_order_conv::Problem>;

template <typename Op>
Counts CountsOf(const typename Op::Problem& p) {
  Counts found;
  ForEachOp(p, [&](auto op, const Counts& counts) {
    if constexpr (std::is_same_v<decltype(op), Op>) found = counts;
  });
  return found;
}

template <typename Op, typename T>
void AddPaths(const GpuExec& any,
              const std::shared_ptr<std::vector<typename Op::Problem>>& problems,
              std::vector<Path>* paths) {
  using Problem = typename Op::Problem;
  const auto plan = [](GpuExec exec, bool tf32, const std::string& kernel,
                       const Problem& p, Call* call) {
    exec.tf32 = tf32;
    const Counts counts = CountsOf<Op>(p);
    if (counts.empty()) return LaunchError("the op has no such problem");
    return PlanForced(Op::kName, kernel,
                      [&] { return MakeCall<Op, T>(exec, p, counts, call); });
  };
  Call none;
  const LaunchError unknown = plan(any, false, "?", problems->front(), &none);
  for (const std::string& kernel : ListedKernels(unknown.text())) {
    for (const bool tf32 : {false, true}) {
      if (tf32 && !(std::is_same_v<T, float> && kReadsTf32<Problem>)) continue;
      Path path;
      path.op = Op::kName;
      path.type = TypeName(static_cast<const T*>(nullptr));
      path.kernel = kernel;
      path.tf32 = tf32;
      path.tolerance = Tolerance(path);
      path.problems = problems->size();
      path.plan = [=](const GpuExec& exec, size_t problem, Call* call) {
        return plan(exec, tf32, kernel, (*problems)[problem], call);
      };
      path.draw = [=](const GpuExec& exec, Source& draw, int64_t most_work,
                      Call* call) {
        return plan(exec, tf32, kernel, DrawAny<Problem>(draw, most_work), call);
      };
      path.work = [=](size_t problem) { return Work((*problems)[problem]); };
      paths->push_back(path);
    }
  }
}

template <typename Problem>
void AddPathsOf(const GpuExec& any, Source& draw, int64_t most_work,
                std::vector<Path>* paths) {
  const auto problems =
      std::make_shared<std::vector<Problem>>(Edges<Problem>(draw, most_work));
  ForEachOp(problems->front(), [&](auto op, const Counts&) {
#define CAPSOPS_ADD(T) AddPaths<decltype(op), T>(any, problems, paths);
    CAPSOPS_FOR_EACH_TYPE(CAPSOPS_ADD)
#undef CAPSOPS_ADD
  });
}

// Whether a path rejects the type, TF32 or the device rather than sizes. Such a path
// may accept no problem at all.
inline bool RefusesAll(const std::string& why) {
  for (const char* const text :
       {"it has no products of double", "T is double", "T is float64",
        "it makes no gradient of the input", "TF32 is not allowed",
        "it needs compute capability 9.0"}) {
    if (why.find(text) != std::string::npos) return true;
  }
  return false;
}

// Returns all paths of ops whose names begin with `op`, with the problems they accept.
inline std::vector<Path> AllPaths(const GpuExec& exec, const std::string& op,
                                  uint32_t seed, int64_t most_work) {
  Source draw(seed);
  std::vector<Path> paths;
  AddPathsOf<capsule_prediction::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<capsule_routing::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<inq_capsule_routing::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<capsule_conv_routing::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<capsule_moments::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<capsule_conv::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<high_order_conv::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<inq_conv::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<inq_conv_int8::Problem>(exec, draw, most_work, &paths);
  AddPathsOf<inq_decode::Problem>(exec, draw, most_work, &paths);
  const auto other = [&](const Path& path) { return path.op.rfind(op, 0) != 0; };
  paths.erase(std::remove_if(paths.begin(), paths.end(), other), paths.end());
  for (Path& path : paths) {
    for (size_t i = 0; i < path.problems; ++i) {
      Call call;
      const LaunchError error = path.plan(exec, i, &call);
      if (error.empty()) {
        path.accepted.push_back(i);
      } else {
        const std::string before = "cannot do this because ";
        const size_t at = error.text().find(before);
        path.refusals.insert(at == std::string::npos
                                 ? error.text()
                                 : error.text().substr(at + before.size()));
      }
    }
  }
  return paths;
}

}  // namespace capsops
