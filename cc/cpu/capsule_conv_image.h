// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Forward convolution and input gradient of the family `planes` (capsule_conv.h): lanes
// are pose rows of neighboring pixels and samples. A task computes rows of pixels of a
// few samples, and copies the image rows that these read to planes in a ring buffer.
//
// The input gradient is one convolution of grad with transposed weights for each phase
// of the input, because the pixels of a phase use the same taps and those of others do
// not. `place` is the index of such a phase; `phase` means a phase of the image that is
// read (capsule_conv_strip.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_strip.h"
#include "cc/cpu/register_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kRingBytes = 384 << 10;  // ring buffer, in the L2 cache
constexpr int64_t kSumsOfRow = 64 << 10;   // bytes of the sums of one piece of a row
constexpr int64_t kOutsideDivisor = 12;    // skip padding if over 1 lane in 12 reads it
constexpr int64_t kMinTasks = 16;          // fewest tasks if samples fill vectors
constexpr int64_t kTerms = 128;    // terms per partial sum in registers, at least
constexpr int64_t kFewTerms = 32;  // as kTerms, for gradients with few terms per tap
constexpr int64_t kTapTerms = 64;  // fewer terms per tap than this are few

// The division into tasks. A task computes rows of results from top to bottom. The ring
// buffer has `slots` rows of planes: the image rows that one row of results reads.
template <typename A, bool kGradient>
struct ImagePlan {
  explicit ImagePlan(const Problem& problem)
      : p(problem),
        from(kGradient ? OutputImage(p) : InputImage(p)),
        to(kGradient ? InputImage(p) : OutputImage(p)),
        planes(from.channels * from.columns),
        columns(to.channels * to.columns),
        taps(p.kernel_height * p.kernel_width) {
    const int64_t rest = columns % kColumns;
    padded = columns - rest +
             (rest == 0             ? 0
              : rest <= kFewColumns ? kFewColumns
                                    : kColumns);
    vectors = padded <= kFewColumns ? kFewVectors : kVectors;
    y_phases = kGradient ? Min(p.stride_height, p.in_height) : 1;
    x_phases = kGradient ? Min(p.stride_width, p.in_width) : 1;
    ring = runs = slots = 0;
    int64_t width = 0, reach = 0, phases = 1, most_taps = 0, rows = 0;
    bool outside = false;  // whether taps read padding left or right of the image
    for (int64_t place = 0; place < y_phases; ++place) {
      const Axis axis = AxisY(place);
      slots = Max(slots, Min(axis.reach() + 1, from.height));
      rows = Max(rows, axis.count);
      runs = Max(runs, axis.taps);
    }
    for (int64_t place = 0; place < x_phases; ++place) {
      const Axis axis = AxisX(place);
      width = Max(width, axis.count);
      reach = Max(reach, axis.reach());
      phases = Max(phases, Min(axis.taps, axis.period()));
      most_taps = Max(most_taps, axis.taps);
      const int64_t last = axis.lowest() + axis.reach() + (axis.count - 1) * axis.step;
      outside = outside || axis.lowest() < 0 || last >= from.width;
    }
    runs *= most_taps;
    const auto divide = [&](int64_t samples, bool whole) {
      sample_parts = CeilDivide(p.batch, samples);
      const int64_t pixel = samples * p.pose_rows;
      const int64_t pixel_bytes =
          slots * phases * p.pose_depth * RoundUp(planes, 4) * pixel * sizeof(A);
      const int64_t fit = kRingBytes / Max(pixel_bytes, 1) - reach;
      const int64_t block = Max(fit, CeilDivide(vectors * kLanes<A>, pixel));
      x_parts = CeilDivide(width, block);
      const int64_t places = y_phases * x_phases;
      const int64_t work = p.batch * to.height * to.width / places * p.pose_depth *
                           p.pose_rows * columns * planes * runs;
      // Limits how many image rows are read by two tasks.
      const int64_t again = 3 * Max(slots - AxisY(0).step, 0);
      y_parts =
          Min(CeilDivide(kTasks, places * sample_parts * x_parts), work / kTaskWork);
      y_parts = Max(Min(y_parts, rows / Max(again, 1)), 1);
      tasks = places * sample_parts * x_parts * y_parts;
      if (whole && tasks < kMinTasks) {
        const int64_t parts = Min(CeilDivide(kMinTasks, tasks), width / (2 * vectors));
        x_parts = Max(x_parts, parts);
        tasks = places * sample_parts * x_parts * y_parts;
      }
    };
    // If the samples of a pixel fill whole vectors, so do the zeros of the padding, and
    // taps can skip them.
    const int64_t together = Max(kLanes<A> / p.pose_rows, 1);
    const bool whole =
        outside && kLanes<A> % p.pose_rows == 0 && p.batch % together == 0;
    if (whole) divide(together, true);
    if (!whole || tasks < kMinTasks) {
      divide(SamplesOfTask(p, Min(width, from.width), kLanes<A>, vectors), false);
    }
    for (int64_t place = 0; place < x_phases; ++place) {
      const Axis axis = AxisX(place);
      const Strip<A> strip(p, from, axis, 0, CeilDivide(width, x_parts), 0,
                           CeilDivide(p.batch, sample_parts), 0, from.channels);
      ring = Max(ring, strip.row * slots);
    }
  }

  Axis AxisY(int64_t place) const { return ImageAxis<kGradient>(Vertical(p), place); }
  Axis AxisX(int64_t place) const { return ImageAxis<kGradient>(Horizontal(p), place); }
  int64_t packed() const { return p.pose_depth * taps * planes * padded; }
  // Returns the most vectors of each column that a task computes at a time.
  int64_t most_vectors() const {
    return Max(kSumsOfRow / (padded * kVectorBytes), vectors);
  }
  int64_t sums() const { return padded * most_vectors() * kLanes<A>; }

  const Problem& p;
  Image from, to;
  int64_t planes, columns, taps;
  int64_t padded;              // columns, rounded up to whole tiles
  int64_t vectors;             // most vectors per tile
  int64_t y_phases, x_phases;  // number of phases along each axis
  int64_t sample_parts, x_parts, y_parts, tasks;
  int64_t slots;  // rows in the ring buffer
  int64_t ring;   // elements of the ring buffer
  int64_t runs;   // most taps that a pixel uses
};

template <typename T, bool kGradient>
Division DivideImage(const Problem& p) {
  using A = Accumulator<T>;
  const ImagePlan<A, kGradient> plan(p);
  Division d;
  d.workspace = plan.packed() * sizeof(A);
  d.scratch = (plan.ring + plan.sums()) * sizeof(A) + plan.runs * sizeof(Run) +
              plan.slots * sizeof(int64_t);
  d.tasks = plan.tasks;
  d.weights_tasks = p.pose_depth * plan.taps * CeilDivide(plan.padded, kColumns);
  return d;
}

// Packs a tap's weights as [depth][tile of columns][tap][plane][column]. A task packs
// one tile of columns of one tap.
template <typename T, bool kGradient>
void PackWeights(const Problem& p, int64_t task, const T* weights, void* workspace) {
  using A = Accumulator<T>;
  const ImagePlan<A, kGradient> plan(p);
  const int64_t tap = task % plan.taps, tile = task / plan.taps;
  const int64_t tiles = CeilDivide(plan.padded, kColumns);
  const int64_t g = tile / tiles, first = tile % tiles * kColumns;
  const int64_t width = Min(kColumns, plan.padded - first);
  A* const to = static_cast<A*>(workspace) +
                ((g * plan.padded + first) * plan.taps + tap * width) * plan.planes;
  if (width == kColumns) {
    PackTile<T, kGradient, kColumns>(p, weights, g, first, to);
  } else {
    PackTile<T, kGradient, kFewColumns>(p, weights, g, first, to);
  }
}

// Adds the contributions of `count` taps (runs) to the sums of all columns, for a range
// of lanes, or sets the sums if `add` is false. `sums` begins with lane `first`.
template <typename A, bool kGradient>
void AddRuns(const ImagePlan<A, kGradient>& plan, const A* from, int64_t length,
             const A* weights, bool finite, const Run* runs, int64_t count,
             int64_t part_terms, const Range& lanes, bool add, int64_t first, A* sums,
             int64_t stride) {
  const int64_t plane_parts = CeilDivide(plan.planes, part_terms);
  const int64_t planes = CeilDivide(plan.planes, plane_parts);
  const int64_t run_parts = Min(CeilDivide(count * planes, part_terms), count);
  const int64_t vectors = (lanes.end - lanes.begin) / kLanes<A>;
  const int64_t tiles = CeilDivide(vectors, plan.vectors);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t vector = PartBegin(vectors, tile, tiles);
    const int64_t width = PartBegin(vectors, tile + 1, tiles) - vector;
    const int64_t lane = lanes.begin + vector * kLanes<A>;
    const auto all = AccumulateOf<A, kColumns>(Min(width, kVectors));
    const auto few = AccumulateOf<A, kFewColumns>(width);
    for (int64_t part = 0; part < plane_parts * run_parts; ++part) {
      const int64_t plane = part / run_parts * planes;
      const int64_t begin = PartBegin(count, part % run_parts, run_parts);
      const int64_t end = PartBegin(count, part % run_parts + 1, run_parts);
      const A* const x = from + plane * length + lane;
      const int64_t terms = Min(planes, plan.planes - plane);
      for (int64_t n = 0; n < plan.padded; n += kColumns) {
        const int64_t columns = Min(kColumns, plan.padded - n);
        const A* const w = weights + n * plan.taps * plan.planes + plane * columns;
        A* const to = sums + n * stride + lane - first;
        if (!finite) {
          AccumulateInside(x, length, w, columns, runs + begin, end - begin, terms,
                           add || part > 0, lane, width * kLanes<A>, to, stride);
        } else {
          (columns <= kFewColumns ? few : all)(x, length, w, runs + begin, end - begin,
                                               terms, add || part > 0, to, stride);
        }
      }
    }
  }
}

// Computes the sums of all columns for a range of lanes, as [column][lane]. With
// by_window, only the lanes in which a run reads inside the image, rounded up to whole
// vectors, are multiplied. Runs with the same such lanes must be neighbors.
template <typename A, bool kGradient>
void Multiply(const ImagePlan<A, kGradient>& plan, const A* from, int64_t length,
              const A* weights, bool finite, bool by_window, const Run* runs,
              int64_t count, const Range& lanes, A* sums) {
  // A sum of many terms is divided into partial sums. Rounding errors grow with the
  // terms of a partial sum and with the number of partial sums, so both are kept near
  // the square root of all terms. Gradients with few terms per tap have shorter partial
  // sums, to be as accurate as plain TensorFlow, which sums each tap separately.
  const bool few = kGradient && plan.planes < kTapTerms;
  int64_t part_terms = few ? Max(kFewTerms, plan.planes) : kTerms;
  while (part_terms * part_terms < count * plan.planes) part_terms *= 2;
  const int64_t stride = lanes.end - lanes.begin;
  bool add = false;
  const Run* const end = runs + count;
  for (const Run* next = runs; runs < end; runs = next) {
    while (next < end &&
           (!by_window || (next->begin == runs->begin && next->end == runs->end))) {
      ++next;
    }
    const int64_t begin = by_window ? Max(runs->begin, lanes.begin) : lanes.begin;
    const int64_t used = (by_window ? Min(runs->end, lanes.end) : lanes.end) - begin;
    if (used <= 0) continue;
    const int64_t whole = RoundUp(used, kLanes<A>);
    const int64_t first = Min(begin, lanes.end - whole);
    if (!add && whole < stride) {
      std::memset(sums, 0, plan.padded * stride * sizeof(A));
      add = true;
    }
    AddRuns(plan, from, length, weights, finite, runs, next - runs, part_terms,
            {first, first + whole}, add, lanes.begin, sums, stride);
    add = true;
  }
  if (!add) std::memset(sums, 0, plan.padded * stride * sizeof(A));
}

// Computes one task: some rows and columns of pixels of one phase, for some samples.
template <typename T, bool kGradient>
void RunImage(const Problem& p, int64_t task, const T* from, const void* workspace,
              T* to, void* scratch) {
  using A = Accumulator<T>;
  const ImagePlan<A, kGradient> plan(p);
  const int64_t x_part = task % plan.x_parts;
  task /= plan.x_parts;
  const int64_t y_part = task % plan.y_parts;
  task /= plan.y_parts;
  const int64_t sample_part = task % plan.sample_parts;
  const int64_t place = task / plan.sample_parts;
  const Axis y_axis = plan.AxisY(place / plan.x_phases);
  const Axis x_axis = plan.AxisX(place % plan.x_phases);
  const int64_t x_begin = PartBegin(x_axis.count, x_part, plan.x_parts);
  const int64_t x_end = PartBegin(x_axis.count, x_part + 1, plan.x_parts);
  const int64_t sample = PartBegin(p.batch, sample_part, plan.sample_parts);
  const int64_t samples =
      PartBegin(p.batch, sample_part + 1, plan.sample_parts) - sample;
  if (x_begin == x_end) return;
  const Strip<A> strip(p, plan.from, x_axis, x_begin, x_end, sample, samples, 0,
                       plan.from.channels);
  Target target{sample,        samples,    0, x_axis.first + x_begin * x_axis.stride,
                x_axis.stride, strip.lanes};
  A* const ring = static_cast<A*>(scratch);
  A* const sums = ring + plan.ring;
  Run* const runs = reinterpret_cast<Run*>(sums + plan.sums());
  // The image row that each slot of the ring buffer holds.
  int64_t* const rows = reinterpret_cast<int64_t*>(runs + plan.runs);
  for (int64_t slot = 0; slot < plan.slots; ++slot) rows[slot] = -1;
  const A* const packed = static_cast<const A*>(workspace);
  const bool finite = strip.InsideEverywhere() || AreFinite(packed, plan.packed());

  const int64_t vectors = CeilDivide(strip.lanes, kLanes<A>);
  // Skipping padding processes one tap at a time, so it needs longer pieces of a row.
  // It always pays off if padding fills whole vectors.
  const int64_t least =
      strip.pixel % kLanes<A> == 0 ? 0 : strip.lanes * strip.taps / kOutsideDivisor;
  const bool by_window = strip.Outside() > least;
  const int64_t pieces =
      CeilDivide(vectors, by_window ? plan.most_vectors() : plan.vectors);
  const int64_t y_end = PartBegin(y_axis.count, y_part + 1, plan.y_parts);
  for (int64_t t = PartBegin(y_axis.count, y_part, plan.y_parts); t < y_end; ++t) {
    int64_t count = 0;
    for (int64_t k = 0; k < y_axis.taps * x_axis.taps; ++k) {
      const int64_t i = by_window ? k % y_axis.taps : k / x_axis.taps;
      const int64_t j = by_window ? k / y_axis.taps : k % x_axis.taps;
      const int64_t y = t * y_axis.step + y_axis.offset + i * y_axis.delta;
      if (y < 0 || y >= plan.from.height) continue;
      const int64_t slot = y % plan.slots;
      if (rows[slot] != y) {
        FillRow(p, plan.from, strip, from, y, ring + slot * strip.row);
      }
      rows[slot] = y;
      const int64_t tap = (y_axis.tap_first + i * y_axis.tap_step) * p.kernel_width +
                          x_axis.tap_first + j * x_axis.tap_step;
      runs[count++] = {slot * strip.row + strip.TapBegin(j), tap * plan.planes,
                       strip.InsideBegin(j), strip.InsideEnd(j)};
    }
    target.y = y_axis.first + t * y_axis.stride;
    for (int64_t g = 0; g < p.pose_depth; ++g) {
      const A* const weights = packed + g * plan.padded * plan.taps * plan.planes;
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const Range lanes{PartBegin(vectors, piece, pieces) * kLanes<A>,
                          PartBegin(vectors, piece + 1, pieces) * kLanes<A>};
        Multiply(plan, ring + g * strip.planes * strip.length, strip.length, weights,
                 finite, by_window, runs, count, lanes, sums);
        WriteLanes(p, plan.to, target, g, lanes.begin, lanes.end - lanes.begin, sums,
                   to);
      }
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
