# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""models.segcaps, models.ucaps3d and models.unet: sizes, losses, training and files."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.losses import MarginLoss, WeightedBinaryCrossentropy
from tf_capsops.metrics import Dice
from tf_capsops.models import segcaps, ucaps3d, unet

_RANDOM = np.random.default_rng(2)
# Neither height and width nor the number of channels and of classes are the same.
_IMAGE, _VOLUME = (8, 16, 2), (8, 16, 8, 2)
_MODELS = {
    "segcaps": (segcaps, _IMAGE, 3),
    "one_class": (segcaps, _IMAGE, 1),
    "ucaps3d": (ucaps3d, _VOLUME, 3),
    "unet": (unet, _IMAGE, 3),
}


def _slow_but_for(*chosen):
    return [
        each if each in chosen else pytest.param(each, marks=pytest.mark.slow)
        for each in _MODELS
    ]


every_model = pytest.mark.parametrize("name", _MODELS)
with_decoder = pytest.mark.parametrize("name", ["segcaps", "one_class", "ucaps3d"])


def _made(name, **options):
    keras.utils.set_random_seed(1)
    build, shape, classes = _MODELS[name]
    return build(shape, classes, size="small", **options)


def _drawn(name, count=4):
    """Returns images whose brightness in the first channel is their class."""
    _, shape, classes = _MODELS[name]
    images = _RANDOM.random([count, *shape]).astype(np.float32)
    masks = np.floor(images[..., :1] * max(classes, 2)).astype(np.int32)
    one_hot = masks if classes == 1 else np.eye(classes)[masks[..., 0]]
    return images, masks, one_hot.astype(np.float32)


def _best_without_images(masks, classes):
    """Returns the highest Dice of the same class at all pixels."""
    found = []
    for one_hot in np.eye(classes, dtype=np.float32):
        metric = Dice(classes)
        metric.update_state(
            masks, np.broadcast_to(one_hot, [*masks.shape[:-1], classes])
        )
        found.append(float(metric.result()))
    return max(found)


def _compiled(model, **options):
    options = {"run_eagerly": True, **options}
    if not hasattr(model, "decoder"):
        options["loss"] = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(0.005), **options)
    return model


@pytest.mark.parametrize(
    "build, shape, classes, options, parameters",
    [
        # Published with the papers or by their authors' code.
        (segcaps, (512, 512, 1), 1, {}, 1_425_649),
        (segcaps, (64, 64, 1), 1, {"variant": "R1"}, 1_425_649),
        (unet, (512, 512, 1), 1, {}, 31_030_593),
        # The authors' code has 2 * 16 * 4 ... biases more; see the docstring.
        (ucaps3d, (32, 32, 32, 2), 4, {}, 3_368_362 - 64 - 4 * 128 - 2 * 256),
    ],
)
def test_the_papers_sizes(build, shape, classes, options, parameters):
    model = build(shape, classes, **options)
    assert model.count_params() == parameters
    scores = model.compute_output_spec(keras.KerasTensor((None, *shape)))
    assert scores.shape == (None, *shape[:-1], classes)


def test_variants_differ_in_their_iterations():
    for variant, iterations in (
        ("R1", [1, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1]),
        ("R3", [1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]),
    ):
        layers = segcaps(_IMAGE, 3, variant, size="small").network.layers
        found = [
            each.routing_iterations
            for each in layers
            if hasattr(each, "routing_iterations")
        ]
        assert found == iterations


@pytest.mark.parametrize("name", _slow_but_for("segcaps", "ucaps3d", "unet"))
def test_learns_and_is_saved_with_its_loss(name, tmp_path, device):
    model = _compiled(_made(name), metrics=[Dice(_MODELS[name][2])], run_eagerly=False)
    images, masks, _ = _drawn(name)
    options = {"batch_size": 2, "verbose": 0}
    model.fit(images, masks, epochs=12, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    scores = model.predict(images, **options)
    np.testing.assert_array_equal(loaded.predict(images, **options), scores)
    assert scores.shape == (*masks.shape[:-1], _MODELS[name][2])
    assert np.all((scores >= 0) & (scores <= 1 + 1e-6))
    expected = model.evaluate(images, masks, return_dict=True, **options)
    assert expected["dice"] > _best_without_images(masks, _MODELS[name][2])
    found = loaded.evaluate(images, masks, return_dict=True, **options)
    assert found == pytest.approx(expected)
    # The optimizer goes on where it was.
    for each in (model, loaded):
        each.fit(images, masks, shuffle=False, **options)
    for ours, theirs in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name, policy",
    [
        ("segcaps", "mixed_float16"),
        ("ucaps3d", "mixed_bfloat16"),
        ("unet", "mixed_float16"),
        pytest.param("one_class", "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_mixed_precision(name, policy, tmp_path, device):
    model = _compiled(_made(name, dtype=policy))
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    images, masks, _ = _drawn(name, 2)
    assert np.isfinite(model.fit(images, masks, verbose=0).history["loss"])
    scores = model(images)
    assert scores.dtype == tf.float32
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.dtype_policy.name == policy
    np.testing.assert_array_equal(loaded(images), scores)


@pytest.mark.parametrize("name", _slow_but_for("segcaps"))
def test_xla_compiles_a_step(name, device):
    images, masks, _ = _drawn(name, 2)
    losses = []
    for options in ({}, {"jit_compile": True, "run_eagerly": False}):
        model = _compiled(_made(name), **options)
        history = model.fit(images, masks, epochs=2, verbose=0).history
        losses.append(history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


@pytest.mark.parametrize("classes", [1, 3])
def test_the_loss_of_segcaps_has_the_masked_reconstruction(classes):
    name = "segcaps" if classes == 3 else "one_class"
    model = _compiled(_made(name, reconstruction_weight=0.01))
    images, masks, one_hot = _drawn(name)
    outputs = model.network(images)
    shown = one_hot if classes == 1 else 1 - one_hot[..., :1]
    kept = outputs["capsules"] * (one_hot * shown)[..., None]
    drawn = model.decoder(tf.reshape(kept, [*kept.shape[:3], -1]))
    squares = np.square(drawn - images * shown).sum(axis=(1, 2, 3)).mean()
    expected = float(MarginLoss()(masks, outputs["scores"])) + 0.01 * squares
    for labels in (masks, one_hot):
        found = model.evaluate(images, labels, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(model.reconstruct(images, masks), drawn, atol=1e-6)
    # What was found stands for the masks where there are none.
    scores = outputs["scores"].numpy()
    found = scores >= 0.5 if classes == 1 else scores.argmax(-1)[..., None]
    np.testing.assert_array_equal(
        model.reconstruct(images), model.reconstruct(images, found.astype(int))
    )


def test_the_loss_of_ucaps3d_has_those_of_its_capsules_and_decoder():
    model = _made("ucaps3d", reconstruction_weight=0.25, margin_weight=0.5)
    images, masks, one_hot = _drawn("ucaps3d")
    masks[0] = one_hot[0] = 0  # nothing to draw
    one_hot[0, ..., 0] = 1
    outputs = model.network(images)
    assert outputs["coarse"].shape == (4, 1, 2, 1, 3)
    shares = one_hot.reshape([4, 1, 8, 2, 8, 1, 8, 3]).mean(axis=(2, 4, 6))
    coarse = outputs["coarse"].numpy()
    present = shares * np.maximum(0.7 - coarse, 0) ** 2
    absent = (1 - shares) * np.maximum(coarse - 0.3, 0) ** 2
    margin = (0.5 * present + 0.25 * absent).sum(axis=-1).mean()
    squares = np.square(model.decoder(outputs["features"]) - images) * (masks > 0)
    voxels = np.maximum((masks > 0).sum(axis=(1, 2, 3, 4)), 1)
    squares = (squares.sum(axis=(1, 2, 3, 4)) / voxels).mean()
    entropy = -(one_hot * np.log(outputs["scores"])).sum(axis=-1).mean()
    expected = entropy + 0.5 * margin + 0.25 * squares
    np.testing.assert_allclose(
        _compiled(model).evaluate(images, masks, verbose=0), expected, rtol=1e-5
    )
    _compiled(model, loss="categorical_crossentropy")
    np.testing.assert_allclose(
        model.evaluate(images, one_hot, verbose=0), expected, rtol=1e-5
    )
    drawn = model.reconstruct(images)
    np.testing.assert_array_equal(drawn, model.decoder(outputs["features"]))


@every_model
def test_inputs_and_weights_take_keras_forms(name):
    model = _compiled(_made(name))
    images, masks, _ = _drawn(name)
    expected = model.evaluate(images, masks, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((images, masks)).batch(4)
    forms = [{"x": {"images": images}, "y": masks}, {"x": dataset}]
    if hasattr(model, "decoder"):
        forms += [{"x": {"images": images, "masks": masks}}, {"x": [images, masks]}]
    for data in forms:
        np.testing.assert_allclose(model.evaluate(**data, verbose=0), expected)
    without = model.evaluate(images, masks, sample_weight=np.zeros(4), verbose=0)
    assert without < expected
    assert (without > 0) == hasattr(model, "decoder")  # the model's own losses
    whole = np.broadcast_to(
        np.arange(4.0).reshape(4, *[1] * (masks.ndim - 2)), masks.shape[:-1]
    )
    weighted = [
        model.evaluate(images, masks, sample_weight=each, verbose=0)
        for each in (np.arange(4.0), whole)
    ]
    np.testing.assert_allclose(*weighted, rtol=1e-6)
    assert abs(weighted[0] - expected) > 1e-3


@with_decoder
def test_a_file_keeps_what_is_frozen(name, tmp_path):
    model = _made(name)
    model.decoder.trainable = False
    frozen = model.network.layers[1]
    frozen.trainable = False
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, again, keras.models.clone_model(model)):
        kept = [layer.trainable for layer in each.network.layers]
        assert kept == [layer.name != frozen.name for layer in model.network.layers]
        assert each.decoder.trainable_weights == []


def _taken_apart(capsules):
    return keras.ops.concatenate(keras.ops.unstack(capsules, axis=-2), axis=-1)


def test_files_from_before_conv3d(tmp_path, monkeypatch):
    """`ucaps3d` had Keras' convolutions, and took capsules apart."""
    with monkeypatch.context() as before:
        for module in "ucaps3d", "segmentation", "segmenter":
            module = importlib.import_module(f"tf_capsops.models.{module}")
            before.setattr(module, "Conv3D", keras.layers.Conv3D)
        module = importlib.import_module("tf_capsops.models.ucaps3d")
        before.setattr(module, "_side_by_side", _taken_apart)
        model = _made("ucaps3d")
    assert type(model.network.get_layer("conv_1")) is keras.layers.Conv3D
    images, *_ = _drawn("ucaps3d")
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    tf.train.Checkpoint(model=model).write(tmp_path / "checkpoint")
    by_weights, by_checkpoint = (
        ucaps3d(_VOLUME, 3, size="small", name=name) for name in ("one", "other")
    )
    by_weights.load_weights(tmp_path / "model.weights.h5")
    status = tf.train.Checkpoint(model=by_checkpoint).read(tmp_path / "checkpoint")
    status.assert_existing_objects_matched()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for again in (loaded, by_weights, by_checkpoint):
        np.testing.assert_allclose(again(images), model(images), atol=1e-5)


@pytest.mark.parametrize("name", _slow_but_for("segcaps", "ucaps3d", "unet"))
def test_sizes_may_be_open(name, tmp_path):
    build, shape, classes = _MODELS[name]
    fixed = _made(name)
    keras.utils.set_random_seed(2)
    model = build((*[None] * (len(shape) - 1), shape[-1]), classes, size="small")
    model.set_weights(fixed.get_weights())
    images, masks, _ = _drawn(name)
    np.testing.assert_allclose(model(images), fixed(images), atol=1e-5)
    model.save(tmp_path / "model.keras")
    model = _compiled(keras.saving.load_model(tmp_path / "model.keras"))
    for times in (1, 2):
        larger = [np.repeat(each, times, axis=1) for each in (images, masks)]
        assert np.isfinite(model.train_on_batch(*larger))
        assert model.predict_on_batch(larger[0]).shape[1] == 8 * times


@pytest.mark.parametrize("size", [(8, 24), (40, 8), (9, 13)])
def test_a_u_net_crops_where_poolings_round_up(size):
    model = unet((*size, 1), 2, size="small")
    assert model(np.zeros([1, *size, 1], np.float32)).shape == (1, *size, 2)


@pytest.mark.parametrize("name", _slow_but_for("segcaps"))
def test_a_served_model_gives_the_scores(name, tmp_path):
    model = _made(name)
    images, *_ = _drawn(name)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(images), model(images), atol=1e-5)


def test_objects_that_are_rare_may_weigh_more():
    model = _made("one_class", reconstruction_weight=0.0)
    images, masks, _ = _drawn("one_class")
    loss = WeightedBinaryCrossentropy(4)
    _compiled(model, loss=loss)
    expected = float(loss(masks, model(images)))
    np.testing.assert_allclose(model.evaluate(images, masks, verbose=0), expected, 1e-5)


@every_model
def test_integer_images_are_refused(name):
    model = _compiled(_made(name))
    images, masks, _ = _drawn(name)
    for use in (model, model.predict, lambda images: model.fit(images, masks)):
        with pytest.raises(ValueError, match="images must be floating-point"):
            use((images * 255).astype(np.uint8))


@every_model
def test_training_needs_masks(name):
    model = _compiled(_made(name))
    images, masks, _ = _drawn(name)
    with pytest.raises(ValueError, match="fit and evaluate need masks beside"):
        model.fit(images, verbose=0)
    if hasattr(model, "decoder"):
        with pytest.raises(ValueError, match="a dict or list of 'images' and 'masks'"):
            model({"images": images, "labels": masks})


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: segcaps((8, 8), 3), "segcaps: input_shape must be (height, width,"),
        (lambda: segcaps((12, 8, 1), 3), "must be multiples of 8, got (12, 8, 1)"),
        (lambda: segcaps((8, 8, None), 3), "input_shape must be an integer >= 1"),
        (lambda: segcaps((8, 8, 1), 0), "num_classes must be an integer >= 1, got 0"),
        (lambda: segcaps((8, 8, 1), 3, "R2"), "variant must be 'R1' or 'R3', got 'R2'"),
        (
            lambda: segcaps((8, 8, 1), 3, size="large"),
            "must be 'paper' or 'small', got",
        ),
        (lambda: ucaps3d((8, 8, 1), 3), "ucaps3d: input_shape must be (depth, height,"),
        (lambda: ucaps3d((8, 8, 4, 1), 3), "must be multiples of 8, got (8, 8, 4, 1)"),
        (lambda: ucaps3d((8, 8, 8, 1), 1), "must include the background, got 1"),
        (
            lambda: unet((0, 8, 1), 3),
            "unet: input_shape must be an integer >= 1, got 0",
        ),
        (lambda: unet((8, 8, 1), 3, size=1), "unet: size must be 'paper' or 'small'"),
        (lambda: unet((8, 8, 8, 1), 3), "8, 1): the network reads images, not volumes"),
        (lambda: ucaps3d((8, 8, 1), 3), "8, 1): the network reads volumes, not images"),
    ],
)
def test_errors_say_what_is_wrong(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert text in str(error.value)
