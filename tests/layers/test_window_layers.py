# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers of lines, volumes and transposed convolutions."""

import layer_testing
import numpy as np
import pytest
import tensorflow as tf
from parameterized import parameterized

import tf_capsops
from tf_capsops import layers, routing

_CONVOLUTIONS = {
    # layer, its op, arguments, input, output
    "line": (
        layers.CapsuleConv1D,
        tf_capsops.capsule_conv1d,
        {"kernel_size": 3, "strides": 2, "padding": "same"},
        (2, 7, 3, 2, 4),
        (2, 4, 5, 2, 3),
    ),
    "volume": (
        layers.CapsuleConv3D,
        tf_capsops.capsule_conv3d,
        {"kernel_size": (2, 3, 1), "dilation_rate": (2, 1, 1)},
        (2, 4, 5, 3, 3, 2, 4),
        (2, 2, 3, 3, 5, 2, 3),
    ),
    "image_transposed": (
        layers.CapsuleConv2DTranspose,
        tf_capsops.capsule_conv2d_transpose,
        {"kernel_size": (4, 1), "strides": 2},
        (2, 3, 4, 3, 2, 4),
        (2, 8, 8, 5, 2, 3),
    ),
    "volume_transposed": (
        layers.CapsuleConv3DTranspose,
        tf_capsops.capsule_conv3d_transpose,
        {"kernel_size": 3, "strides": (1, 2, 2), "padding": "same"},
        (1, 2, 3, 2, 3, 2, 4),
        (1, 2, 6, 4, 5, 2, 3),
    ),
}
_ROUTED = {
    # layer, arguments, poses, parents
    "line": (layers.ConvCaps1D, {"strides": 2}, (2, 7, 3, 2, 2), (2, 3, 4, 2, 2)),
    "volume": (
        layers.ConvCaps3D,
        {"padding": "same"},
        (2, 3, 2, 3, 2, 2, 2),
        (2, 3, 2, 3, 4, 2, 2),
    ),
}
_RULES = [
    routing.EM(),
    routing.VB(),
    routing.Dynamic(),
    routing.SelfAttention(),
    routing.InvertedAttention(),
]


class WindowsTest(layer_testing.TestCase):
    @parameterized.expand(_CONVOLUTIONS)
    def test_convolution(self, name):
        layer_class, _, arguments, shape, expected = _CONVOLUTIONS[name]
        arguments = {"filters": 5, "pose_shape": (2, 3), **arguments}
        self.run_layer_test(
            layer_class,
            {**arguments, "kernel_regularizer": "l2", "activation": "relu"},
            input_shape=shape,
            expected_output_shape=expected,
            expected_num_trainable_weights=2,
            expected_num_losses=1,
        )

    @parameterized.expand(_ROUTED)
    def test_routed(self, name):
        layer_class, arguments, poses, expected = _ROUTED[name]
        arguments = {"filters": 4, "kernel_size": 3, "pose_shape": (2, 2), **arguments}
        self.run_class_serialization_test(layer_class(**arguments))
        layer = layer_class(**arguments)
        shapes = [(None, *([None] * (len(poses) - 4)), *poses[-3:])]
        shapes.append(shapes[0][:-2])
        assert layer.compute_output_shape(shapes)[0][-3:] == expected[-3:]
        parents, active = layer([tf.ones(poses), tf.ones(poses[:-2])])
        assert parents.shape == expected and active.shape == expected[:-2]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("deep", [(), (3,)])
@pytest.mark.parametrize("name", _CONVOLUTIONS)
def test_is_the_op_of_its_arguments(name, deep, dtype, device):
    layer_class, op, arguments, shape, expected = _CONVOLUTIONS[name]
    layer = layer_class(5, (*deep, 2, 3), **arguments, dtype=dtype)
    inputs = np.random.default_rng(1).random((*shape[:-2], *deep, *shape[-2:]))
    outputs = layer(tf.constant(inputs, dtype))
    assert outputs.shape == (*expected[:-2], *deep, *expected[-2:])
    assert layer.compute_output_shape(inputs.shape) == outputs.shape
    result = op(tf.constant(inputs, dtype), layer.kernel.value, **layer.window())
    np.testing.assert_array_equal(outputs, result)


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("name", _ROUTED)
def test_rules_route_lines_and_volumes_as_images(name, rule, device):
    """A line is an image of one row, and so is a volume of one slice and one row."""
    layer_class, arguments, shape, _ = _ROUTED[name]
    axes = len(shape) - 4
    wide = (*shape[:1], *[1] * (axes - 1), 7, *shape[-3:])
    poses = np.random.default_rng(2).uniform(-1, 1, wide).astype(np.float32)
    active = np.random.default_rng(3).random(wide[:-2], np.float32)
    given = {"filters": 4, "pose_shape": (2, 2), "routing": rule, **arguments}
    strides = given.pop("strides", 1)
    kernel = (*[1] * (axes - 1), 3)
    layer = layer_class(
        kernel_size=kernel, strides=(*[1] * (axes - 1), strides), **given
    )
    found = layer([poses, active])
    image = layers.ConvCaps2D(kernel_size=(1, 3), strides=(1, strides), **given)
    as_image = [
        each.reshape(2, 1, 7, *each.shape[1 + axes :]) for each in (poses, active)
    ]
    image(as_image)
    for own, other in zip(layer.variables, image.variables, strict=True):
        value = np.random.default_rng(5).uniform(-1, 1, own.shape)
        own.assign(value)
        other.assign(np.reshape(value, other.shape))
    found, expected = layer([poses, active]), image(as_image)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.reshape(own, other.shape), other, atol=1e-5)
    shares = layer.shares([poses, active])
    np.testing.assert_allclose(
        np.ravel(shares), np.ravel(image.shares(as_image)), atol=1e-5
    )


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda: layers.CapsuleConv1D(2, (4, 4), (3, 3)),
            "CapsuleConv1D: kernel_size must be one integer, got (3, 3)",
        ),
        (
            lambda: layers.CapsuleConv3D(2, (4, 4), 3, strides=(1, 2)),
            "CapsuleConv3D: strides must be one or three integers, got (1, 2)",
        ),
        (
            lambda: layers.CapsuleConv2DTranspose(2, (4, 4), 3, dilation_rate=2),
            "CapsuleConv2DTranspose: dilation_rate must be 1, got (2, 2)",
        ),
        (
            lambda: layers.CapsuleConv3D(2, (4, 4), 3)(tf.ones([1, 5, 5, 2, 4, 4])),
            "the input must be [batch, depth, height, width, channels, pose rows, pose "
            "columns], got shape (1, 5, 5, 2, 4, 4)",
        ),
        (
            lambda: layers.CapsuleConv3D(2, (4, 4), 3)(tf.ones([1, 2, 5, 5, 2, 4, 4])),
            "CapsuleConv3D: the input's depth is smaller than kernel_size (3, 3, 3)",
        ),
        (
            lambda: layers.ConvCaps1D(2, 3)(
                [tf.ones([1, 5, 5, 2, 4, 4]), tf.ones([1])]
            ),
            "ConvCaps1D: poses must be [batch, width, channels, pose rows, ",
        ),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(ValueError) as caught:
        make()
    assert text in str(caught.value)
