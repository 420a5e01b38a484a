# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures with masks of classes, decoded as they are needed."""

import dataclasses
import os
import pathlib

import numpy as np
import tensorflow as tf

from tf_capsops import _console
from tf_capsops.data import pairs, pictures
from tf_capsops.data.samples import on_processor

_PNG = b"\x89PNG\r\n\x1a\n"  # the first bytes of a PNG file
_REMEDY = "; docs/segmentation.md shows how to convert masks"
_DEPTH = 24  # the place of the byte in a PNG file with the number of bits per channel


@dataclasses.dataclass(frozen=True)
class MaskedPictures(pictures.Pictures):
    """`Pictures` whose targets are masks, int32 `[B, H, W, 1]`.

    The classes are named after their grays in the masks. The first is the background.
    """

    has_masks = True


class MaskedSamples(pictures.PictureSamples):
    """Pictures and masks by the paths of their files.

    Args:
      paths: the paths of the pictures.
      masks: the paths of their masks.
      image_shape: (height, width, channels) that the pictures are converted to.
      orientations: how the pictures are turned, as `pictures.look_at` returns it.
      classes: the number of the class of each gray, `[256]`.
    """

    def __init__(self, paths, masks, image_shape, orientations, classes):
        super().__init__(paths, np.zeros(len(paths)), image_shape, orientations)
        self._mask_files, self._grays = np.asarray(masks, np.object_), classes
        self._masks, self._classes = on_processor(
            np.array([os.fsencode(path) for path in masks], np.object_),
            np.asarray(classes, np.int32),
        )

    def make(self, indices, draws):
        images, _ = super().make(indices, draws)
        return images, self.targets(indices, draws)

    def targets(self, indices, draws):
        size = self._image_shape[:2]
        masks = tf.map_fn(
            lambda path: tf.ensure_shape(_resized(_gray(path), size), [*size, 1]),
            tf.gather(self._masks, indices),
            fn_output_signature=tf.TensorSpec([*size, 1], tf.uint8),
        )
        return tf.gather(self._classes, tf.cast(masks, tf.int32))

    def only(self, indices):
        """Returns the samples with these numbers."""
        return MaskedSamples(
            self._files[indices],
            self._mask_files[indices],
            self._image_shape,
            self._orientations.numpy()[indices],
            self._grays,
        )


def load(
    folder,
    seed=0,
    *,
    image_size=None,
    color_mode=None,
    test_share=None,
    skip_broken=False,
    class_names=None,
    training=True,
):
    """Returns the `MaskedPictures` of a folder, after a check of each file.

    Args: as for `tf_capsops.data.load`.

    Raises:
      ValueError: if the folder has another layout, a picture has no mask, a file is no
        picture, a mask is no gray PNG of at most 8 bits, sizes or colors differ and no
        option says what to convert them to, or the masks have one class; the message
        names the file or folder.
    """
    image_size = pictures.checked_size(image_size, color_mode)
    kind = pairs.PICTURES
    trained, tested, share = pairs.find(kind, folder, seed, test_share, training)
    paths = np.array(trained + tested, np.object_).reshape(-1, 2)
    is_training = np.arange(len(paths)) < len(trained)
    shapes, orientations = pictures.look_at(paths[:, 0])
    mask_shapes, _ = pictures.look_at(paths[:, 1])
    good = (shapes[:, 0] > 0) & (mask_shapes[:, 0] > 0)
    broken = paths[:, 0][shapes[:, 0] == 0], paths[:, 1][mask_shapes[:, 0] == 0]
    skipped = np.concatenate(broken).tolist()
    pictures.check_broken(skipped, skip_broken)
    if skipped:
        pictures.warn_of_skipped(skipped)
    pairs.check_parts(folder, kind, good, is_training, training)
    for path, (*_, channels) in zip(paths[good, 1], mask_shapes[good]):
        _check_form(path, channels)
    other = (shapes != mask_shapes)[:, :2].any(axis=1) & good
    exchanged = (shapes[:, :2] == mask_shapes[:, 1::-1]).all(axis=1)
    turned = other & exchanged & (orientations > 4)
    if turned.any():
        image, mask = paths[turned.argmax()]
        raise ValueError(
            f"{image} is turned upright, as its Exif part says, and {mask} is not: "
            "write a mask of what is seen, or a picture without that part"
        )
    if other.any() and image_size is None:
        image, mask = paths[other.argmax()]
        raise ValueError(
            f"{mask} and {image} differ in size: give --image-size PIXELS to convert "
            "all pictures and masks"
        )
    shape = pictures.image_shape(paths[good, 0], shapes[good], image_size, color_mode)
    masks = paths[good & is_training, 1], paths[good & ~is_training, 1]
    names, classes = pairs.classes(kind, folder, *masks, class_names, _grays_of)
    train, test = (
        MaskedSamples(*paths[part].T, shape, orientations[part], classes)
        for part in (good & is_training, good & ~is_training)
    )
    options = {
        "image_size": list(shape[:2]),
        "color_mode": "grayscale" if shape[2] == 1 else "rgb",
        "test_share": share,
        "skip_broken": skip_broken,
    }
    name = os.path.basename(os.path.abspath(folder))
    return MaskedPictures(name, names, shape, train, test, skipped, options)


def _check_form(path, channels):
    """Raises a ValueError unless a mask is a gray PNG file of at most 8 bits."""
    with open(path, "rb") as file:
        start = file.read(_DEPTH + 1)
    if not start.startswith(_PNG):
        raise ValueError(
            f"{path} is no PNG file: masks must be, for JPEG changes grays{_REMEDY}"
        )
    if channels > 2:
        raise ValueError(
            f"{path} has colors, or a palette of them: masks must be gray, with a gray "
            f"for each class{_REMEDY}"
        )
    if start[_DEPTH] > 8:
        raise ValueError(
            f"{path} has {start[_DEPTH]} bits for each pixel: masks must have 8 at most"
        )


def _gray(path):
    """Returns a mask's grays, uint8 `[H, W, 1]`."""
    grays = tf.io.decode_image(
        tf.io.read_file(path), channels=1, expand_animations=False
    )
    return tf.ensure_shape(grays, [None, None, 1])


def _resized(mask, size):
    return tf.image.resize(mask, size, method="nearest")


def _grays_of(path):
    """Returns the grays that a mask has."""
    with _console.without_log_lines(), tf.device("CPU:0"):
        return np.unique(_gray(os.fsencode(path))).tolist()


def like(path, classes):
    """Resizes classes `[H, W]` to the size of a picture, taking the nearest pixels."""
    with tf.device("CPU:0"):
        (shape,), _ = pictures.look_at([path])
        return _resized(classes[..., np.newaxis], shape[:2]).numpy()[..., 0]


def write_png(path, image):
    """Writes grays or colors, uint8 `[H, W, 1 or 3]`."""
    pathlib.Path(path).write_bytes(tf.io.encode_png(image).numpy())
