# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data that networks for segmentation train on, and what they refuse of it."""

import keras
import numpy as np
import pytest
import quick
import tensorflow as tf

from tf_capsops.metrics import Dice
from tf_capsops.models import deepcaps, segcaps, ucaps3d, unet

_RANDOM = np.random.default_rng(7)
_IMAGES = _RANDOM.random([6, 8, 16, 1], np.float32)
_MASKS = np.floor(_IMAGES * 3).astype(np.int32)
_CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy()
both_builds = pytest.mark.parametrize("build", [segcaps, unet])


@pytest.fixture
def eager():
    """Without graphs, which take most of the time to make."""
    with quick.eager():
        yield


def _model(build=segcaps, shape=(8, 16, 1), classes=3, compiled=True, **options):
    keras.utils.set_random_seed(1)
    model = build(shape, classes, size="small")
    if compiled:
        losses = keras.losses.BinaryCrossentropy(), _CROSS_ENTROPY
        loss = losses[classes > 1] if build is unet else None
        model.compile(keras.optimizers.Adam(0.005), **{"loss": loss, **options})
    return model


@both_builds
@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"jit_compile": True}])
@pytest.mark.parametrize(
    "classes, masks, text",
    [
        (1, np.where(_MASKS > 0, 255, 0), "numbers from 0 to 1, got 255: div"),
        (3, np.where(_MASKS > 1, 255, 0), "classes, integers from 0 to 2, got 255: "),
        (3, _MASKS - 1, "classes, integers from 0 to 2, got -1: number the classes"),
        (3, _MASKS[..., 0] + 0.5, "classes, integers from 0 to 2, got .*.5: number"),
        (3, 255 * np.eye(3)[_MASKS[..., 0]], "numbers from 0 to 1, got 255"),
    ],
)
def test_masks_of_other_classes_are_refused(build, classes, masks, text, options):
    model = _model(build, classes=classes, **options)
    before = model.get_weights()
    for use in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=f"^{model.name}: masks must be {text}"):
            use(_IMAGES, masks, verbose=0)
    for ours, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@both_builds
@pytest.mark.parametrize("shape", [(6, 8, 8), (6, 8, 8, 1), (6, 8, 16, 2), (5, 8, 16)])
def test_masks_of_other_sizes_are_refused(build, shape):
    text = (
        rf"^{build.__name__}: masks of images \(6, 8, 16, 1\) must .* got \({shape[0]}"
    )
    for use in (_model(build).fit, _model(build).evaluate):
        with pytest.raises(ValueError, match=text):
            use(tf.data.Dataset.from_tensors((_IMAGES, np.zeros(shape, int))))


@pytest.mark.usefixtures("eager")
@both_builds
def test_class_weights_are_for_data_sets(build):
    weights, options = {0: 1.0, 1: 0.0, 2: 3.0}, {"epochs": 2, "verbose": 0}
    for use in (_model(build).fit, _model(build).train_on_batch):
        with pytest.raises(
            ValueError, match=f"^{build.__name__}: class_weight weighs s"
        ):
            use(_IMAGES, _MASKS, class_weight=weights)
    batches = tf.data.Dataset.from_tensors((_IMAGES, _MASKS[..., 0]))
    with pytest.raises(ValueError, match="class_weight needs masks with a last axis"):
        _model(build).fit(batches, class_weight=weights, **options)
    batches = tf.data.Dataset.from_tensors((_IMAGES, _MASKS))
    found = _model(build).fit(batches, class_weight=weights, **options)
    each = np.take([1.0, 0.0, 3.0], _MASKS[..., 0])
    expected = _model(build).fit(_IMAGES, _MASKS, sample_weight=each, **options)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-5
    )


@pytest.mark.usefixtures("eager")
@both_builds
@pytest.mark.parametrize("classes", [1, 3])
def test_masks_need_no_last_axis(build, classes):
    masks = np.minimum(_MASKS, max(1, classes - 1))
    losses = []
    for each in (masks, masks[..., 0], tf.constant(masks[..., 0])):
        model = _model(build, classes=classes, metrics=["accuracy", Dice(classes)])
        history = model.fit(_IMAGES, each, batch_size=6, shuffle=False, verbose=0)
        losses.append([history.history["loss"]])
        losses[-1].append(model.evaluate(_IMAGES, each, verbose=0))
        if build is segcaps:
            inputs = {"images": _IMAGES, "masks": each}
            losses[-1].append(model.evaluate(inputs, verbose=0))
            drawn = model.reconstruct(_IMAGES, each)
            np.testing.assert_array_equal(drawn, model.reconstruct(_IMAGES, masks))
    for other in losses[1:]:
        for ours, theirs in zip(losses[0], other):
            np.testing.assert_allclose(theirs, ours, rtol=1e-5)


@both_builds
def test_weights_and_masks_are_one_array(build):
    model = _model(build)
    for weights in ({"scores": np.ones(6)}, [np.ones(6)]):
        with pytest.raises(ValueError, match=": sample_weight must be one array"):
            model.fit(_IMAGES, _MASKS, sample_weight=weights, verbose=0)
    with pytest.raises(ValueError, match=r"masks must be one array, .* got a dict"):
        model.fit(_IMAGES, {"scores": _MASKS}, verbose=0)


@pytest.mark.parametrize(
    "build, shape, multiple",
    [
        (segcaps, (None, None, 1), 8),
        (ucaps3d, (None, None, None, 1), 8),
        (unet, (None, None, 1), 8),
        (unet, (9, None, 1), 8),
    ],
)
def test_open_sizes_are_multiples(build, shape, multiple):
    model = _model(build, shape, compiled=build is not unet)
    kind = "volumes" if build is ucaps3d else "images"
    text = f"{model.name}: sizes of {kind} must be multiples of {multiple}"
    fits = [size or multiple for size in shape[:-1]]
    other = [*fits[:-1], multiple + 4]
    images = np.zeros([1, *other, 1], np.float32)
    for use in (model, model.predict, model.predict_on_batch):
        with pytest.raises(ValueError, match=text):
            use(images)
    signature = tf.TensorSpec([None] * len(images.shape[:-1]) + [1])
    called = tf.function(model, input_signature=[signature])
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        called(images)
    scores = called(np.zeros([1, *fits, 1], np.float32))
    assert scores.shape == (1, *fits, 3)


def test_reconstruct_refuses_pixels_of_0_to_255():
    model = _model()
    with pytest.raises(ValueError, match=r"segcaps: images must be .* divide by 255"):
        model.reconstruct(_IMAGES * 255)


@pytest.mark.parametrize(
    "build, shape", [(segcaps, (8, 8, 1)), (deepcaps, (8, 8, 1)), (ucaps3d, (8,) * 4)]
)
@pytest.mark.parametrize(
    "options, text",
    [
        ({"reconstruction_weight": -1}, "reconstruction_weight must not be negative"),
        ({"reconstruction_weight": np.nan}, "reconstruction_weight must not be negat"),
        ({"size": ["small"]}, r"size must be 'paper' or 'small', got \['small'\]"),
    ],
)
def test_weights_and_sizes_are_checked(build, shape, options, text):
    with pytest.raises(ValueError, match=text):
        build(shape, 3, **{"size": "small", **options})


@pytest.mark.usefixtures("eager")
def test_generators_and_validation_splits():
    def batches():
        while True:
            yield _IMAGES[:4], _MASKS[:4]

    options = {"shuffle": False, "verbose": 0, "batch_size": 4}
    expected = _model().fit(_IMAGES[:4], _MASKS[:4], epochs=2, **options).history
    found = _model().fit(batches(), epochs=2, steps_per_epoch=1, verbose=0).history
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    model = _model()
    split = model.fit(_IMAGES, _MASKS, validation_split=1 / 3, **options).history
    np.testing.assert_allclose(split["loss"], expected["loss"][:1], rtol=1e-5)
    held = model.evaluate(_IMAGES[4:], _MASKS[4:], verbose=0)
    np.testing.assert_allclose(split["val_loss"], [held], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
@pytest.mark.parametrize("build, shape", [(segcaps, (8, 16, 1)), (unet, (8, 16, 1))])
def test_int8_is_saved(build, shape, tmp_path):
    model = _model(build, shape, compiled=False)
    scores = model.predict(_IMAGES, verbose=0)
    model.quantize("int8")
    quantized = model.predict(_IMAGES, verbose=0)
    np.testing.assert_allclose(quantized, scores, atol=0.1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(_IMAGES, verbose=0), quantized)
