# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures with masks of classes, decoded as they are needed."""

import dataclasses
import os
import pathlib

import numpy as np
import tensorflow as tf

from tf_capsops import _console
from tf_capsops.data import folders, pictures
from tf_capsops.data.samples import on_processor

_GREYS = 256
_PNG = b"\x89PNG\r\n\x1a\n"  # that a file begins with
_DEPTH = 24  # the byte of a PNG file that has the bits of a channel


@dataclasses.dataclass(frozen=True)
class MaskedPictures(pictures.Pictures):
    """`Pictures` whose targets are masks, int32 `[B, H, W, 1]`.

    The classes are called by their greys in the masks. The first is the background.
    """

    has_masks = True


class MaskedSamples(pictures.PictureSamples):
    """Pictures and masks by the paths of their files.

    Args:
      paths: of the pictures' files.
      masks: of their masks' files.
      image_shape: (height, width, channels) that the pictures are converted to.
      classes: the number of the class of each grey, `[256]`.
    """

    def __init__(self, paths, masks, image_shape, classes):
        super().__init__(paths, np.zeros(len(paths)), image_shape)
        self._mask_files, self._greys = np.asarray(masks, np.object_), classes
        self._masks, self._classes = on_processor(
            np.array([os.fsencode(path) for path in masks], np.object_),
            np.asarray(classes, np.int32),
        )

    def make(self, indices, draws):
        images, _ = super().make(indices, draws)
        size = self._image_shape[:2]
        masks = tf.map_fn(
            lambda path: tf.ensure_shape(_resized(_grey(path), size), [*size, 1]),
            tf.gather(self._masks, indices),
            fn_output_signature=tf.TensorSpec([*size, 1], tf.uint8),
        )
        return images, tf.gather(self._classes, tf.cast(masks, tf.int32))

    def only(self, indices):
        """Returns the samples with these numbers."""
        paths, masks = self._files[indices], self._mask_files[indices]
        return MaskedSamples(paths, masks, self._image_shape, self._greys)


def is_in(folder):
    """Whether a folder has pictures and masks, or `train` and `test` with both."""
    return any(
        all((part / name).is_dir() for name in ("images", "masks"))
        for part in _parts(folder)
    )


def check(folder):
    """Raises a ValueError if a folder has pictures for masks, and no masks."""
    for part in _parts(folder):
        if (part / "images").is_dir() and not (part / "masks").is_dir():
            raise ValueError(f"{part} has images/ but no masks/")


def _parts(folder):
    folder = pathlib.Path(folder)
    return folder, folder / "train"


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
    """Returns the `MaskedPictures` of a folder, after a look at each of them.

    Args: as those of `tf_capsops.data.load`.

    Raises:
      ValueError: if the folder is of another form, a picture has no mask, a file is no
        picture, a mask is no grey PNG of 8 bits, sizes or colors differ and no option
        says what to convert them to, or the masks have one class; the message names the
        file or folder.
    """
    image_size = pictures.checked_size(image_size, color_mode)
    trained, tested, share = _found(folder, seed, test_share, training)
    pairs = np.array(trained + tested, np.object_).reshape(-1, 2)
    is_training = np.arange(len(pairs)) < len(trained)
    shapes, mask_shapes = map(pictures.shapes_of, pairs.T)
    good = (shapes[:, 0] > 0) & (mask_shapes[:, 0] > 0)
    broken = pairs[:, 0][shapes[:, 0] == 0], pairs[:, 1][mask_shapes[:, 0] == 0]
    skipped = np.concatenate(broken).tolist()
    pictures.check_broken(skipped, skip_broken)
    if skipped:
        pictures.warn_of_skipped(skipped)
    for purpose, part in (("training", is_training), ("testing", ~is_training)):
        if (training or purpose == "testing") and not good[part].any():
            raise ValueError(
                f"{folder} has no picture and mask for {purpose} that can be read"
            )
    for path, (*_, channels) in zip(pairs[good, 1], mask_shapes[good]):
        _check_form(path, channels)
    other = (shapes != mask_shapes)[:, :2].any(axis=1) & good
    if other.any() and image_size is None:
        image, mask = pairs[other.argmax()]
        raise ValueError(
            f"{mask} and {image} differ in size: give --image-size PIXELS to convert "
            "all pictures and masks"
        )
    shape = pictures.image_shape(pairs[good, 0], shapes[good], image_size, color_mode)
    masks = pairs[good & is_training, 1], pairs[good & ~is_training, 1]
    names, classes = _classes(folder, *masks, class_names)
    train, test = (
        MaskedSamples(*pairs[part].T, shape, classes)
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


def _found(folder, seed, test_share, training):
    """Returns pairs of paths for training and for testing, and the share of these."""
    folder = pathlib.Path(folder)
    halves = folder / "train", folder / "test"
    if is_in(halves[0]):
        if test_share is not None:
            raise ValueError(f"{folder} has train/ and test/: no --test-share")
        trained, tested = map(_pairs, halves)
        return trained if training else [], tested, None
    pairs = _pairs(folder)
    if not training and test_share is None:
        return [], pairs, None
    test_share = folders.TEST_SHARE if test_share is None else test_share
    images = {"images": [pathlib.Path(image) for image, _ in pairs]}
    _, tested = folders.divided(folder, images, test_share, seed)
    tested = {*map(str, tested["images"])}
    trained = [pair for pair in pairs if pair[0] not in tested]
    return (
        trained if training else [],
        [pair for pair in pairs if pair[0] in tested],
        test_share,
    )


def _pairs(folder):
    """Returns the paths of pictures and masks of the same names."""
    images, masks = (_by_name(folder / name) for name in ("images", "masks"))
    for ours, theirs, kind in ((images, masks, "mask"), (masks, images, "picture")):
        alone = sorted(ours.keys() - theirs.keys())
        if alone:
            raise ValueError(f"{ours[alone[0]]} has no {kind} of the same name")
    return [(images[name], masks[name]) for name in sorted(images)]


def _by_name(folder):
    found = {}
    for path in folders.visible(folder) if folder.is_dir() else []:
        if not folders.is_picture(path):
            raise ValueError(f"{path} is no PNG or JPEG picture: take it out")
        if path.stem in found:
            raise ValueError(f"{path} and {found[path.stem]} have the same name")
        found[path.stem] = str(path)
    if not found:
        raise ValueError(f"{folder} has no pictures")
    return found


def _check_form(path, channels):
    """Raises a ValueError unless a mask is a grey PNG file of at most 8 bits."""
    with open(path, "rb") as file:
        start = file.read(_DEPTH + 1)
    if not start.startswith(_PNG):
        raise ValueError(
            f"{path} is no PNG file: masks must be, for JPEG changes greys"
        )
    if channels > 2:
        raise ValueError(
            f"{path} has colours: masks must be grey, with a grey for each class"
        )
    if start[_DEPTH] > 8:
        raise ValueError(
            f"{path} has {start[_DEPTH]} bits for each pixel: masks must have 8 at most"
        )


def _grey(path):
    """Returns a mask's greys, uint8 `[H, W, 1]`."""
    greys = tf.io.decode_image(
        tf.io.read_file(path), channels=1, expand_animations=False
    )
    return tf.ensure_shape(greys, [None, None, 1])


def _resized(mask, size):
    return tf.image.resize(mask, size, method="nearest")


def _classes(folder, trained, tested, class_names):
    """Returns the names of the classes, and the class of each grey, `[256]`.

    Args:
      folder: where the masks are.
      trained: the paths of those for training.
      tested: the paths of those for testing.
      class_names: those that the network knows; None for the greys that the masks for
        training have, or those for testing where there are no others.
    """
    firsts, others = map(_first_files, (trained, tested))
    names = class_names or [str(grey) for grey in sorted(firsts or others)]
    if len(names) < 2:
        raise ValueError(
            f"the masks of {folder} have one grey, {names[0]}: there must be two or "
            "more, one for each class"
        )
    known = greys_of(names)
    for grey, path in sorted({**others, **firsts}.items()):
        if grey not in known:
            raise ValueError(
                f"{path} has a grey of {grey}, and the network knows "
                f"{', '.join(map(str, known))}"
            )
    classes = np.zeros(_GREYS, np.int32)
    classes[known] = np.arange(len(known))
    return names, classes


def _first_files(paths):
    """Returns the first file that has each grey that there is."""
    firsts = {}
    with _console.without_log_lines(), tf.device("CPU:0"):
        for path in paths:
            for grey in np.unique(_grey(os.fsencode(path))).tolist():
                firsts.setdefault(grey, path)
    return firsts


def greys_of(class_names):
    """Returns the grey of each class in a mask: its name, or else its number."""
    if all(name.isdigit() and int(name) < _GREYS for name in class_names):
        return [int(name) for name in class_names]
    return list(range(len(class_names)))


def like(path, classes):
    """Returns classes `[H, W]` in the size of a picture, that of the nearest pixel."""
    with tf.device("CPU:0"):
        size = tf.shape(_grey(os.fsencode(path)))[:2]
        return _resized(classes[..., np.newaxis], size).numpy()[..., 0]


def write_png(path, image):
    """Writes greys or colors, uint8 `[H, W, 1 or 3]`."""
    pathlib.Path(path).write_bytes(tf.io.encode_png(image).numpy())
