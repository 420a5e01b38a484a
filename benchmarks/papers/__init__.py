# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and charts of other papers, measured beside ours.

`python -m benchmarks.papers`, run in the source tree, measures them. A paper is a
module with `OP`, the op that it computes; `DEVICES`, the types of device that it is
measured on; `run(device, repeat)`, which yields results; `table(result)`; and
`draw(results, path)` if it has charts.
"""
