# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A network of nothing but capsule convolutions, in the spirit of P-CapsNets."""

import math

import keras

from tf_capsops.arguments import positive_int, scaled_images
from tf_capsops.layers import CapsuleConv2D, Length
from tf_capsops.models.images import ImageModel
from tf_capsops.models.sequential import Sequential
from tf_capsops.ops.squash import squash
from tf_capsops.registered import registered
from tf_capsops.routing import exponential_squash


def p_capsnet(
    input_shape,
    num_classes,
    filters=(8, 16, 16),
    kernel_sizes=(5, 3, 3),
    strides=(2, 2, 1),
    pose_shape=(4, 4),
    name="p_capsnet",
    dtype=None,
    *,
    negative_slope=None,
    squash_size=None,
    use_bias=True,
):
    """A network of capsule convolutions only, without routing and without a decoder.

    It is in the spirit of Chen, Li, Wang and Crandall, "P-CapsNets: a General Form of
    Convolutional Neural Networks" (2019): every layer is a capsule convolution, the
    weights learn what routing would find, and the lengths of the last layer's capsules
    are the scores of the classes. The default sizes are not the paper's.

    * An image is read as capsules with 1 x 1 poses, one for each channel. A capsule
      convolution cannot add rows to poses. So the first layer returns poses of one row
      with as many elements as `pose_shape`, which are then reshaped to that shape.
    * The next layers map poses of `pose_shape` to poses of `pose_shape`. All layers but
      the last are followed by relu, and none by a normalization.
    * The last layer has a kernel as large as the map, and one filter for each class.
      Its poses, flattened and squashed, are the class capsules. Their lengths are the
      result.

    In the network that the authors published with their code, relu and
    `routing.exponential_squash` follow every layer, including the last; see
    `negative_slope` and `squash_size`. It is the preset `chen` of `tf-capsops train`,
    with poses of 4 x 8 and 4 x 16.

    Args:
      input_shape: (height, width, channels) of the images. Their values must be
        floating-point numbers from 0 to 1, or standardized. Integers raise a
        `ValueError`; so do numbers above 10, except inside your own `tf.function`.
      num_classes: the number of classes.
      filters: capsules at each pixel, for every layer but the last.
      kernel_sizes: kernel sizes of these layers, one or two ints each.
      strides: strides of these layers, one or two ints each.
      pose_shape: (P, Q), or (G, P, Q) for capsules of rank 3; or a list of such shapes,
        one for each layer including the last, all with the same P and G.
      name: the model's name.
      dtype: a dtype policy; with `"mixed_float16"`, `compile` enables loss scaling.
      negative_slope: the slope of relu below zero, a number from 0 to 1; such a relu
        follows every layer, including the last. None for a slope of 0, and no relu
        after the last layer.
      squash_size: after each relu, `exponential_squash` squashes the elements of a pose
        in groups of this size, such as 8 for the rows of 4 x 8 poses; it also squashes
        each class capsule as a whole. None for no squashing except for the class
        capsules, by `squash`.
      use_bias: whether the layers have biases.

    Returns:
      A `keras.Sequential`, built but not compiled, from images `[B, H, W, C]` to
      lengths `[B, num_classes]`, in float32 and below 1, for `losses.MarginLoss`. Its
      layer `class_capsules` returns `[B, num_classes, elements of a pose]`.

    Raises:
      ValueError: if an argument is not as above, or the images are too small for the
        kernels.

    >>> import numpy as np
    >>> import tf_capsops
    >>> model = tf_capsops.models.p_capsnet((28, 28, 1), 10)
    >>> model.count_params()
    82336
    >>> model.compile("adam", tf_capsops.losses.MarginLoss(), metrics=["accuracy"])
    >>> history = model.fit(np.zeros([4, 28, 28, 1]), np.arange(4), verbose=0)
    >>> model.predict(np.zeros([4, 28, 28, 1]), verbose=0).shape
    (4, 10)
    """
    image_shape = _sizes("input_shape", input_shape, (3,))
    num_classes = positive_int("p_capsnet", "num_classes", num_classes)
    layers = filters, kernel_sizes, strides
    lengths = {len(each) if isinstance(each, (list, tuple)) else 0 for each in layers}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            "p_capsnet: filters, kernel_sizes and strides must have one entry a layer, "
            f"got {filters}, {kernel_sizes} and {strides}"
        )
    *poses, class_pose = _poses(pose_shape, len(filters) + 1)
    _check_activations(negative_slope, squash_size, poses)
    shared = {"use_bias": use_bias, "dtype": dtype}
    model = PCapsNet(
        [
            keras.Input(image_shape, name="images"),
            keras.layers.Reshape((*image_shape, 1, 1), dtype=dtype, name="pixels"),
        ],
        name=name,
    )
    # With mixed_float16 as the model's own policy, Keras scales the loss.
    model.dtype_policy = dtype
    each = enumerate(zip(*layers, poses), start=1)
    for number, (count, kernel_size, stride, pose) in each:
        convolution = CapsuleConv2D(
            count,
            (1, math.prod(pose)) if number == 1 else pose,
            kernel_size,
            strides=stride,
            activation="relu" if negative_slope is None else None,
            kernel_initializer="he_normal",
            name=f"conv_{number}",
            **shared,
        )
        model.add(convolution)
        outer = model.output_shape[1:4]
        for layer in _between(number, outer, pose, negative_slope, squash_size, dtype):
            model.add(layer)
    map_size = model.output_shape[1:3]
    model.add(
        CapsuleConv2D(num_classes, class_pose, map_size, name="classes", **shared)
    )
    if negative_slope is not None:
        model.add(_relu(negative_slope, "relu_classes", dtype))
    flat = num_classes, math.prod(class_pose)
    shrink = exponential_squash if squash_size else squash
    # The loss compares lengths with margins, so they must be float32.
    for layer in (
        keras.layers.Reshape(flat, dtype="float32", name="flat"),
        keras.layers.Activation(shrink, dtype="float32", name="class_capsules"),
        Length(dtype="float32", name="lengths"),
    ):
        model.add(layer)
    return model


@registered
class PCapsNet(ImageModel, Sequential):
    """The `keras.Sequential` that `p_capsnet` returns.

    It rejects unscaled images, and saves its own `trainable` and dtype policy.
    """

    owner = "p_capsnet"

    def call(self, inputs, training=None, mask=None):
        images = scaled_images("p_capsnet", self.images_of(inputs))
        return super().call(images, training=training, mask=mask)


def _relu(negative_slope, name, dtype):
    return keras.layers.ReLU(negative_slope=negative_slope, dtype=dtype, name=name)


def _between(number, outer, pose, negative_slope, squash_size, dtype):
    """Yields the layers after a convolution: relu, squash, and reshape to poses."""
    if negative_slope is not None:
        yield _relu(negative_slope, f"relu_{number}", dtype)
    if squash_size:
        vectors = (*outer, math.prod(pose) // squash_size, squash_size)
        yield keras.layers.Reshape(vectors, dtype=dtype, name=f"vectors_{number}")
        yield keras.layers.Activation(
            exponential_squash, dtype=dtype, name=f"squash_{number}"
        )
    if number == 1 or squash_size:
        name = "poses" if number == 1 else f"poses_{number}"
        yield keras.layers.Reshape((*outer, *pose), dtype=dtype, name=name)


def _poses(pose_shape, count):
    """Returns a list of `count` pose shapes: one per layer, or one shape for all."""
    is_list = isinstance(pose_shape, (list, tuple))
    if not (is_list and pose_shape and isinstance(pose_shape[0], (list, tuple))):
        return [_sizes("pose_shape", pose_shape, (2, 3))] * count
    shapes = [_sizes("each pose_shape", shape, (2, 3)) for shape in pose_shape]
    if len(shapes) != count:
        raise ValueError(
            "p_capsnet: pose_shape must be one shape, or one for every layer and one "
            f"for the classes, {count} here, got {len(shapes)}: {pose_shape}"
        )
    if len({shape[:-1] for shape in shapes}) > 1:
        raise ValueError(
            "p_capsnet: a convolution changes only the last dimension of a pose: the "
            f"others must be the same in all of pose_shape, got {pose_shape}"
        )
    return shapes


def _check_activations(negative_slope, squash_size, poses):
    slope = 0 if negative_slope is None else negative_slope
    if not isinstance(slope, (int, float)) or not 0 <= slope <= 1:
        raise ValueError(
            "p_capsnet: negative_slope must be a number from 0 to 1, got "
            f"{negative_slope!r}"
        )
    if squash_size is None:
        return
    squash_size = positive_int("p_capsnet", "squash_size", squash_size)
    for pose in poses:
        if math.prod(pose) % squash_size:
            raise ValueError(
                f"p_capsnet: squash_size must divide the {math.prod(pose)} elements of "
                f"a pose of {pose}, got {squash_size}"
            )


def _sizes(name, shape, ranks):
    """Returns `shape` as a tuple of positive ints whose length is one of `ranks`."""
    if not isinstance(shape, (list, tuple)) or len(shape) not in ranks:
        raise ValueError(
            f"p_capsnet: {name} must be {' or '.join(map(str, ranks))} integers, got "
            f"{shape!r}"
        )
    return tuple(positive_int("p_capsnet", name, size) for size in shape)
