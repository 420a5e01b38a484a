# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""models.matrix_capsnet and models.efficient_capsnet, and the spread loss."""

import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_capsops
from tf_capsops.losses import MarginLoss, SpreadLoss
from tf_capsops.models import convnet, efficient_capsnet, matrix_capsnet
from tf_capsops.routing import EM, VB, Dynamic, InvertedAttention, SelfAttention

_IMAGES = np.random.default_rng(1).random([12, 8, 7, 2], np.float32)
_LABELS = np.arange(12) % 3
_MATRIX = {
    "filters": 4,
    "kernel_size": 3,
    "strides": 1,
    "primary_capsules": 2,
    "capsules": (3, 2),
    "capsule_kernel_sizes": (3, 2),
}
_EFFICIENT = {"filters": (4, 8), "kernel_sizes": (3, 3), "strides": (1, 2)}
_MODELS = {
    "em": lambda **options: _matrix(EM(final_lambda=0.1), **options),
    "vb": lambda **options: _matrix(VB(), **options),
    "dynamic": lambda **options: _matrix(Dynamic(), **options),
    "inverted": lambda **options: _matrix(InvertedAttention(), **options),
    "self": lambda **options: _matrix(SelfAttention(), **options),
    "efficient": lambda **options: efficient_capsnet(
        (8, 7, 2), 3, **_EFFICIENT, primary_dim=4, **options
    ),
}


def _slow_but_for(*chosen):
    return [
        each if each in chosen else pytest.param(each, marks=pytest.mark.slow)
        for each in _MODELS
    ]


every_model = pytest.mark.parametrize("name", _MODELS)


def _matrix(routing, **options):
    return matrix_capsnet((8, 7, 2), 3, routing, **{**_MATRIX, **options})


def _made(name, **options):
    keras.utils.set_random_seed(1)
    return _MODELS[name](**options)


def _smaller(name, **options):
    """Has a layer less, for what takes long to trace."""
    if name != "efficient":
        options |= {"capsules": (3,), "capsule_kernel_sizes": (3,)}
        options["capsule_strides"] = (2,)
    return _made(name, **options)


@pytest.mark.parametrize(
    "model, shape, classes, trainable, all_weights",
    [
        (matrix_capsnet, (28, 28, 1), 10, 318_964, 318_964),
        (matrix_capsnet, (32, 32, 2), 5, 317_194, 317_194),
        (efficient_capsnet, (28, 28, 1), 10, 161_824, 162_400),
    ],
)
def test_the_papers_sizes(model, shape, classes, trainable, all_weights):
    model = model(shape, classes)
    counted = sum(np.prod(each.shape) for each in model.trainable_weights)
    assert (counted, model.count_params()) == (trainable, all_weights)
    assert model.output_shape == (None, classes)


# Every model is trained and saved in the test of mixed precision as well.
@pytest.mark.parametrize("name", _slow_but_for("em", "inverted", "efficient"))
def test_learns_and_is_saved_with_its_loss(name, tmp_path, device):
    model = _smaller(name)
    # Down to nothing, or the last epoch's accuracy follows from rounding.
    adam = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 60))
    model.compile(adam, SpreadLoss(60), metrics=["accuracy"])
    tens = np.tile(_IMAGES, [10, 1, 1, 1]), np.tile(_LABELS, 10)  # epochs take time
    options = {"batch_size": 12, "shuffle": False, "verbose": 0}
    history = model.fit(*tens, epochs=6, **options).history
    assert np.all(np.isfinite(history["loss"]))
    if name != "vb":  # whose priors outweigh so few children
        assert history["accuracy"][-1] > 0.6
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.run_eagerly = True  # nothing else is traced
    scores = model.predict(_IMAGES, verbose=0)
    np.testing.assert_array_equal(loaded.predict(_IMAGES, verbose=0), scores)
    assert np.all((scores >= 0) & (scores <= 1 + 1e-6))
    # The margin goes on where it was.
    expected = model.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0)
    found = loaded.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "name, policy",
    [
        pytest.param(*each, marks=pytest.mark.slow if number % 4 in (1, 2) else ())
        for number, each in enumerate(
            itertools.product(_MODELS, ["mixed_float16", "mixed_bfloat16"])
        )
    ],
)
def test_mixed_precision(name, policy, tmp_path, device):
    model = _smaller(name, dtype=policy)
    model.compile("adam", SpreadLoss(10), run_eagerly=True)
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    history = model.fit(_IMAGES, _LABELS, verbose=0).history
    assert np.all(np.isfinite(history["loss"]))
    scores = model(_IMAGES)
    assert scores.dtype == tf.float32
    assert np.all((scores >= 0) & (scores <= 1 + 1e-6))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.dtype_policy.name == policy
    np.testing.assert_array_equal(loaded(_IMAGES), scores)


@every_model
def test_routing_coefficients(name, device):
    """They add up to one, and are those of each way to a class, one by one."""
    model = _made(name)
    found = model.routing_coefficients(_IMAGES).numpy()
    rows, columns = model.primary_centers
    assert found.shape == (12, len(rows), len(columns), 2, 3)
    # Of six rows, the windows of matrix capsules see five.
    np.testing.assert_allclose(found[:, :5].sum(-1), 1, rtol=1e-4)
    np.testing.assert_array_equal(found[:, 5:], 0)
    assert found.min() >= 0 and found.std() > 0
    if name == "efficient":
        assert (list(rows), list(columns)) == ([3.0], [3.0])
        return
    assert (rows[0], rows[-1], columns[-1]) == (1, 6, 5)
    layers = [model.get_layer(f"conv_caps_{i}") for i in (1, 2)]
    layers.append(model.get_layer("class_caps"))
    inputs = [keras.Model(model.input, each.input)(_IMAGES) for each in layers]
    shares = [each.shares(given).numpy() for each, given in zip(layers, inputs)]
    flow = np.zeros(found.shape)
    for y, x, kh, kw in np.ndindex(*shares[0].shape[1:5]):
        for above, beside in np.ndindex(2, 2):  # the windows of the second layer
            top, left = y - above, x - beside
            if not (0 <= top < shares[1].shape[1] and 0 <= left < shares[1].shape[2]):
                continue
            flow[:, 2 * y + kh, 2 * x + kw] += np.einsum(
                "nco,nop,npj->ncj",
                shares[0][:, y, x, kh, kw],
                shares[1][:, top, left, above, beside],
                shares[2][:, top, left],
            )
    flow = flow[:, :5] / flow[:, :5].sum(-1, keepdims=True)
    np.testing.assert_allclose(found[:, :5], flow, rtol=1e-4, atol=1e-6)


# test_export.py has every rule and layer of the others.
@pytest.mark.parametrize("name", _slow_but_for("efficient"))
def test_portable_exports(name, tmp_path, device):
    model = _smaller(name)
    with tf_capsops.portable():
        model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(_IMAGES), model(_IMAGES), atol=1e-4)


@every_model
def test_integer_images_are_refused(name):
    with pytest.raises(ValueError, match="images must be floating-point"):
        _made(name)(np.zeros([1, 8, 7, 2], np.uint8))


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: matrix_capsnet((8, 8), 3), "matrix_capsnet: input_shape must be"),
        (lambda: matrix_capsnet((8, 8, 1), 0), "num_classes must be an integer >= 1"),
        (
            lambda: matrix_capsnet((28, 28, 1), 3, capsules=(8,)),
            "must have one entry a layer",
        ),
        (lambda: matrix_capsnet((8, 8, 1), 3), "smaller than kernel_size"),
        (lambda: matrix_capsnet((28, 28, 1), 3, routing="em"), "must be a rule"),
        (lambda: efficient_capsnet("x", 3), "efficient_capsnet: input_shape must be"),
        (
            lambda: efficient_capsnet((28, 28, 1), 3, strides=2),
            "filters, kernel_sizes and strides must have one entry a layer",
        ),
        (
            lambda: efficient_capsnet((28, 28, 1), 3, primary_dim=7),
            "the last of filters must be a multiple of primary_dim 7",
        ),
    ],
)
def test_errors_say_what_is_wrong(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert text in str(error.value)


_ACTIVATIONS = np.array([[0.9, 0.5, 0.1], [0.3, 0.2, 0.6]])


def test_a_network_without_routing_has_no_coefficients():
    model = convnet((8, 7, 2), 3, filters=(4,), units=(4,))
    for look in (model.routing_coefficients, lambda _: model.primary_centers):
        with pytest.raises(ValueError, match="convnet has no layer that routes"):
            look(_IMAGES)


@pytest.mark.parametrize("labels", [[0, 1], [[0], [1]], [[1, 0, 0], [0, 1, 0]]])
def test_spread_loss(labels, device):
    """By hand, with a margin of 0.5: 0.1^2 and 0; 0.6^2 and 0.9^2."""
    loss = SpreadLoss(1, start=0.5, end=0.5, reduction=None, dtype="float64")
    found = loss(np.array(labels), _ACTIVATIONS)
    np.testing.assert_allclose(found, [0.01, 0.36 + 0.81])


def test_the_margin_grows_with_the_steps_of_the_optimizer(device):
    optimizer = keras.optimizers.SGD()
    loss = SpreadLoss(4, start=0.25, end=0.75)
    equal, expected = np.zeros([1, 2]), []
    loss.follow(optimizer)
    for step in range(6):
        optimizer.iterations.assign(step)
        expected.append(float(loss([0], equal)))
    margins = [0.25, 0.375, 0.5, 0.625, 0.75, 0.75]
    np.testing.assert_allclose(expected, np.square(margins), rtol=1e-6)


def test_a_margin_that_follows_no_optimizer_says_so():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    loss = SpreadLoss(10)
    model.compile("sgd", loss)
    with pytest.warns(UserWarning, match=r"stays at 0\.2: call loss\.follow"):
        model.fit(np.ones([2, 4]), np.array([0, 1]), verbose=0)
    loss.follow(model.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss([0], _ACTIVATIONS[:1])


def test_spread_loss_is_saved():
    loss = SpreadLoss(7, start=0.3, end=0.8, name="spread")
    saved = keras.saving.serialize_keras_object(loss)
    revived = keras.saving.deserialize_keras_object(saved)
    assert revived.get_config() == loss.get_config()
    assert (revived.steps, revived.start, revived.end) == (7, 0.3, 0.8)


@pytest.mark.parametrize(
    "arguments", [{"steps": 0}, {"steps": 2, "start": 0.5, "end": 0.4}, {"steps": 1.5}]
)
def test_bad_spread_losses_are_refused(arguments):
    with pytest.raises(ValueError, match="SpreadLoss: "):
        SpreadLoss(**arguments)


def test_margin_loss_compiles_too(device):
    model = _made("efficient")
    model.compile("adam", MarginLoss(), metrics=["accuracy"], run_eagerly=True)
    assert np.isfinite(model.fit(_IMAGES, _LABELS, verbose=0).history["loss"][0])
