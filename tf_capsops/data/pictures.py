# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures in folders, decoded as they are needed."""

import dataclasses
import os
import warnings

import numpy as np
import tensorflow as tf

from tf_capsops import _console
from tf_capsops.arguments import positive_pair
from tf_capsops.data import bitmaps, folders, orientation
from tf_capsops.data.samples import Samples, on_processor
from tf_capsops.untuned import untuned

COLOR_MODES = {"grayscale": 1, "rgb": 3}  # channels, by the names that Keras has
_WEIGHTS = (0.299, 0.587, 0.114)  # shares of red, green and blue in gray, as in JPEG


@dataclasses.dataclass(frozen=True)
class Pictures:
    """A folder of pictures that are read one batch at a time.

    `train` and `test` are `Samples`, as every data set has them: images `[B, H, W, C]`,
    float32 in [0, 1], and a target is the number of the class. `tf_capsops.data.load`
    makes it.

    Args:
      name: the folder's name.
      class_names: the names of the classes' folders.
      image_shape: (height, width, channels) of the images.
      train: the `Samples` for training.
      test: the `Samples` for testing.
      skipped: the files that were passed over because they are no pictures.
      options: options of `tf_capsops.data.load` that load the same data set again.

    >>> import pathlib, tempfile
    >>> import tensorflow as tf
    >>> from tf_capsops import data
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for number in range(20):
    ...     path = folder / ("cat", "dog")[number % 2] / f"{number}.png"
    ...     path.parent.mkdir(exist_ok=True)
    ...     picture = tf.zeros([8, 8, 3], tf.uint8)
    ...     tf.io.write_file(str(path), tf.io.encode_png(picture))
    >>> pets = data.load(folder)
    >>> pets.class_names, pets.image_shape, len(pets.train), len(pets.test)
    (['cat', 'dog'], (8, 8, 3), 16, 4)
    """

    name: str
    class_names: list
    image_shape: tuple
    train: Samples
    test: Samples
    skipped: list
    options: dict

    generated = False
    objects = 1
    has_masks = False
    standardized = False

    @property
    def num_classes(self):
        return len(self.class_names)

    def held_out(self, rest, out):
        """Returns a data set of training samples: `rest` to train, `out` to test on."""
        train, test = self.train.only(rest), self.train.only(out)
        return dataclasses.replace(self, train=train, test=test)


class PictureSamples(Samples):
    """Pictures by the paths of their files; a target is the label.

    Args:
      paths: the paths of the files.
      labels: the class number of each.
      image_shape: (height, width, channels) that they are converted to.
      orientations: how the pictures are turned, as `look_at` returns it. This is not
        read with the pictures: TensorFlow cannot do so, and Python would read one
        picture at a time.
    """

    def __init__(self, paths, labels, image_shape, orientations):
        super().__init__(np.asarray(labels, np.int32))
        self._files = np.asarray(paths, np.object_)
        self._image_shape = image_shape
        self._paths, self._labels, self._orientations = on_processor(
            np.array([os.fsencode(path) for path in paths], np.object_),
            self.labels,
            orientations,
        )

    def draws(self, epoch):
        return tf.zeros([len(self), 0])

    def make(self, indices, draws):
        images = tf.map_fn(
            lambda picture: decoded(*picture, self._image_shape),
            (tf.gather(self._paths, indices), tf.gather(self._orientations, indices)),
            fn_output_signature=tf.TensorSpec(self._image_shape),
        )
        return images, tf.gather(self._labels, indices)

    def only(self, indices):
        """Returns the samples with these numbers."""
        return PictureSamples(
            self._files[indices],
            self.labels[indices],
            self._image_shape,
            self._orientations.numpy()[indices],
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
    """Returns the `Pictures` of a folder, after a check of each file.

    Args: as for `tf_capsops.data.load`.

    Raises:
      ValueError: if the folder has another layout, a file is no picture, or the
        pictures differ in size or color and no option says what to convert them to;
        the message names the file or folder.
    """
    image_size = checked_size(image_size, color_mode)
    names, trained, tested, share, skipped = folders.find(
        folder, test_share, seed, class_names, skip_broken, training
    )
    paths = np.array(trained.paths + tested.paths, np.object_)
    labels = np.array(trained.labels + tested.labels, np.int32)
    is_training = np.arange(len(paths)) < len(trained.paths)
    shapes, orientations = look_at(paths)
    good = shapes[:, 0] > 0
    check_broken(paths[~good], skip_broken)
    _check_classes(paths, labels, is_training, good)
    skipped += paths[~good].tolist()
    if skipped:
        warn_of_skipped(skipped)
    shape = image_shape(paths[good], shapes[good], image_size, color_mode)
    train, test = (
        PictureSamples(paths[part], labels[part], shape, orientations[part])
        for part in (good & is_training, good & ~is_training)
    )
    options = {
        "image_size": list(shape[:2]),
        "color_mode": "grayscale" if shape[2] == 1 else "rgb",
        "test_share": share,
        "skip_broken": skip_broken,
    }
    name = os.path.basename(os.path.abspath(folder))
    return Pictures(name, names, shape, train, test, skipped, options)


def read_pictures(paths, image_shape):
    """Reads pictures as a network takes them.

    Args:
      paths: the paths of PNG, JPEG, BMP, GIF or WebP files.
      image_shape: (height, width, channels): each is resized to this height and width,
        and converted to gray for 1 channel and to color for 3.

    Returns:
      A NumPy array `[N, height, width, channels]`, float32 in [0, 1].

    Raises:
      ValueError: if a file is missing or no picture; the message names it.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from tf_capsops import data
    >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
    ...     gray = tf.fill([20, 30, 1], tf.constant(255, tf.uint8))
    ...     tf.io.write_file(file.name, tf.io.encode_png(gray))
    ...     images = data.read_pictures([file.name], (8, 8, 3))
    >>> images.shape, round(float(images.min()), 3)
    ((1, 8, 8, 3), 1.0)
    """
    return np.stack([_read(os.fspath(path), tuple(image_shape)) for path in paths])


def _read(path, image_shape):
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    try:
        with _console.without_log_lines(), tf.device("CPU:0"):
            header = orientation.header(path)
            if bitmaps.has_palette(header):
                raise ValueError(f"{path} is a BMP picture with a palette: make it PNG")
            number = orientation.orientation(header)
            return decoded(os.fsencode(path), number, image_shape).numpy()
    except PermissionError as error:
        raise ValueError(f"{path} may not be read") from error
    except tf.errors.OpError as error:
        raise ValueError(f"{path} is no picture that can be read") from error


def decoded(path, number, image_shape):
    """Returns the picture in a file, `[H, W, C]`, as numbers from 0 to 1.

    Args:
      path: a string tensor.
      number: the picture's orientation.
      image_shape: (height, width, channels); with None for height and width, the
        picture keeps its size.
    """
    *size, channels = image_shape
    picture = orientation.upright(_pixels(tf.io.read_file(path)), number)
    picture = _with_channels(picture, channels)
    if None in size:
        return picture / 255

    def resized():
        # Averages pixels if a picture gets smaller; Keras' own loader does not.
        return tf.image.resize(picture, size, antialias=True)

    fits = tf.reduce_all(tf.equal(tf.shape(picture)[:2], size))
    picture = tf.cond(fits, lambda: picture, resized)
    return tf.ensure_shape(tf.clip_by_value(picture / 255, 0.0, 1.0), image_shape)


def _pixels(contents):
    """Returns the pixels of a picture's file, uint8 `[H, W, C]`, not turned."""
    # TensorFlow 2.21 corrupts memory when it decodes an animated WebP file.
    contents = tf.where(bitmaps.is_animated_webp(contents), "", contents)
    return tf.io.decode_image(contents, expand_animations=False)


def _with_channels(picture, channels):
    """Converts between gray (with or without alpha) and color; drops alpha."""
    picture = tf.cast(picture, tf.float32)
    is_gray = tf.shape(picture)[-1] < 3
    if channels == 1:
        weights = tf.constant(_WEIGHTS)

        def gray():
            return tf.reduce_sum(picture[..., :3] * weights, axis=-1, keepdims=True)

        return tf.cond(is_gray, lambda: picture[..., :1], gray)
    return tf.cond(
        is_gray, lambda: tf.repeat(picture[..., :1], 3, -1), lambda: picture[..., :3]
    )


def look_at(paths):
    """Returns height, width and channels of pictures, upright, and their orientations.

    Args:
      paths: the paths of the files.

    Returns:
      NumPy arrays `[N, 3]` and `[N]`, with zeros for files that cannot be read.
    """

    def look(index, path):
        contents = tf.io.read_file(path)
        header = tf.strings.substr(contents, 0, orientation.HEADER)
        return index, tf.shape(_pixels(contents)), header

    files = np.array([os.fsencode(path) for path in paths], np.object_)
    shapes = np.zeros([len(paths), 3], np.int64)
    orientations = np.zeros(len(paths), np.int32)
    with _console.without_log_lines(), tf.device("CPU:0"):
        found = tf.data.Dataset.from_tensor_slices(files).enumerate()
        found = found.map(look, num_parallel_calls=tf.data.AUTOTUNE).ignore_errors()
        for some, sizes, headers in untuned(found.batch(256)).as_numpy_iterator():
            read = [not bitmaps.has_palette(each) for each in headers]
            shapes[some] = sizes * np.array(read)[:, np.newaxis]
            orientations[some] = [orientation.orientation(each) for each in headers]
    turned = orientations > 4
    shapes[turned] = shapes[turned][:, [1, 0, 2]]
    return shapes, orientations


def check_broken(broken, skip_broken, name="picture"):
    """Raises a ValueError if there are broken files that may not be skipped."""
    if len(broken) and not skip_broken:
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise ValueError(
            f"{broken[0]} cannot be read as a {name}{more}: take it out, or give "
            "--skip-broken"
        )


def warn_of_skipped(files, name="picture"):
    """Warns of files that are left out, on behalf of the caller's caller."""
    what = f"files that are no {name}s, such as"
    if len(files) == 1:
        what = f"file that is no {name},"
    warnings.warn(f"skipped {len(files)} {what} {files[0]}", stacklevel=3)


def _check_classes(paths, labels, is_training, good):
    """Raises a ValueError if a class has only broken pictures in a part."""
    for purpose, part in (("training", is_training), ("testing", ~is_training)):
        for label in np.unique(labels[part]):
            own = part & (labels == label)
            if not good[own].any():
                raise ValueError(
                    f"{os.path.dirname(paths[own][0])} has no picture for {purpose} "
                    "that can be read"
                )


def checked_size(image_size, color_mode):
    """Returns (height, width) or None; raises a ValueError if an option is wrong."""
    if color_mode is not None and color_mode not in COLOR_MODES:
        raise ValueError(
            f"load: color_mode must be {' or '.join(COLOR_MODES)}, got {color_mode!r}"
        )
    if image_size is None:
        return None
    return positive_pair("load", "image_size", image_size)


def image_shape(paths, shapes, size, color_mode):
    """Returns the (height, width, channels) that all pictures are converted to."""
    if size is None:
        size = _same(paths, shapes[:, :2], "--image-size PIXELS", _size)
    if color_mode is None:
        gray = shapes[:, 2:] < 3
        (is_gray,) = _same(paths, gray, "--color-mode rgb or grayscale", _color)
        color_mode = "grayscale" if is_gray else "rgb"
    return (*map(int, size), COLOR_MODES[color_mode])


def _same(paths, values, option, form):
    """Returns the row that all rows of `values` equal.

    Raises:
      ValueError: if they differ; the message names two files and an option.
    """
    other = (values != values[0]).any(axis=1)
    if other.any():
        second = other.argmax()
        raise ValueError(
            f"{paths[second]} {form(values[second])}, and {paths[0]} "
            f"{form(values[0])}: give {option} to convert all pictures"
        )
    return values[0]


def _size(size):
    return f"is {size[1]} x {size[0]} pixels large"


def _color(is_gray):
    return "is gray" if is_gray[0] else "has colors"
