# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and charts of other papers, measured next to ours.

`python -m benchmarks.papers`, run in the source tree, measures them. A paper is a
module with:

- `OP`, the op that it computes, and `DEVICES`, the types of device that it is measured
  on;
- `run(device, repeat)`, which yields results: dictionaries that JSON can hold, with a
  row for each method under `methods`. A module of several parts has `PARTS` instead, a
  mapping from names to such functions; one that has nothing for a device yields
  nothing. `report.py` adds to each result its `part`, its `device`, and `run`: the
  commit, the machine, the date and the command;
- `tables(results)`, which yields the tables of docs/papers.md by name: pairs of a name
  and what `report.table` returns. The results may be any of the paper's, in any order,
  or none: the published numbers are in the module, and their columns are always there;
- `draw(results, path)`, if it has charts, likewise.
"""
