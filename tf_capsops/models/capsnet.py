# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The capsule network of Sabour, Frosst and Hinton, with its decoder."""

import inspect

import numpy as np
import tensorflow as tf

from tf_capsops.arguments import image_range, positive_int, positive_pair
from tf_capsops.models.autoencoder import Autoencoder, Inference
from tf_capsops.models.parts import new_parts
from tf_capsops.models.sizes import checked_sizes
from tf_capsops.registered import registered


@registered
class CapsNetInference(Inference):
    """The functional model that `CapsNet.inference_model` returns."""

    owner = "CapsNet"


@registered
class CapsNet(Autoencoder):
    """A capsule network that classifies images and reconstructs them; see `capsnet`.

    Call arguments: images `[B, H, W, C]`, or a dict or list of `"images"` and
    `"labels"`. The decoder draws from the capsule of the label if there is one, as in
    training, and otherwise from the longest capsule.

    Returns a dict: `"lengths"` `[B, num_classes]` and `"reconstruction"`
    `[B, H, W, C]`. With two or more `objects`, the decoder draws each object by itself,
    from the capsules of the labels' classes, or else from the longest capsules. The
    reconstruction is then `[B, objects, H, W, C]`, in the order of the classes.

    `fit` and `evaluate` take images and one of:

    * labels, integers or one-hot;
    * a dict or list of the targets `"lengths"` (labels) and `"reconstruction"` (the
      images to draw). Several `objects` need this, and labels with a 1 for each object.

    `sample_weight` weights both outputs, or is a dict or list by output. The sub-models
    are `encoder` (images to capsules) and `decoder` (masked, flattened capsules to
    images); `encode` and `decode` call them. `routing_coefficients` shows how routing
    divides the capsules of an image.

    >>> import numpy as np
    >>> from tf_capsops.models import CapsNet
    >>> model = CapsNet((8, 8, 1), 10, kernel_size=3, primary_kernel_size=3)
    >>> capsules = model.encode(np.zeros([2, 8, 8, 1]))
    >>> model.decode(capsules).shape.as_list()
    [2, 8, 8, 1]
    >>> model.routing_coefficients(np.zeros([2, 8, 8, 1])).shape.as_list()
    [2, 2, 2, 32, 10]
    """

    owner = "CapsNet"
    inference = CapsNetInference

    def __init__(
        self,
        input_shape,
        num_classes,
        filters=256,
        kernel_size=9,
        primary_channels=32,
        primary_dim=8,
        primary_kernel_size=9,
        primary_strides=2,
        capsule_dim=16,
        routing_iterations=3,
        decoder_units=(512, 1024),
        reconstruction_weight=0.0005,
        objects=1,
        **kwargs,
    ):
        image_shape, num_classes = checked_sizes("CapsNet", input_shape, num_classes)
        kernel_size = positive_pair("CapsNet", "kernel_size", kernel_size)
        if any(size < kernel for size, kernel in zip(image_shape, kernel_size)):
            raise ValueError(
                f"CapsNet: input_shape must be at least kernel_size {kernel_size}, got "
                f"{image_shape}"
            )
        objects = positive_int("CapsNet", "objects", objects)
        if objects > num_classes:
            raise ValueError(
                f"CapsNet: objects must be at most num_classes {num_classes}, got "
                f"{objects}"
            )
        arguments = {
            "input_shape": image_shape,
            "num_classes": num_classes,
            "filters": positive_int("CapsNet", "filters", filters),
            "kernel_size": kernel_size,
            "primary_channels": primary_channels,
            "primary_dim": primary_dim,
            "primary_kernel_size": primary_kernel_size,
            "primary_strides": primary_strides,
            "capsule_dim": capsule_dim,
            "routing_iterations": routing_iterations,
            "decoder_units": _positive_ints("decoder_units", decoder_units),
            "reconstruction_weight": reconstruction_weight,
            "objects": objects,
        }
        super().__init__(arguments, **kwargs)

    def new_parts(self):
        return new_parts(self._arguments, self.dtype_policy)

    def routing_coefficients(self, images):
        """Returns how routing divides the primary capsules among the classes.

        These are the c of the last iteration: procedure 1 and equation 3 of Sabour et
        al. (2017).

        Args:
          images: `[B, H, W, C]`.

        Returns:
          `[B, H', W', primary_channels, num_classes]`: nonnegative, adding up to 1 over
          the classes. `primary_centers` gives the H' x W' positions.

        Raises:
          ValueError: if the images have another shape or are not scaled.
        """
        conv, primary, digit = self.encoder.layers
        images = self._checked(image_range("CapsNet", images))
        capsules = primary(conv(images))
        size = [len(centers) for centers in self.primary_centers]
        coefficients = digit.coefficients(capsules)
        return tf.reshape(
            coefficients, [-1, *size, primary.channels, digit.num_capsules]
        )

    @property
    def primary_centers(self):
        """The centers of the primary capsules' receptive fields, in pixels.

        Two arrays, `[H']` of rows and `[W']` of columns. Centers are `primary_strides`
        apart. `primary_field` is the size of a receptive field.
        """
        conv, primary, _ = self.encoder.layers
        fields = zip(conv.kernel_size, primary.kernel_size, strict=True)
        last = [first + second - 2 for first, second in fields]
        return tuple(
            np.arange(0, pixels - behind, stride) + behind / 2
            for pixels, behind, stride in zip(
                self.image_shape, last, primary.strides, strict=False
            )
        )

    @property
    def primary_field(self):
        """The height and width of a primary capsule's receptive field, in pixels."""
        conv, primary, _ = self.encoder.layers
        fields = zip(conv.kernel_size, primary.kernel_size, strict=True)
        return tuple(first + second - 1 for first, second in fields)


def _positive_ints(name, values):
    """Returns a list of positive ints as a tuple, or raises a ValueError."""
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"CapsNet: {name} must be a list of integers, got {values!r}")
    return tuple(positive_int("CapsNet", name, each) for each in values)


def capsnet(*args, **kwargs):
    """The capsule network of Sabour, Frosst and Hinton (2017), with its decoder.

    The layers are a convolution with relu, `PrimaryCaps`, `DigitCaps` and `Length`. A
    decoder of fully connected layers reconstructs the image from the winning capsule.
    The defaults are the paper's (section 4) for 28 x 28 digits.

    Args:
      input_shape: (height, width, channels) of the images. Their values must be
        floating-point numbers from 0 to 1. Standardized images train, too, but the
        decoder cannot draw them. Integers raise a `ValueError`; so do numbers above 10,
        except inside your own `tf.function`.
      num_classes: the number of classes.
      filters: features of the first convolution.
      kernel_size: the kernel size of the first convolution, one or two ints.
      primary_channels: primary capsules at each position.
      primary_dim: the length of a primary capsule's vector.
      primary_kernel_size: the kernel size of `PrimaryCaps`.
      primary_strides: the strides of `PrimaryCaps`.
      capsule_dim: the length of a class capsule's vector.
      routing_iterations: how often routing computes the class capsules.
      decoder_units: units of the decoder's hidden layers.
      reconstruction_weight: the weight of the reconstruction's summed squared error
        in the loss; the margin loss has 1.
      objects: the number of objects, all of different classes, in an image.
      **kwargs: `name` and `dtype`, as for every Keras model.

    Returns:
      A `CapsNet`, built but not compiled. `compile()` needs no arguments,
      `fit(images, labels)` takes integer or one-hot labels, and `predict(images)`
      returns a dict of `"lengths"` and `"reconstruction"`.

    Raises:
      ValueError: if an argument is not as above, or the images are too small for the
        kernels.

    >>> import numpy as np
    >>> import tf_capsops
    >>> model = tf_capsops.models.capsnet(
    ...     (8, 8, 1), 10, filters=16, kernel_size=3, primary_channels=4,
    ...     primary_kernel_size=3, decoder_units=(32,))
    >>> model.compile("adam")
    >>> history = model.fit(np.zeros([4, 8, 8, 1]), np.arange(4), verbose=0)
    >>> outputs = model.predict(np.zeros([4, 8, 8, 1]), verbose=0)
    >>> outputs["lengths"].shape, outputs["reconstruction"].shape
    ((4, 10), (4, 8, 8, 1))
    """
    return CapsNet(*args, **kwargs)


# So that `help` shows the arguments of CapsNet.
_, *_parameters = inspect.signature(CapsNet.__init__).parameters.values()
capsnet.__signature__ = inspect.Signature(_parameters)
