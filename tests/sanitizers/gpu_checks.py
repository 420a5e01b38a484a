# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs every GPU kernel under compute-sanitizer's tools, and looks for varying results.

    make gpu-checks ARGS="--tools memcheck,racecheck --seconds 1500"

All is done in shares, several at a time. Each writes its outcome into --out when it is
done, so that a later call goes on where one ended: a GPU may be lent for minutes. A
host without compilers needs this file and build/tests/sanitizers/gpu_launchers, which
`make build/tests/sanitizers/gpu_launchers CUDA_ARCHS=90` builds anywhere, and no
package.

The tools are those of compute-sanitizer and these: "values" compares all results with
the CPU's, and with those of a second run, "values-..." also with plans for other GPUs;
"hunt" repeats calls thousands of times, alone and beside others
(tests/sanitizers/gpu_hunt.cc).

Exits with 1 where something was found, and 2 where shares are missing. Reports that are
not so (KNOWN says why) are counted by themselves.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

SANITIZERS = {
    "memcheck": ["--leak-check", "full"],
    "initcheck": [],
    "synccheck": [],
    "racecheck": [],
}
# What plans are made for: this GPU, few processors, and two with less shared memory.
DEVICES = {
    "values": "",
    "values-few": "processors=3",
    "values-8.0": "capability=80,shared=166912,processor_shared=167936,processors=108",
    "values-8.6": "capability=86,shared=101376,processor_shared=102400,processors=84",
}
TOOLS = (*DEVICES, *SANITIZERS, "hunt")
# Of the lines of a report, what makes it one that is not so, and why.
KNOWN = {
    "racecheck": {
        # After a __syncthreads() it writes where others read before, of which racecheck
        # loses track if warps have met at named barriers a different number of times: a
        # kernel of twenty lines that does no more is reported as well.
        "capsule_routing::mma::StorePartial": "named barriers before __syncthreads()",
    },
}
SUMMARY = re.compile(
    r"ERROR SUMMARY: (\d+) error|"
    r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?"
)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driver", help="build/tests/sanitizers/gpu_launchers")
    parser.add_argument("--tools", default=",".join(TOOLS), help="default: %(default)s")
    parser.add_argument("--op", default="", help="only ops whose names begin with this")
    parser.add_argument("--shards", type=int, default=32, help="shares of a tool")
    parser.add_argument("--shard", help="only this share, as 3/32")
    parser.add_argument("--jobs", type=int, default=8, help="shares at a time")
    parser.add_argument("--seconds", type=float, default=1500, help="for all")
    parser.add_argument("--hunt-seconds", type=float, default=60, help="of each share")
    parser.add_argument("--threads", type=int, default=8, help="of the hunt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", default="1e7", help="multiply-adds of a problem")
    parser.add_argument("--problems", default="1e9", help="of each path, at most")
    parser.add_argument("--out", default="build/gpu_checks", help="folder of outcomes")
    options = parser.parse_args()
    options.out = pathlib.Path(options.out)
    options.tools = options.tools.split(",")
    if unknown := set(options.tools) - set(TOOLS):
        parser.error(f"no such tool: {', '.join(sorted(unknown))}")
    options.only = range(options.shards)
    if options.shard:
        index, count = map(int, options.shard.split("/"))
        options.only, options.shards = [index], count
    return options


def _command(options, tool, shard):
    numbers = [f"work={options.work}", f"problems={options.problems}"]
    numbers += [f"op={options.op}"] * bool(options.op)
    if tool == "hunt":
        hunt = ["hunt", str(options.hunt_seconds), str(options.threads)]
        return [options.driver, *hunt, f"seed={options.seed + shard}", *numbers]
    numbers += [f"seed={options.seed}", f"shard={shard}", f"shards={options.shards}"]
    if tool in DEVICES:
        return [options.driver, "check", *numbers]
    sanitizer = shutil.which("compute-sanitizer") or "compute-sanitizer"
    tool_options = ["--tool", tool, "--print-limit", "1000", *SANITIZERS[tool]]
    return [sanitizer, *tool_options, options.driver, "check", "bare", *numbers]


def _reports(tool, lines):
    """Returns how many reports a tool made, without those that are known, and those."""
    text = "\n".join(lines)
    made = sum(int(n or 0) for numbers in SUMMARY.findall(text) for n in numbers)
    known = sum(
        any(mark in report for mark in KNOWN.get(tool, ()))
        for report in text.split("========= \n")
    )
    return made - known, known


class _Share:
    """A share of what a tool has to do.

    Attributes:
        name: Of its file, without an ending.
        command: What runs it.
        key: What its outcome depends on.
    """

    def __init__(self, options, tool, shard, digest):
        name = f"{tool}-{shard}-of-{options.shards}"
        self.name = f"{options.op}-{name}" if options.op else name
        self.command = _command(options, tool, shard)
        self.key = [digest, *self.command[1:]]
        self._path = options.out / f"{self.name}.json"

    def outcome(self):
        """Returns the outcome, or None where there is none of this key."""
        if not self._path.exists():
            return None
        outcome = json.loads(self._path.read_text())
        return outcome if outcome["key"] == self.key else None

    def write(self, outcome):
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps(outcome))
        unfinished.rename(self._path)


def _run(options, tool, shard, digest, end):
    """Runs a share unless its outcome is there, or there is no time."""
    share = _Share(options, tool, shard, digest)
    device = DEVICES.get(tool)
    environment = {**os.environ, **({"TF_CAPSOPS_DEVICE": device} if device else {})}
    if share.outcome():
        return
    begin = time.time()
    if begin > end:
        return
    try:
        ran = subprocess.run(
            share.command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=end - begin,
        )
    except subprocess.TimeoutExpired:
        return
    paths, launched, other = [], [], []
    for line in ran.stdout.splitlines():
        kind, *fields = line.split("\t")
        if kind == "path" and len(fields) == 9:
            paths.append(fields)
        elif kind == "kernel":
            launched.append(fields)
        else:
            other.append(line)
    found, known = _reports(tool, other)
    faults = sum(int(fields[7]) for fields in paths)
    outcome = {
        "key": share.key,
        "seconds": round(time.time() - begin, 1),
        "code": ran.returncode,
        "findings": found + faults or int(ran.returncode != 0),
        "known": known,
        "paths": paths,
        "kernels": launched,
        "log": other[-2000:],
    }
    share.write(outcome)
    print(
        f"{share.name}: {outcome['findings']} findings, {outcome['seconds']} s",
        flush=True,
    )


def _summary(options, digest):
    """Prints a table of all outcomes, and returns the exit code."""
    findings = missing = 0
    paths = collections.defaultdict(lambda: [0, 0, 0, 0, 0, 0.0])
    kernels = collections.Counter()
    print(f"{'tool':10} shares  runs      repeats    findings  known  seconds")
    for tool in options.tools:
        shares = [_Share(options, tool, shard, digest) for shard in options.only]
        outcomes = [outcome for share in shares if (outcome := share.outcome())]
        runs = repeats = 0
        for outcome in outcomes:
            for *name, ran, again, accepted, refused, faults, worst in outcome["paths"]:
                row = paths["\t".join(name)]
                row[0] += int(ran)
                row[1] += int(again)
                row[2:4] = int(accepted), int(refused)
                row[4] += int(faults)
                row[5] = max(row[5], float(worst))
                runs += int(ran)
                repeats += int(again)
            for launched, name in outcome["kernels"]:
                kernels[name] += int(launched)
        found = sum(outcome["findings"] for outcome in outcomes)
        known = sum(outcome["known"] for outcome in outcomes)
        seconds = sum(outcome["seconds"] for outcome in outcomes)
        done = f"{len(outcomes)}/{len(options.only)}"
        row = f"{tool:10} {done:7} {runs:<9} {repeats:<10} {found:<9} {known:<6}"
        print(f"{row} {seconds:.0f}")
        findings += found
        missing += len(options.only) - len(outcomes)
    lines = ["op\ttype\tkernel\truns\trepeats\taccepted\trefused\tfaults\tworst error"]
    lines += ["\t".join([name, *map(str, row)]) for name, row in sorted(paths.items())]
    if not options.op:  # which would leave out those of others
        unused = sorted(name for name, n in kernels.items() if not n)
        lines += [f"never launched: {name}" for name in unused]
    (options.out / "paths.tsv").write_text("\n".join(lines) + "\n")
    able = [row for row in paths.values() if row[2]]
    of_all = "" if options.op else f" of {len(kernels)}"
    print(
        f"{sum(row[0] > 0 for row in able)} of {len(able)} paths ran, "
        f"{sum(n > 0 for n in kernels.values())}{of_all} kernels; "
        f"{sum(row[3] for row in paths.values())} problems refused: "
        f"{options.out / 'paths.tsv'}"
    )
    if missing:
        print(f"{missing} shares are missing: the same command goes on")
    return 1 if findings else 2 if missing else 0


def main():
    options = _arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(pathlib.Path(options.driver).read_bytes()).hexdigest()[:16]
    end = time.time() + options.seconds
    for group in (set(options.tools) - {"hunt"}, {"hunt"} & set(options.tools)):
        jobs = (
            1 if "hunt" in group else options.jobs
        )  # some of its runs are to be alone
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            shares = [(t, s) for s in options.only for t in TOOLS if t in group]
            runs = [pool.submit(_run, options, *s, digest, end) for s in shares]
        for run in runs:
            run.result()
    sys.exit(_summary(options, digest))


if __name__ == "__main__":
    main()
