# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""SlimCaps1D, SlimCaps2D, SlimCaps3D and the transposed ones, as Keras layers."""

import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
from parameterized import parameterized

import tf_capsops
from tf_capsops import layers

_LAYERS = {
    # layer, arguments, input, output
    "line": (
        layers.SlimCaps1D,
        {"kernel_size": 3, "strides": 2, "padding": "same"},
        (2, 7, 3, 2),
        (2, 4, 5, 4),
    ),
    "image": (
        layers.SlimCaps2D,
        {"kernel_size": (2, 3), "dilation_rate": (2, 1), "leaky": True},
        (2, 4, 5, 3, 2),
        (2, 2, 3, 5, 4),
    ),
    "volume": (
        layers.SlimCaps3D,
        {"kernel_size": 2, "strides": (1, 2, 1), "routing_iterations": 2},
        (1, 3, 4, 2, 3, 2),
        (1, 2, 2, 1, 5, 4),
    ),
    "image_transposed": (
        layers.SlimCaps2DTranspose,
        {"kernel_size": (4, 1), "strides": 2, "routing_iterations": 1},
        (2, 3, 4, 3, 2),
        (2, 8, 8, 5, 4),
    ),
    "volume_transposed": (
        layers.SlimCaps3DTranspose,
        {"kernel_size": 3, "strides": (1, 2, 2), "padding": "same"},
        (1, 2, 3, 2, 3, 2),
        (1, 2, 6, 4, 5, 4),
    ),
}
every_layer = pytest.mark.parametrize("name", _LAYERS)
share = pytest.mark.parametrize("share_weights", [True, False])


def _made(name, **more):
    """Returns a layer and float32 inputs."""
    layer_class, arguments, shape, _ = _LAYERS[name]
    arguments = {"bias_initializer": "random_normal", **arguments, **more}
    keras.utils.set_random_seed(3)
    inputs = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
    return layer_class(5, 4, **arguments), inputs


class SlimCapsTest(layer_testing.TestCase):
    @parameterized.expand([(n, s) for n in _LAYERS for s in (True, False)])
    def test_layer(self, name, share_weights):
        layer_class, arguments, shape, expected = _LAYERS[name]
        for kernel_initializer in (None, "he_normal"):
            self.run_layer_test(
                layer_class,
                {
                    **{"filters": 5, "capsule_dim": 4, **arguments},
                    "share_weights": share_weights,
                    "kernel_initializer": kernel_initializer,
                    "kernel_regularizer": "l2",
                    "bias_constraint": "non_neg",
                },
                input_shape=shape,
                expected_output_shape=expected,
                expected_num_trainable_weights=2,
                expected_num_losses=1,
            )


@pytest.mark.parametrize(
    "policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16"]
)
@share
@every_layer
def test_is_the_op_of_its_arguments(name, share_weights, policy, device):
    layer, inputs = _made(name, share_weights=share_weights, dtype=policy)
    _, arguments, _, expected = _LAYERS[name]
    dtype = policy.removeprefix("mixed_")
    inputs = tf.constant(inputs, dtype)
    outputs = layer(inputs)
    assert outputs.shape == expected and outputs.dtype == dtype
    weights = [tf.cast(each, dtype) for each in layer.weights]
    iterations = arguments.get("routing_iterations", 3)
    operands = [inputs, *weights]
    if iterations == 1 and share_weights:  # see the next test
        if policy.startswith("mixed"):
            operands = [tf.cast(each, "float32") for each in operands]
        operands[0] = tf.reduce_sum(operands[0], -2, keepdims=True)
    result = tf_capsops.capsule_conv_routing(
        *operands,
        iterations=iterations,
        strides=arguments.get("strides", 1),
        padding=arguments.get("padding", "valid"),
        dilations=arguments.get("dilation_rate", 1),
        transposed=name.endswith("transposed"),
        leaky=arguments.get("leaky", False),
    )
    np.testing.assert_array_equal(outputs, tf.cast(result, dtype))
    assert {each.dtype for each in layer.weights} == {
        "float64" if policy == "float64" else "float32"
    }
    assert len(layer.kernel.shape) == len(inputs.shape) + (not share_weights)


@pytest.mark.parametrize(
    "filters, options",
    [
        (1, {}),
        (1, {"leaky": True}),
        (3, {"routing_iterations": 1}),
        (3, {"routing_iterations": 1, "leaky": True}),
        (3, {"routing_iterations": 1, "share_weights": False}),
    ],
)
def test_types_may_be_added_up_first(filters, options, device):
    inputs = tf.random.stateless_normal([2, 6, 5, 4, 3], (1, 2), dtype="float64")
    layer = layers.SlimCaps2D(
        *(filters, 4, 3), bias_initializer="ones", dtype="float64", **options
    )
    layer.build(inputs.shape)
    kernel, bias = (tf.convert_to_tensor(each) for each in layer.weights)
    iterations = options.get("routing_iterations", 3)

    def op(inputs, kernel):
        return tf_capsops.capsule_conv_routing(
            inputs, kernel, bias, iterations=iterations, leaky="leaky" in options
        )

    with tf.GradientTape(persistent=True) as tape:
        tape.watch([inputs, kernel])
        outputs, result = layer(inputs), op(inputs, kernel)
    np.testing.assert_allclose(outputs, result, rtol=1e-12, atol=1e-14)
    for mine, expected in zip(
        tape.gradient(outputs, [inputs, layer.kernel]),
        tape.gradient(result, [inputs, kernel]),
        strict=True,
    ):
        np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-14)


def test_without_a_bias(device):
    layer, inputs = _made("line", use_bias=False)
    assert np.abs(layer(inputs)).max() > 0.1
    assert [each.name for each in layer.weights] == ["kernel"]
    assert np.abs(layer(0 * inputs)).max() == 0


@share
@every_layer
def test_images_of_any_size_and_files(name, share_weights, tmp_path, device):
    """Models of unknown sizes, from files too."""
    layer, inputs = _made(name, share_weights=share_weights)
    axes = inputs.ndim - 3
    given = keras.Input((*[None] * axes, *inputs.shape[-2:]))
    model = keras.Model(given, layer(given))
    assert model.output_shape == (None, *[None] * axes, 5, 4)
    larger = np.concatenate([inputs, inputs[:, :, ::-1]], axis=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for images in (inputs, larger):
        expected = layer(images)
        assert expected.shape == layer.compute_output_shape(images.shape)
        for compute in (model, loaded, saved.serve):
            np.testing.assert_allclose(compute(images), expected, rtol=0, atol=1e-6)


@every_layer
def test_one_graph_takes_all_sizes(name, device):
    layer, inputs = _made(name)
    unknown = tf.TensorSpec([None] * (inputs.ndim - 2) + [*inputs.shape[-2:]])
    layer.build(inputs.shape)
    graph = tf.function(layer, [unknown], autograph=False)
    for images in (inputs, np.concatenate([inputs] * 2, 1), inputs[:0]):
        np.testing.assert_allclose(graph(images), layer(images), rtol=0, atol=1e-6)
    assert graph.experimental_get_tracing_count() == 1


@share
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("name, strides", [("image", 1), ("image_transposed", 2)])
def test_parents_start_about_as_long_as_children(
    name, strides, leaky, share_weights, device
):
    layer_class, *_ = _LAYERS[name]
    keras.utils.set_random_seed(2)
    layer = layer_class(
        *(2, 16, 4, strides),
        padding="same",
        leaky=leaky,
        routing_iterations=1,
        share_weights=share_weights,
    )
    children = np.random.default_rng(3).normal(size=[2, 12, 12, 8, 8])
    children /= np.linalg.norm(children, axis=-1, keepdims=True)
    squashed = np.square(np.linalg.norm(layer(children)[:, 4:8, 4:8], axis=-1))
    lengths = np.sqrt(squashed) / (1 - np.sqrt(squashed))  # before squashing
    assert 1.5 / 1.15 < np.sqrt(lengths.mean()) < 1.5 * 1.15


def test_weights_of_each_type_are_drawn_by_themselves():
    seeded = keras.initializers.GlorotUniform(seed=7)
    kernels = []
    for share_weights in (True, False, False):
        layer, inputs = _made(
            "image", share_weights=share_weights, kernel_initializer=seeded
        )
        layer(inputs)
        kernels.append(layer.kernel.numpy())
    shared, own, again = kernels
    np.testing.assert_array_equal(own, again)
    bound = np.sqrt(6 / (2 * 3 * (2 + 5 * 4)))
    for kernel in (shared, *np.moveaxis(own, 2, 0)):
        assert 0.9 * bound < np.abs(kernel).max() <= bound
    assert np.abs(own[:, :, 0] - own[:, :, 1]).max() > 0.1 * bound


@share
@pytest.mark.parametrize("empty", [-2, -1])
@pytest.mark.parametrize("kernel_initializer", [None, "he_normal"])
def test_without_types_or_numbers(kernel_initializer, empty, share_weights, device):
    shape = [2, 5, 5, 3, 2]
    shape[empty] = 0
    layer = layers.SlimCaps2D(
        *(4, 3, 2),
        bias_initializer="ones",
        kernel_initializer=kernel_initializer,
        share_weights=share_weights,
    )
    result = layer(np.zeros(shape, np.float32))
    ones = tf_capsops.squash(tf.ones(result.shape))
    assert result.shape == (2, 4, 4, 4, 3)
    np.testing.assert_allclose(result, ones, rtol=1e-6)


def test_sizes_of_zero_and_flags():
    layer = layers.SlimCaps2DTranspose(2, 4, (5, 1), 3)
    assert layer.compute_output_shape((1, 0, 0, 3, 2)) == (1, 2, 0, 2, 4)
    for flag in ("leaky", "share_weights", "use_bias"):
        text = f"SlimCaps2D: {flag} must be True or False, got 'false'"
        with pytest.raises(ValueError, match=text):
            layers.SlimCaps2D(2, 4, 3, **{flag: "false"})
        assert layers.SlimCaps2D(2, 4, 3, **{flag: np.True_}).get_config()[flag] is True


def test_weights_follow_the_type_of_capsules(device):
    """Without autocast, capsules may be of another type than the layer computes in."""
    layer, inputs = _made("image", dtype="mixed_float16", autocast=False)
    outputs = layer(inputs)
    whole, _ = _made("image")
    whole.build(inputs.shape)
    whole.set_weights([each.astype(np.float16) for each in layer.get_weights()])
    np.testing.assert_array_equal(outputs, whole(inputs))
    assert layer(inputs.astype(np.float16)).dtype == tf.float16


@every_layer
@pytest.mark.parametrize("of_types", [False, True])
def test_masked_children_have_no_share_in_anything(name, of_types, device):
    layer, inputs = _made(name)
    random = np.random.default_rng(4)
    mask = random.random(inputs.shape[: -1 if of_types else -2]) < 0.6
    seen = mask if of_types else mask[..., np.newaxis]
    without = np.where(seen[..., np.newaxis], inputs, 0).astype(np.float32)
    masked = tf.constant(np.where(seen[..., np.newaxis], inputs, np.nan))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(masked)
        result = layer(masked, mask=mask)
        expected = layer(without)
    np.testing.assert_array_equal(result, expected)
    gradient, of_kernel = tape.gradient(result, [masked, layer.kernel.value])
    kept = np.broadcast_to(seen, gradient.shape[:-1])
    assert np.all(gradient.numpy()[~kept] == 0) and np.any(gradient != 0)
    np.testing.assert_array_equal(
        of_kernel, tape.gradient(expected, layer.kernel.value)
    )


def test_the_mask_of_a_masking_layer_is_used(device):
    layer, inputs = _made("line")
    inputs[:, 3:5] = 9.0
    masking = keras.layers.Masking(9.0)
    given = keras.Input(inputs.shape[1:])
    outputs = keras.Model(given, layer(masking(given)))(inputs)
    inputs[:, 3:5] = 0
    np.testing.assert_array_equal(outputs, layer(inputs))
    assert getattr(layer(masking(inputs)), "_keras_mask", None) is None


def test_one_parent_is_routed_where_it_leaks(device):
    results = []
    for leaky in (False, True):
        for iterations in (1, 3):
            keras.utils.set_random_seed(3)
            layer = layers.SlimCaps2D(
                1, 4, 3, routing_iterations=iterations, leaky=leaky
            )
            results.append(layer(_made("image")[1]))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    assert np.abs(results[2] - results[3]).max() > 1e-3


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda: layers.SlimCaps2D(0, 4, 3),
            "SlimCaps2D: filters must be an integer >= 1, got 0",
        ),
        (
            lambda: layers.SlimCaps2D(2, 4.5, 3),
            "SlimCaps2D: capsule_dim must be an integer >= 1, got 4.5",
        ),
        (
            lambda: layers.SlimCaps1D(2, 4, 3, routing_iterations=0),
            "SlimCaps1D: routing_iterations must be an integer from 1 to 2147483647",
        ),
        (
            lambda: layers.SlimCaps3D(2, 4, (3, 3)),
            "SlimCaps3D: kernel_size must be one or three integers, got (3, 3)",
        ),
        (
            lambda: layers.SlimCaps2D(2, 4, 3, padding="full"),
            "SlimCaps2D: padding must be 'valid' or 'same', got 'full'",
        ),
        (
            lambda: layers.SlimCaps3DTranspose(2, 4, 3, dilation_rate=2),
            "SlimCaps3DTranspose: dilation_rate must be 1, got (2, 2, 2)",
        ),
        (
            lambda: layers.SlimCaps2D(2, 4, 3).build((None, 5, 5, 8)),
            "SlimCaps2D: the input must be [batch, height, width, types, capsule dim], "
            "got shape (None, 5, 5, 8)",
        ),
        (
            lambda: layers.SlimCaps1D(2, 4, 3).build((None, 5, None, 8)),
            "SlimCaps1D: only batch and width of [batch, width, types, capsule dim] "
            "may be unknown, got shape (None, 5, None, 8)",
        ),
        (
            lambda: layers.SlimCaps2D(2, 4, 3).build((None, 5, 2, 3, 8)),
            "SlimCaps2D: the input's width is smaller than kernel_size (3, 3)",
        ),
    ],
)
def test_bad_arguments_are_named(make, text):
    with pytest.raises(ValueError) as caught:
        make()
    assert text in str(caught.value)
