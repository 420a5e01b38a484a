# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv2D against the reference, and as a Keras layer."""

import finite_differences
import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from parameterized import parameterized
from reference import capsule_conv

import tf_capsops
from tf_capsops.layers import CapsuleConv2D

# Strides, dilations and poses are all different, so that none can be taken for
# another: arguments of the layer, and the shape of an input for them.
_LAYERS = {
    "valid": ({"pose_shape": (2, 5), "kernel_size": (2, 3)}, (2, 6, 7, 3, 2, 4)),
    "strided": (
        {"pose_shape": (3, 4), "kernel_size": 3, "strides": (2, 3)},
        (2, 9, 8, 2, 3, 4),
    ),
    "same_dilated": (
        {
            "pose_shape": (1, 2),
            "kernel_size": (3, 2),
            "padding": "same",
            "dilation_rate": (1, 2),
        },
        (3, 5, 6, 2, 1, 3),
    ),
    "rank_3": ({"pose_shape": (2, 3, 5), "kernel_size": 2}, (2, 4, 5, 3, 2, 3, 4)),
}


def _layer(case, **changes):
    """Returns a layer with random weights and an input for it."""
    arguments, shape = _LAYERS[case]
    random = np.random.default_rng(5)
    layer = CapsuleConv2D(6, **{**arguments, **changes})
    layer.build(shape)
    layer.set_weights([random.normal(size=each.shape) for each in layer.weights])
    return layer, random.normal(size=shape)


@pytest.mark.parametrize("case", _LAYERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_is_the_op_of_its_arguments(device, dtype, case):
    layer, inputs = _layer(case, use_bias=False, dtype=dtype)
    inputs = tf.constant(inputs, dtype)
    result = layer(inputs)
    assert result.dtype == dtype
    assert result.shape == layer.compute_output_shape(inputs.shape)
    expected = tf_capsops.capsule_conv2d(
        inputs,
        tf.convert_to_tensor(layer.kernel),
        layer.strides,
        layer.padding.upper(),
        layer.dilation_rate,
    )
    np.testing.assert_array_equal(result, expected)


def test_the_figure_of_the_paper(device):
    """Rank-3 capsules of ones give 48 everywhere: figure 2 of Chen et al. (2020)."""
    layer = CapsuleConv2D(1, (3, 3, 3), 4, kernel_initializer="ones", use_bias=False)
    result = layer(tf.ones([1, 5, 5, 1, 3, 3, 3]))
    np.testing.assert_array_equal(result, np.full([1, 2, 2, 1, 3, 3, 3], 48))


def test_poses_of_one_row_make_a_plain_convolution(device):
    images = tf.random.stateless_normal([2, 6, 6, 12], [1, 2])
    capsules = tf.reshape(images, [2, 6, 6, 4, 1, 3])
    layer = CapsuleConv2D(5, (1, 3), 3)
    result = layer(capsules)
    plain = keras.layers.Conv2D(15, 3)
    plain.build(images.shape)
    kernel = np.transpose(layer.kernel.numpy(), [0, 1, 2, 4, 3, 5])
    plain.set_weights([kernel.reshape(3, 3, 12, 15), np.zeros(15)])
    exact = [np.asarray(each, np.float64) for each in (capsules, layer.kernel)]
    tolerances.assert_close(
        result,
        capsule_conv.forward(*exact),
        np.reshape(plain(images), result.shape),
        magnitude=capsule_conv.forward(*map(np.abs, exact)),
    )


@pytest.mark.parametrize("case", ["valid", "rank_3"])
def test_bias_and_activation_follow_the_convolution(device, case):
    bare, inputs = _layer(case, use_bias=False, dtype="float64")
    layer, _ = _layer(case, activation=tf_capsops.squash, dtype="float64")
    assert layer.bias.shape == (6, *layer.pose_shape)
    bare.set_weights(layer.get_weights()[:1])
    expected = tf_capsops.squash(bare(inputs) + layer.bias)
    np.testing.assert_array_equal(layer(inputs), expected)
    assert len(bare.weights) == 1


class CapsuleConv2DTest(layer_testing.TestCase):
    @parameterized.expand(
        [
            ("rank_2", (2, 5), (2, 7, 6, 3, 2, 4), (2, 3, 2, 4, 2, 5)),
            ("rank_3", (3, 2, 5), (2, 7, 6, 3, 3, 2, 4), (2, 3, 2, 4, 3, 2, 5)),
        ]
    )
    def test_layer(self, _, pose_shape, input_shape, expected):
        self.run_layer_test(
            CapsuleConv2D,
            {
                "filters": 4,
                "pose_shape": pose_shape,
                "kernel_size": (2, 3),
                "strides": 2,
                "activation": "relu",
                "kernel_initializer": "he_normal",
                "kernel_regularizer": "l2",
                "bias_regularizer": "l1",
                "bias_constraint": "non_neg",
            },
            input_shape=input_shape,
            expected_output_shape=expected,
            expected_num_trainable_weights=2,
            expected_num_losses=2,
        )


@pytest.mark.parametrize("pose_shape", [(4, 4), (3, 4, 4)])
@pytest.mark.parametrize("initializer", ["he_normal", "glorot_uniform"])
def test_initializers_see_the_fans_of_a_convolution(pose_shape, initializer):
    keras.utils.set_random_seed(3)
    layer = CapsuleConv2D(32, pose_shape, 3, kernel_initializer=initializer)
    layer.build((None, 9, 9, 16, *pose_shape))
    fan_in, fan_out = 3 * 3 * 16 * 4, 3 * 3 * 32 * 4
    variance = 2 / fan_in if initializer == "he_normal" else 2 / (fan_in + fan_out)
    kernel = layer.kernel.numpy()
    # Five standard errors of the mean of as many squares as there are weights.
    assert abs(np.square(kernel).mean() / variance - 1) < 5 * np.sqrt(2 / kernel.size)


def test_matrices_of_a_capsule_start_differently_and_alike_for_a_seed():
    seeded = keras.initializers.HeNormal(seed=4)
    kernels = []
    for _ in range(2):
        layer = CapsuleConv2D(2, (3, 4, 4), 1, kernel_initializer=seeded)
        layer.build((None, 5, 5, 2, 3, 4, 4))
        kernels.append(layer.kernel.numpy())
    np.testing.assert_array_equal(*kernels)
    first, second, third = np.moveaxis(kernels[0], 4, 0)
    assert np.all(first != second) and np.all(second != third)


@pytest.mark.parametrize("pose_shape", [(1, 2), (3, 1, 2)])
def test_initializers_may_be_functions(pose_shape):
    def count(shape, dtype=None):
        return np.arange(np.prod(shape)).reshape(shape)

    layer = CapsuleConv2D(2, pose_shape, 1, kernel_initializer=count)
    layer.build((None, 5, 5, 1, *pose_shape[:-1], 1))
    for matrices in np.moveaxis(layer.kernel.numpy(), 4, 0):
        np.testing.assert_array_equal(matrices.reshape(-1), range(matrices.size))


def test_gradients_reach_input_kernel_and_bias(device):
    layer = CapsuleConv2D(2, (2, 3), 2, activation=tf_capsops.squash, dtype="float64")
    layer.build((1, 3, 3, 1, 2, 2))
    random = np.random.default_rng(6)
    inputs = random.normal(size=[1, 3, 3, 1, 2, 2])
    weights = [random.normal(size=each.shape) for each in layer.weights]

    def compute(inputs, *weights):
        return layer.stateless_call(weights, [], inputs)[0]

    finite_differences.assert_gradients_agree(compute, [inputs, *weights])


def test_empty_batch(device):
    assert CapsuleConv2D(4, (2, 3), 2)(tf.zeros([0, 5, 5, 1, 2, 2])).shape[0] == 0


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_keeps_weights_in_float32(device, policy):
    layer = CapsuleConv2D(4, (2, 3), 2, activation="relu", dtype=policy)
    capsules = tf.ones([2, 5, 5, 1, 2, 2])
    with tf.GradientTape() as tape:
        result = layer(capsules)
    assert result.dtype == policy.removeprefix("mixed_")
    assert [weight.dtype for weight in layer.weights] == ["float32", "float32"]
    sources = [weight.value for weight in layer.weights]
    assert [g.dtype for g in tape.gradient(result, sources)] == [tf.float32] * 2


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_saved_with_unknown_batch_height_and_width(tmp_path, padding):
    inputs = keras.Input([None, None, 2, 3, 4])
    layer = CapsuleConv2D(
        5, (3, 2), 3, strides=2, padding=padding, activation=tf_capsops.squash
    )
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, None, None, 5, 3, 2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for shape in ([1, 7, 9, 2, 3, 4], [3, 8, 5, 2, 3, 4]):
        capsules = tf.random.stateless_normal(shape, [1, 2])
        expected = model(capsules)
        assert expected.shape == layer.compute_output_shape(shape)
        np.testing.assert_array_equal(loaded(capsules), expected)
        # The graph may fuse what is run one by one here: the last bits may differ.
        allowed = 8 * tolerances.ulp(np.float32)
        served = saved.serve(capsules)
        np.testing.assert_allclose(served, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"filters": 0}, "filters must be an integer >= 1, got 0"),
        ({"pose_shape": 4}, r"pose_shape must be \(rows, columns\) or \(depth, .* 4$"),
        ({"pose_shape": (4, 4, 4, 4)}, r"or \(depth, rows, columns\), got \(4, 4, 4"),
        ({"pose_shape": (4, 0)}, "pose_shape must be an integer >= 1, got 0"),
        *layer_testing.BAD_WINDOWS,
    ],
)
def test_bad_arguments_are_named(changes, text):
    with pytest.raises(ValueError, match=text):
        CapsuleConv2D(
            **{"filters": 2, "pose_shape": (4, 4), "kernel_size": 3, **changes}
        )


@pytest.mark.parametrize(
    "pose_shape, shape, text",
    [
        (
            (4, 4),
            (None, 8, 8, 3),
            r"with pose_shape \(4, 4\) the input must be \[batch",
        ),
        ((2, 4, 4), (None, 8, 8, 3, 4, 4), "pose depth, pose rows, pose columns"),
        ((4, 4), (None, 8, 8, None, 4, 4), "only batch, height and width"),
        ((4, 5), (None, 8, 8, 1, 3, 4), r"pose_shape must be \(3, 5\) for an input"),
        ((2, 3, 5), (None, 8, 8, 1, 3, 3, 4), r"pose_shape must be \(3, 3, 5\) for"),
        ((4, 4), (None, 8, 2, 1, 4, 4), r"width is smaller than kernel_size \(3, 3\)"),
        ((4, 4), (None, 0, 8, 1, 4, 4), "height is smaller than"),
    ],
)
def test_bad_shapes_are_named(pose_shape, shape, text):
    with pytest.raises(ValueError, match=text):
        CapsuleConv2D(2, pose_shape, 3).build(shape)


def test_other_poses_than_built_for_are_refused(device):
    layer, inputs = _layer("valid")
    with pytest.raises(ValueError, match="expected axis 3 of input shape"):
        layer(inputs[:, :, :, :2])
