# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The recipe of docs/export.md for 8-bit integers, for networks of each kind."""

import ast

import fresh
import keras
import numpy as np
import pytest
import small
import tensorflow as tf

import tf_capsops
from tf_capsops import models, routing


def _recipe():
    """Returns the function `int8` of the page."""
    code = ast.parse(fresh.code_of(fresh.ROOT / "docs/export.md"))
    kept = [
        each
        for each in code.body
        if getattr(each, "name", None) == "int8"
        or (
            isinstance(each, ast.ImportFrom)
            and each.module == "tensorflow.lite.python.schema_py_generated"
        )
    ]
    assert len(kept) == 2
    names = {"tf": tf}
    exec(compile(ast.Module(kept, []), "docs/export.md", "exec"), names)
    return names["int8"]


def _capsnet():
    both = small.capsnet((9, 8, 1), 10).inference_model()
    return keras.Model(both.input, both.output["lengths"])


def _matrix_capsnet():
    return models.matrix_capsnet(
        *((10, 9, 1), 3, routing.EM(iterations=1)),
        filters=4,
        kernel_size=3,
        primary_capsules=2,
        capsules=(2,),
        capsule_kernel_sizes=(2,),
        capsule_strides=(2,),
        pose_shape=(2, 2),
    )


_NETWORKS = {
    "capsnet": _capsnet,
    "p_capsnet": lambda: models.p_capsnet((24, 24, 1), 4),
    "efficient_capsnet": lambda: models.efficient_capsnet((28, 28, 1), 4),
    "segcaps": lambda: models.segcaps((8, 8, 1), 1, size="small"),
    "matrix_capsnet": _matrix_capsnet,
}


@pytest.mark.usefixtures("uncounted")
@pytest.mark.ci
@pytest.mark.parametrize("name", _NETWORKS)
def test_integers_give_nearly_the_same(name, tmp_path):
    keras.utils.set_random_seed(3)
    model = _NETWORKS[name]()
    images = np.random.default_rng(4).random((8, *model.input_shape[1:]), np.float32)
    with tf_capsops.portable():
        model.export(tmp_path, verbose=False)
    interpreter = tf.lite.Interpreter(model_content=_recipe()(str(tmp_path), images))
    types = {each["dtype"] for each in interpreter.get_tensor_details()}
    assert np.int8 in types
    runner = interpreter.get_signature_runner()
    (given,) = runner.get_input_details()
    expected = np.asarray(model(images))
    found = [next(iter(runner(**{given: each[None]}).values())) for each in images]
    worst = np.abs(np.concatenate(found) - expected).max()
    assert worst < 0.1 * np.abs(expected).max()
