# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs every test that takes a `device` on every device TensorFlow sees.

Float32 products are exact to float32 in tests: a test of TF32 turns it on itself.
Without `--all`, what takes a `case` and a `dtype` runs for every case in float32, and
for a quarter of the cases, each time another one, in each of the other types.
"""

import ctypes
import gc
import os
import sys
import warnings
import zlib

# Read when NumPy and TensorFlow are imported. The references' products are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import quiet

with quiet.no_stderr():  # which pytest would write after its summary
    import tf_capsops

    tf_capsops._console._import_quietly()

import frames
import hypothesis
import pipelines
import pytest
import quick
import tensorflow as tf
from hypothesis.internal.conjecture import providers

from tf_capsops.bench import cases

for _gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(_gpu, True)
tf.config.experimental.enable_tensor_float_32_execution(False)
pipelines.switch_tuning_off()
pipelines.switch_optimizing_off()

_DEVICES = sorted({f"{d.device_type}:0" for d in tf.config.list_logical_devices()})


def pytest_configure(config):
    if config.getoption("all"):
        os.environ["PYTEST_ADDOPTS"] = "--all"  # for tests that run pytest themselves
    if config.getoption("jit"):
        frames.compile_with_xla()
    ci = config.getoption("ci") or config.getoption("slow")
    _choose_examples(2000 if config.getoption("all") else 200 if ci else 50)


def _choose_examples(count):
    """Sets how many inputs the tests in `adversarial` draw, the same ones each time.

    TF_CAPSOPS_EXAMPLES asks for another number of other inputs, which `pytest
    --hypothesis-seed` determines.
    """
    # Hypothesis also draws numbers that stand in modules of ours, of those that this
    # process happens to have imported. Without, each process draws the same.
    none = providers._local_constants
    providers._get_local_constants = lambda: none
    wanted = os.environ.get("TF_CAPSOPS_EXAMPLES")
    hypothesis.settings.register_profile(
        "adversarial",
        max_examples=int(wanted or count),
        derandomize=wanted is None,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("adversarial")


def pytest_generate_tests(metafunc):
    """Parametrizes the fixture `device`, in the order CPU, GPU."""
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", _DEVICES, indirect=True)


def _selected(item):
    slow, ci = map(item.config.getoption, ("slow", "ci"))
    if item.get_closest_marker("slow") and not slow:
        return False
    if item.get_closest_marker("ci") and not (slow or ci):
        return False
    given = item.callspec.params if hasattr(item, "callspec") else {}
    case = given.get("case")
    return not isinstance(case, cases.Case) or in_quarter(case, given.get("dtype"))


def in_quarter(case, dtype):
    """Whether a case runs in a type without `--all`."""
    if dtype in (None, tf.float32):
        return True
    types = tf.float64, tf.float16, tf.bfloat16
    return zlib.crc32(case.name.encode()) % 4 == types.index(dtype)


def pytest_collection_modifyitems(config, items):
    if not config.getoption("all"):
        config.hook.pytest_deselected(items=[i for i in items if not _selected(i)])
        items[:] = filter(_selected, items)


_collect = gc.collect


def _collect_and_freeze(generation=2):
    """Collects garbage; later collections pass over everything that is left.

    The benchmark, Keras and TFLite's converter ask for collections, and each would go
    through all that the tests before have left.
    """
    found = _collect(generation)
    if generation == 2:
        gc.freeze()
    return found


def pytest_collection_finish(session):
    """Collects garbage more rarely, without a million objects of TensorFlow."""
    gc.collect = _collect_and_freeze
    gc.collect()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish(session):
    """Writes down which lines ran (`make coverage`).

    xdist kills a worker that takes more than a few seconds to exit.
    """
    coverage = sys.modules.get("coverage")
    if coverage and (running := coverage.Coverage.current()):
        running.save()
    library = ctypes.CDLL(tf_capsops.library_path())
    if hasattr(library, "WriteCoverage"):  # not in the library of users
        library.WriteCoverage()


@pytest.fixture
def device(request):
    """Name of a device, such as "GPU:0"; the test's ops are placed on it."""
    with tf.device(request.param):
        yield request.param


_first_states = {}  # of the generators `_RANDOM` of modules


@pytest.fixture(autouse=True)
def _every_test_starts_alike(request):
    """Gives each test the same numbers of `_RANDOM`, whichever ran before it."""
    random = getattr(getattr(request.node, "module", None), "_RANDOM", None)
    if random is not None:
        state = random.bit_generator.state
        first = _first_states.setdefault(request.node.module.__name__, state)
        random.bit_generator.state = first
    yield
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture(scope="module")
def eagerly():
    """Functions run eagerly. test_cli and test_train_options train in graphs, too."""
    with quick.eager():
        yield


@pytest.fixture
def uncounted():
    """Lines that run are not counted: converters would take half as long again."""
    coverage = sys.modules.get("coverage")
    running = coverage and coverage.Coverage.current()
    if running:
        running.stop()
    yield
    if running:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that modules have been imported
            running.start()


@pytest.fixture
def undrawn():
    """Pictures are empty files."""
    with quick.undrawn():
        yield
