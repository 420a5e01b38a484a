# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains on several devices at a time, in one process or in several."""

import contextlib
import json
import os
import pathlib
import tempfile

import tensorflow as tf

from tf_capsops.cli import runs
from tf_capsops.errors import CommandError
from tf_capsops.models.shares import several_processes

_MOST_TESTS = 256  # test images a batch
_FORM = (
    '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", '
    '"index": 0}}'
)


def strategy(name):
    """Returns the strategy that `--distribute` names; TensorFlow's default for None.

    A process can become a worker only before TensorFlow computes anything in it.

    Raises:
      CommandError: if there are fewer than two devices, or TF_CONFIG is missing or
        wrong.
    """
    if name is None:
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = _devices()
        if len(devices) < 2:
            raise CommandError(
                f"--distribute mirrored needs two devices of a kind or more, but there "
                f"is only {devices[0].name.removeprefix('/device:')}"
            )
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    _check_workers(os.environ.get("TF_CONFIG"))
    # By default TensorFlow sums gradients of GPUs on the host, over gRPC.
    gpus = tf.config.list_physical_devices("GPU")
    options = tf.distribute.experimental.CommunicationOptions(
        implementation="NCCL" if gpus else "AUTO"
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _devices():
    return tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices()


def _check_workers(text):
    """Checks the TF_CONFIG of a cluster of workers."""
    if not text:
        raise CommandError(
            "--distribute multiworker needs the environment variable TF_CONFIG, in "
            f"each process with its own index: {_FORM}"
        )
    try:
        content = json.loads(text)
        workers, task = content["cluster"]["worker"], content["task"]
        good = (
            isinstance(workers, list)
            and len(workers) >= 2
            and all(isinstance(each, str) and ":" in each for each in workers)
            and set(content["cluster"]) == {"worker"}
            and task["type"] == "worker"
            and type(task["index"]) is int
            and 0 <= task["index"] < len(workers)
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise CommandError(
            f"TF_CONFIG must name two workers or more and the index of this one, as "
            f"{_FORM}, got {text}"
        )


@contextlib.contextmanager
def writing(strategy, make):
    """Yields the directory to write to: `make()`, or a temporary one.

    Of several processes, only the first one keeps its files and prints.

    Raises:
      CommandError: if another training writes there.
    """
    if not several_processes(strategy) or strategy.cluster_resolver.task_id == 0:
        directory = make()
        with runs.in_use(directory):
            yield directory
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield pathlib.Path(directory)


def check_shares(strategy, images, batch_size):
    """Checks that every device has a share of every batch.

    Raises:
      CommandError: if one has none.
    """
    devices = strategy.num_replicas_in_sync
    if batch_size < devices:
        raise CommandError(
            f"a batch of {batch_size} is too small for {devices} devices: give "
            f"--batch-size {devices} or more"
        )
    last = images % batch_size
    if 0 < last < devices:
        raise CommandError(
            f"the last batch of {images} images has {last} of them, too few for "
            f"{devices} devices: give another --batch-size than {batch_size}"
        )


def test_batch_size(strategy, images):
    """Returns a size of batches of test images that gives every device a share.

    Raises:
      CommandError: if there are fewer images than devices.
    """
    devices = strategy.num_replicas_in_sync
    for size in range(_MOST_TESTS, devices - 1, -1):
        if not 0 < images % size < devices:
            return size
    raise CommandError(f"{images} test images are too few for {devices} devices")


def by_samples(batches):
    """Returns batches that several processes divide by samples, not by files."""
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.DATA
    return batches.with_options(options)
