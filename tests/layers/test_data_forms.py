# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The forms of data that models take in fit, evaluate and predict, or refuse."""

import inspect
import re
import warnings

import keras
import numpy as np
import pytest
import small
import tensorflow as tf

from tf_capsops import arguments, models

SAMPLES = 7
IMAGES = np.random.default_rng(1).random((SAMPLES, 8, 8, 1), np.float32)
LABELS = np.arange(SAMPLES) % 3
PIXELS = 255 * IMAGES
WEIGHTS = np.linspace(0, 1, SAMPLES)
_PIXELS = re.escape(
    f"got {PIXELS.max():g}: if they are pixels from 0 to 255, divide by"
)


@pytest.fixture(scope="module")
def capsnet():
    keras.utils.set_random_seed(1)
    dims = {"primary_dim": 2, "capsule_dim": 2, "decoder_units": ()}
    return small.capsnet(filters=2, **dims, reconstruction_weight=1.0)


def compiled(model, **arguments):
    model.compile("sgd", run_eagerly=True, **arguments)  # nothing is traced
    return model


def evaluated(model, *data, **options):
    options = {"batch_size": 3, "return_dict": True, "verbose": 0, **options}
    return model.evaluate(*data, **options)


def _classifier(name, **sizes):
    return getattr(models, name)((8, 8, 1), 3, **sizes)


@pytest.fixture(scope="module")
def networks(capsnet):
    """One of each kind, by name."""
    poses = {"primary_capsules": 2, "capsules": (2,), "capsule_kernel_sizes": (1,)}
    small = {
        "convnet": {"filters": (2,), "units": (2,)},
        "p_capsnet": {"filters": (2,), "kernel_sizes": (3,), "strides": (2,)},
        "efficient_capsnet": {
            "filters": (2, 8),
            "kernel_sizes": (3, 3),
            "strides": (2, 1),
        },
        "matrix_capsnet": {"filters": 2, **poses, "capsule_strides": (1,)},
    }
    made = {name: _classifier(name, **sizes) for name, sizes in small.items()}
    for model in made.values():
        compiled(model, loss="sparse_categorical_crossentropy")
    inference = compiled(capsnet.inference_model(), loss="mse")
    return {**made, "inference": inference, "CapsNet": compiled(capsnet)}


USES = {
    "fit": lambda model, images: model.fit(images, LABELS, verbose=0),
    "fit a data set": lambda model, images: model.fit(
        tf.data.Dataset.from_tensor_slices((images, LABELS)).batch(3), verbose=0
    ),
    "evaluate": lambda model, images: model.evaluate(images, LABELS, verbose=0),
    "predict": lambda model, images: model.predict(images, verbose=0),
    "predict a data set": lambda model, images: model.predict(
        tf.data.Dataset.from_tensor_slices(images).batch(3), verbose=0
    ),
    "train_on_batch": lambda model, images: model.train_on_batch(images, LABELS),
    "test_on_batch": lambda model, images: model.test_on_batch(images, LABELS),
    "predict_on_batch": lambda model, images: model.predict_on_batch(images),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "name",
    [
        "CapsNet",
        "inference",
        "convnet",
        "p_capsnet",
        "efficient_capsnet",
        "matrix_capsnet",
    ],
)
def test_pixels_are_refused(networks, name, use):
    owner = "CapsNet" if name == "inference" else name
    before = networks[name].get_weights()
    with pytest.raises(ValueError, match=f"^{owner}: images must be .*"):
        USES[use](networks[name], PIXELS)
    with pytest.raises(ValueError, match=f"^{owner}: images must be .* got int32"):
        USES[use](networks[name], PIXELS.astype(np.int32))
    after = networks[name].get_weights()
    assert all(map(np.array_equal, before, after))  # it has not trained


@pytest.mark.parametrize("name", ["CapsNet", "inference", "p_capsnet"])
@pytest.mark.parametrize("use", ["fit", "evaluate", "predict"])
def test_pixels_after_the_first_batch_are_refused(networks, name, use):
    images = np.concatenate([np.tile(IMAGES, [5, 1, 1, 1]), PIXELS])
    labels = np.tile(LABELS, 6)
    data = (images,) if use == "predict" else (images, labels)
    before = networks[name].get_weights()
    with pytest.raises(ValueError, match=_PIXELS):
        getattr(networks[name], use)(*data, batch_size=3, verbose=0)
    after = networks[name].get_weights()
    assert all(map(np.array_equal, before, after))  # it has not trained


@pytest.mark.parametrize("name", ["CapsNet", "p_capsnet", "matrix_capsnet"])
def test_eager_calls_refuse_pixels(networks, name):
    with pytest.raises(ValueError, match=f"{name}: images must be .*divide by 255"):
        networks[name](PIXELS)


@pytest.mark.parametrize("forms", [(1, 2), (2, 1)])
def test_labels_may_change_their_form(capsnet, forms):
    labels = {1: LABELS, 2: LABELS[:, np.newaxis]}
    capsnet.compile("sgd", run_eagerly=False)
    for form in (*forms, *forms):
        capsnet.fit(IMAGES, labels[form], verbose=0)


def test_validation_data_are_checked(networks):
    with pytest.raises(ValueError, match=_PIXELS):
        networks["CapsNet"].fit(
            IMAGES, LABELS, validation_data=(PIXELS, LABELS), verbose=0
        )


def test_graphs_check_as_well(capsnet):
    capsnet.compile("sgd", steps_per_execution=2, run_eagerly=False)
    with pytest.raises(ValueError, match=_PIXELS):
        capsnet.fit(PIXELS, LABELS, verbose=0)


@pytest.mark.parametrize("use", ["encode", "routing_coefficients"])
def test_parts_take_lists_and_refuse_pixels(capsnet, use):
    function = getattr(capsnet, use)
    expected = function(IMAGES[:2])
    np.testing.assert_array_equal(function(IMAGES[:2].tolist()), expected)
    with pytest.raises(ValueError, match="divide by 255"):
        function(PIXELS)
    with pytest.raises(ValueError, match="got int64: divide integers"):
        function(PIXELS.astype(int).tolist())
    with pytest.raises(ValueError, match="CapsNet: images must be numbers"):
        function([["a"]])


def test_image_range_passes_what_is_scaled():
    for images in (IMAGES, 6 * IMAGES - 3, np.zeros([0, 8, 8, 1]), tf.ones([2])):
        assert arguments.image_range("model", images) is images
    pixels = np.array([np.nan, 254], np.float32)
    with pytest.raises(ValueError, match=r"^model: .* got 254: .* divide by 255$"):
        arguments.image_range("model", pixels)


def test_the_decoder_warns_of_what_it_cannot_draw(capsnet):
    compiled(capsnet)
    standardized = 4 * IMAGES - 2
    drawable = {"lengths": LABELS, "reconstruction": IMAGES}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capsnet.predict(standardized, verbose=0)
        capsnet.fit(IMAGES, LABELS, verbose=0)
        capsnet.fit(standardized, drawable, verbose=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        validation = (standardized, LABELS)
        capsnet.fit(
            standardized, LABELS, epochs=2, validation_data=validation, verbose=0
        )
    (warning,) = caught
    assert "draws values from 0 to 1" in str(warning.message)
    with pytest.raises(ValueError, match=_PIXELS):
        capsnet.fit(IMAGES, {"lengths": LABELS, "reconstruction": PIXELS}, verbose=0)


@pytest.mark.parametrize("weight", [0.5, 0])
def test_a_segmenter_warns_only_if_it_draws(weight):
    segmenter = compiled(
        models.segcaps((8, 8, 1), 3, size="small", reconstruction_weight=weight)
    )
    masks = np.tile(LABELS[:, None, None, None], [1, 8, 8, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        segmenter.train_on_batch(IMAGES, masks)
        segmenter.train_on_batch(4 * IMAGES - 2, masks)
        segmenter.train_on_batch(4 * IMAGES - 2, masks)
    expected = ["segcaps: the decoder draws values from 0 to 1"] if weight else []
    assert [str(each.message).split(",")[0] for each in caught] == expected


def _forms():
    """Data of one meaning, in forms that Keras takes for two inputs and outputs."""
    both = {"images": IMAGES, "labels": LABELS}
    targets = {"lengths": LABELS, "reconstruction": IMAGES}
    return {
        "lists": ([IMAGES, LABELS], [LABELS, IMAGES]),
        "list of targets": (IMAGES, [LABELS, IMAGES]),
        "list of images": ([IMAGES], LABELS),
        "dicts": (both, targets),
        "dict and labels": (both, LABELS),
        "labels among the inputs": (both,),
        "dict of images": ({"images": IMAGES}, LABELS),
        "one-hot": (IMAGES, np.eye(3)[LABELS]),
        "column": (IMAGES, LABELS[:, None]),
        "dict in a data set": (
            tf.data.Dataset.from_tensor_slices((both, LABELS)).batch(3),
        ),
        "generator": (_samples(),),
    }


def _samples():
    for image, label in zip(IMAGES, LABELS, strict=True):
        yield image[None], label[None]


@pytest.mark.parametrize("form", _forms())
def test_forms_of_inputs_and_targets(capsnet, form):
    compiled(capsnet)
    expected = evaluated(capsnet, IMAGES, LABELS)
    result = evaluated(capsnet, *_forms()[form])
    assert result == pytest.approx(expected, rel=1e-5)


def test_predictions_take_labels(capsnet):
    compiled(capsnet)
    expected = capsnet({"images": IMAGES, "labels": LABELS})["reconstruction"]
    for inputs in ({"images": IMAGES, "labels": LABELS}, [IMAGES, LABELS]):
        drawn = capsnet.predict(inputs, verbose=0)["reconstruction"]
        np.testing.assert_allclose(drawn, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "data, message",
    [
        (({"image": IMAGES}, LABELS), r"inputs must be .*, got a dict of \['image'\]"),
        (([IMAGES] * 3, LABELS), "inputs must be .*, got a list of 3 arrays"),
        ((IMAGES, [LABELS] * 3), "a list of targets must be .*, got 3 arrays"),
        ((IMAGES, {"lengths": LABELS}), r"a dict of targets must .* \['lengths'\]"),
        ((IMAGES,), "fit and evaluate need labels beside the images"),
        ((IMAGES, LABELS, {"x": WEIGHTS}), r"sample_weight must be .*, got \['x'\]"),
    ],
)
def test_other_forms_are_refused(capsnet, data, message):
    with pytest.raises(ValueError, match=f"^CapsNet: {message}"):
        compiled(capsnet).train_on_batch(*data)


def test_classifiers_take_dicts_and_lists(networks):
    model = networks["convnet"]
    expected = evaluated(model, IMAGES, LABELS)
    for inputs in (
        [IMAGES],
        {"images": IMAGES},
        {"a_number": LABELS, "images": IMAGES},
    ):
        assert evaluated(model, inputs, LABELS) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"^convnet: a dict of inputs must have"):
        model.predict_on_batch({"a": IMAGES, "b": IMAGES})
    with pytest.raises(
        ValueError, match=r"^convnet: there is one input, images; got 2"
    ):
        model.predict_on_batch([IMAGES, IMAGES])


def test_samples_are_weighted_by_output(capsnet):
    compiled(capsnet)
    others = 1 - WEIGHTS
    options = {"batch_size": SAMPLES}
    both = {"lengths": WEIGHTS, "reconstruction": others}
    first = evaluated(capsnet, IMAGES, LABELS, sample_weight=WEIGHTS, **options)
    second = evaluated(capsnet, IMAGES, LABELS, sample_weight=others, **options)
    expected = {
        "lengths_loss": first["lengths_loss"],
        "reconstruction_loss": second["reconstruction_loss"],
        "loss": first["lengths_loss"] + second["reconstruction_loss"],
    }
    for weights in (both, [WEIGHTS, others]):
        result = evaluated(capsnet, IMAGES, LABELS, sample_weight=weights, **options)
        del result["lengths_accuracy"]
        assert result == pytest.approx(expected, rel=1e-5)
    plain = evaluated(capsnet, IMAGES, LABELS, **options)
    weights = {"lengths": WEIGHTS}
    result = evaluated(capsnet, IMAGES, LABELS, sample_weight=weights, **options)
    expected["reconstruction_loss"] = plain["reconstruction_loss"]
    expected["loss"] = first["lengths_loss"] + plain["reconstruction_loss"]
    del result["lengths_accuracy"]
    assert result == pytest.approx(expected, rel=1e-5)
    trained = capsnet.train_on_batch(IMAGES, LABELS, sample_weight=weights)
    assert trained[0] == pytest.approx(expected["loss"], rel=1e-5)


def _sparse():
    """Metrics and losses that want integers, in the forms that `compile` takes."""
    return [
        "sparse_categorical_accuracy",
        keras.metrics.SparseTopKCategoricalAccuracy(2, name="top"),
        keras.metrics.SparseCategoricalCrossentropy(name="entropy"),
        keras.losses.sparse_categorical_crossentropy,
    ]


@pytest.mark.parametrize("batch", [2, 3, SAMPLES])  # 3 is the number of classes
@pytest.mark.parametrize(
    "labels", [LABELS, np.eye(3)[LABELS]], ids=["integers", "1-hot"]
)
def test_sparse_metrics_are_those_of_a_plain_model(capsnet, batch, labels):
    lengths = capsnet(IMAGES)["lengths"]
    plain = keras.Sequential([keras.Input([3]), keras.layers.Identity()])
    compiled(
        plain, loss="sparse_categorical_crossentropy", metrics=["accuracy", *_sparse()]
    )
    expected = evaluated(plain, np.asarray(lengths), LABELS, batch_size=batch)
    compiled(capsnet, metrics=["accuracy", "categorical_accuracy", *_sparse()])
    result = evaluated(capsnet, IMAGES, labels, batch_size=batch)
    expected["categorical_accuracy"] = expected["accuracy"]
    for name in expected.keys() - {"loss"}:
        assert result[f"lengths_{name}"] == pytest.approx(expected[name], rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy(),
    ],
    ids=["name", "function", "object"],
)
def test_sparse_losses_are_those_of_a_plain_model(capsnet, loss):
    lengths = capsnet(IMAGES)["lengths"]
    expected = keras.losses.SparseCategoricalCrossentropy()(LABELS, lengths)
    compiled(capsnet, loss=loss, metrics=None)
    result = evaluated(capsnet, IMAGES, LABELS, batch_size=SAMPLES)
    assert result["lengths_loss"] == pytest.approx(float(expected), rel=1e-5)
    again = models.CapsNet.from_config(capsnet.get_config())
    again.set_weights(capsnet.get_weights())
    again.compile_from_config(capsnet.get_compile_config())
    again.run_eagerly = True
    assert evaluated(again, IMAGES, LABELS, batch_size=SAMPLES) == pytest.approx(result)


def test_several_objects_refuse_sparse_metrics():
    sizes = {"filters": 2, "kernel_size": 3, "primary_kernel_size": 3}
    model = models.capsnet((8, 8, 1), 3, **sizes, objects=2)
    for refused in (
        {"metrics": ["sparse_categorical_accuracy"]},
        {"loss": keras.losses.SparseCategoricalCrossentropy()},
    ):
        with pytest.raises(
            ValueError, match="is of one class a sample, but this model"
        ):
            model.compile(**refused)


def test_keras_has_what_the_models_need():
    """The only private parts of Keras that models use."""
    needed = "Keras no longer has {}, which models/unrolled.py needs"
    for name in ("_maybe_symbolic_build", "_symbolic_build"):
        function = getattr(keras.Model, name, None)
        assert function, needed.format(f"Model.{name}")
        taken = {*inspect.signature(function).parameters}
        assert {"iterator", "data_batch"} <= taken, needed.format("its arguments")
