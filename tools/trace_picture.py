# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws one step of a trace of TensorFlow's profiler: who computed what, and when.

docs/profiling.md says how to take a trace. Needs matplotlib and TensorFlow.
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import sys

# Namespaces have two colons; an op has one, before its type.
_OP = re.compile(r"(?P<path>[^:\s]+):(?P<type>_?[A-Z]\w*)")
_KINDS = {
    "ops of tf_capsops": ("#c0262d", r"Capsule|HighOrder|Inq|capsops"),
    "products and convolutions": ("#2a6fbb", r"MatMul|Conv2D|gemm|cudnn|cutlass"),
    "updates of weights": ("#d9772b", r"Assign|Adam"),
    "the rest": ("#999999", r""),
}
_LINES = 6  # threads or streams, those that compute longest


@dataclasses.dataclass(frozen=True)
class Event:
    """An op or a kernel: its line in the trace, name, type and times in us."""

    line: str
    name: str
    type: str
    begin: float
    end: float


def read(folder):
    """Returns the events of the newest trace in a folder: a GPU's, or the CPU's ops.

    Raises:
      ValueError: if there is no trace, or none of its events is an op or a kernel.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    paths = pathlib.Path(folder).rglob("*.xplane.pb")
    path = max(paths, key=lambda each: each.stat().st_mtime, default=None)
    if path is None:
        raise ValueError(f"no trace in {folder}: there is no *.xplane.pb below it")
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    gpu = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    planes = gpu or [plane for plane in space.planes if plane.name == "/host:CPU"]
    events = [event for plane in planes for event in _events(plane, bool(gpu))]
    if not events:
        raise ValueError(f"{path} has no ops")
    return sorted(events, key=lambda event: event.begin)


def _events(plane, gpu):
    for line in plane.lines:
        if gpu and "Stream" not in line.name:
            continue
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name
            op = _OP.fullmatch(name)
            if not gpu and not op:
                continue
            begin = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
            yield Event(
                line=f"{plane.name.removeprefix('/')} {line.name}",
                name=op["path"] if op else name,
                type=op["type"]
                if op
                else re.split(r"[<(]", name.removeprefix("void "))[0],
                begin=begin,
                end=begin + event.duration_ps / 1e6,
            )


def step(events, marker):
    """Returns the events from one call of an op to its next, of the last such pair.

    Args:
      events: sorted by their beginnings.
      marker: a regular expression that finds a name or a type once a step.

    Raises:
      ValueError: if there are not two such calls.
    """
    found = [e.begin for e in events if re.search(marker, f"{e.name}:{e.type}")]
    if len(found) < 2:
        raise ValueError(
            f"{len(found)} events match {marker!r}; the picture goes from one to the "
            "next: trace two steps or more, or give another --marker"
        )
    begin, end = found[-2:]
    return [event for event in events if begin <= event.begin < end]


def _color(event):
    for color, pattern in _KINDS.values():
        if re.search(pattern, f"{event.name}:{event.type}"):
            return color


def _spent(events, key):
    """Returns the time of the events of each key, the longest first."""
    spent = collections.Counter()
    for event in events:
        spent[key(event)] += event.end - event.begin
    return spent.most_common()


def draw(events, path):
    """Draws a step to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 5.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    timeline, types = figure.subplots(2, 1, height_ratios=[1, 1.4])
    begin = min(event.begin for event in events)
    width = max(event.end for event in events) - begin
    lines = [line for line, _ in _spent(events, lambda event: event.line)][:_LINES]
    for event in events:
        if event.line not in lines:
            continue
        row, length = lines.index(event.line), event.end - event.begin
        timeline.barh(
            row, length, left=event.begin - begin, height=0.8, color=_color(event)
        )
        if length > 0.09 * width:
            middle = event.begin - begin + length / 2
            timeline.text(
                middle, row, event.type[:22], ha="center", va="center", fontsize=6
            )
    timeline.set_yticks(range(len(lines)), [line.split("/")[0] for line in lines])
    timeline.invert_yaxis()
    timeline.set_xlabel("us")
    shown = _spent(events, lambda event: event.type)[:12]
    colors = {event.type: _color(event) for event in events}
    names = [name for name, _ in shown]
    bars = types.barh(names, [us for _, us in shown], color=[colors[n] for n in names])
    types.bar_label(bars, fmt=" {:.0f} us", fontsize=8)
    types.invert_yaxis()
    types.set_xlabel("us in a step, of all lines")
    handles = [Patch(color=color, label=name) for name, (color, _) in _KINDS.items()]
    types.legend(handles=handles, loc="lower right", frameon=False)
    for axes in (timeline, types):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.savefig(path, metadata={"Software": None})


def main(argv=None):
    """Draws the trace that the arguments name. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the trace was written, as TensorBoard's")
    parser.add_argument(
        "--marker",
        default=":CapsuleRoutingWithSums$",
        help="a regular expression that finds one op or kernel of each step "
        "(default: routing, forward, on a CPU)",
    )
    parser.add_argument("--output", default="trace.png")
    args = parser.parse_args(argv)
    try:
        draw(step(read(args.folder), args.marker), args.output)
    except ValueError as error:
        print(f"trace_picture.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
