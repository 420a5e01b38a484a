# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""NIfTI volumes with masks of classes, read by nibabel as they are needed."""

import os
import re
import zlib

import numpy as np
import tensorflow as tf

from tf_capsops.arguments import positive_ints
from tf_capsops.data import pairs, pictures
from tf_capsops.data.masks import MaskedPictures
from tf_capsops.data.samples import Samples, on_processor

# Slices from the feet to the head, rows from front to back, columns from the right of
# the patient to the left, as radiologists look at them.
_AXES = "LPS"
_RANGE = 0.5, 99.5  # percentiles that become 0 and 1, so that outliers do not count
_APART = 0.1  # Rounding may move a mask by so many voxels against its volume.


class VolumeError(ValueError):
    """A file is no volume that can be read; the text names it."""


def fault(error):
    """Returns the text of a `VolumeError` that ended a `tf.data.Dataset`, or None."""
    found = re.search(rf"{VolumeError.__name__}: (.*)", error.message)
    return found and found[1]


class VolumeSamples(Samples):
    """Volumes and masks by the paths of their files.

    Args:
      paths: the paths of the volumes.
      masks: the paths of their masks.
      image_shape: (depth, height, width, channels) to which volumes are cut or padded.
      classes: the number of the class of each value in a mask, `[256]`.
    """

    def __init__(self, paths, masks, image_shape, classes):
        super().__init__(np.zeros(len(paths), np.int32))
        self._files = np.array([paths, masks], np.object_).reshape(2, -1)
        self._image_shape, self._classes = image_shape, classes
        (self._paths,) = on_processor(
            np.vectorize(os.fsencode, [object])(self._files.T)
        )

    def draws(self, epoch):
        return tf.zeros([len(self), 0])

    def make(self, indices, draws):
        paths = tf.gather(self._paths[:, 0], indices)
        volumes = _mapped(read_volume, paths, tf.TensorSpec(self._image_shape))
        return volumes, self.targets(indices, draws)

    def targets(self, indices, draws):
        paths = tf.gather(self._paths[:, 1], indices)
        form = tf.TensorSpec([*self._image_shape[:-1], 1], tf.int32)
        return _mapped(self._classes_in, paths, form)

    def _classes_in(self, path):
        return self._classes[_mask(path)][..., np.newaxis]

    def only(self, indices):
        """Returns the samples with these numbers."""
        files = self._files[:, indices]
        return VolumeSamples(*files, self._image_shape, self._classes)


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
    """Returns the `MaskedPictures` of a folder of volumes, after reading each header.

    Args: as for `tf_capsops.data.load`; image_size is (depth, height, width).

    Raises:
      ValueError: if the folder has another layout, a volume has no mask or one at
        another place, a file is no volume, sizes differ and there is no image_size, or
        masks have other values than integers from 0 to 255; the message names the file
        or folder.
      ImportError: if nibabel is not installed.
    """
    kind = pairs.VOLUMES
    if color_mode is not None:
        raise ValueError(f"{folder} has volumes: no --color-mode")
    if image_size is not None:
        image_size = positive_ints("load", "image_size", image_size, 3)
    trained, tested, share = pairs.find(kind, folder, seed, test_share, training)
    paths = np.array(trained + tested, np.object_).reshape(-1, 2)
    is_training = np.arange(len(paths)) < len(trained)
    grids = [[_grid(path) for path in pair] for pair in paths]
    skipped = [
        path for pair in zip(paths, grids) for path, grid in zip(*pair) if not grid
    ]
    pictures.check_broken(skipped, skip_broken, kind.name)
    if skipped:
        pictures.warn_of_skipped(skipped, kind.name)
    good = np.array([all(pair) for pair in grids], bool)
    pairs.check_parts(folder, kind, good, is_training, training)
    known = [(path, grid) for path, grid, each in zip(paths, grids, good) if each]
    image_shape = _image_shape(known, image_size)
    masks = paths[good & is_training, 1], paths[good & ~is_training, 1]
    names, classes = pairs.classes(
        kind, folder, *masks, class_names, lambda path: np.unique(_mask(path)).tolist()
    )
    train, test = (
        VolumeSamples(*paths[part].T, image_shape, classes)
        for part in (good & is_training, good & ~is_training)
    )
    options = {
        "image_size": list(image_shape[:-1]),
        "test_share": share,
        "skip_broken": skip_broken,
    }
    name = os.path.basename(os.path.abspath(folder))
    return MaskedPictures(name, names, image_shape, train, test, skipped, options)


def _image_shape(known, size):
    """Returns the (depth, height, width, channels) of all volumes.

    Args:
      known: for each pair, the paths of volume and mask, and the `_grid` of both.
      size: (depth, height, width) that they are cut or padded to, or None.

    Raises:
      ValueError: if volumes differ in shape, or if a volume and its mask differ in
        shape or place.
    """
    (first, _), ((start, _), _) = known[0]
    for (volume, mask), ((shape, place), (masked, other)) in known:
        if shape[:-1] != masked[:-1] or masked[-1] != 1:
            raise ValueError(
                f"{mask} has {_voxels(masked)}, and {volume} has {_voxels(shape)}"
            )
        # The corners of the mask must be at the corners of the volume.
        corners = np.array([*np.ndindex(2, 2, 2)]) * shape[-2::-1]
        corners = np.c_[corners, np.ones(len(corners))].T
        apart = np.linalg.solve(place, other @ corners) - corners
        if np.abs(apart).max() > _APART:
            raise ValueError(
                f"{mask} lies elsewhere than {volume}: their affines differ"
            )
        if shape[-1] != start[-1] or (size is None and shape != start):
            remedy = ": give --image-size DEPTH HEIGHT WIDTH to cut and pad all volumes"
            raise ValueError(
                f"{volume} has {_voxels(shape)}, and {first} has {_voxels(start)}"
                f"{remedy if shape[-1] == start[-1] else ''}"
            )
    return (*(size or start[:-1]), start[-1])


def _voxels(shape):
    depth, height, width, channels = shape
    more = f" of {channels} channels" if channels > 1 else ""
    return f"{depth} x {height} x {width} voxels{more}"


def read_volume(path):
    """Reads a NIfTI volume as a network takes it.

    Args:
      path: the path of a `.nii` or `.nii.gz` file. A fourth axis has channels.

    Returns:
      A NumPy array `[D, H, W, C]`, float32 in [0, 1]: slices from the feet to the head,
      rows from front to back, columns from the patient's right to the left. Of each
      channel the 0.5th percentile becomes 0, the 99.5th 1.

    Raises:
      ValueError: if the file is missing or no volume; the message names it.
      ImportError: if nibabel is not installed.

    >>> import tempfile
    >>> import nibabel
    >>> import numpy as np
    >>> from tf_capsops import data
    >>> with tempfile.NamedTemporaryFile(suffix=".nii.gz") as file:
    ...     volume = nibabel.Nifti1Image(np.eye(4)[..., None].repeat(6, -1), np.eye(4))
    ...     nibabel.save(volume, file.name)
    ...     found = data.read_volume(file.name)
    >>> found.shape, float(found.max())
    ((6, 4, 4, 1), 1.0)
    """
    volume = np.nan_to_num(np.asarray(_oriented(path), np.float32))
    low, high = np.percentile(volume, _RANGE, axis=(0, 1, 2))
    # If percentiles are equal, as around a small object, take the whole range.
    rare = high <= low
    low = np.where(rare, volume.min(axis=(0, 1, 2)), low)
    high = np.where(rare, volume.max(axis=(0, 1, 2)), high)
    scaled = (volume - low) / np.where(high > low, high - low, 1)
    return np.clip(scaled, 0, 1).astype(np.float32)


def write_mask(path, values, like):
    """Writes a mask with the place and the orientation of a volume.

    Args:
      path: the path of a `.nii` or `.nii.gz` file.
      values: uint8 `[D, H, W]`, as `read_volume` arranges the volume.
      like: the path of the volume.
    """
    nibabel, source = library(), _opened(like)
    theirs = nibabel.io_orientation(source.affine)
    ours = nibabel.orientations.axcodes2ornt(_AXES)
    turn = nibabel.orientations.ornt_transform(ours, theirs)
    values = nibabel.apply_orientation(np.transpose(values), turn)
    header = source.header.copy()
    header.set_data_dtype(np.uint8)
    header["cal_max"] = header["cal_min"] = 0  # drops the volume's display range
    nibabel.save(type(source)(values, source.affine, header), path)


def library():
    """Returns nibabel.

    Raises:
      ImportError: if it is not installed; the text says how to install it.
    """
    try:
        import nibabel
    except ImportError as error:
        raise ImportError(
            "NIfTI volumes need nibabel: run `pip install 'tf-capsops[nifti]'`, or "
            "install it by hand"
        ) from error
    return nibabel


def _opened(path):
    """Returns nibabel's image of a file, without reading its voxels."""
    nibabel = library()
    if not os.path.isfile(path):
        raise VolumeError(f"there is no file {path}")
    wrong = nibabel.filebasedimages.ImageFileError, OSError, EOFError, zlib.error
    try:
        image = nibabel.load(path)
    except wrong as error:
        raise VolumeError(f"{path} is no NIfTI volume that can be read") from error
    if not isinstance(image, nibabel.Nifti1Image):
        raise VolumeError(f"{path} is no NIfTI volume, but a {type(image).__name__}")
    if len(image.shape) not in (3, 4) or 0 in image.shape:
        raise VolumeError(f"{path} is no volume: it has shape {image.shape}")
    return image


def _turn(image):
    nibabel = library()
    ours = nibabel.orientations.axcodes2ornt(_AXES)
    return nibabel.orientations.ornt_transform(
        nibabel.io_orientation(image.affine), ours
    )


def _grid(path):
    """Returns where the voxels of a file are; None if it is broken.

    Returns:
      (depth, height, width, channels) and the affine `[4, 4]` from (x, y, z) of a voxel
      to millimeters, both as `_oriented` arranges the voxels.
    """
    try:
        image = _opened(path)
    except ValueError:
        return None
    turn, sizes = _turn(image), [0, 0, 0]
    for size, (axis, _) in zip(image.shape, turn):
        sizes[int(axis)] = size
    turned = library().orientations.inv_ornt_aff(turn, image.shape[:3])
    shape = *sizes[::-1], *(image.shape[3:] or [1])
    return shape, image.affine @ turned


def _oriented(path):
    """Returns the voxels of a file, `[D, H, W, C]`, of the file's type."""
    image = _opened(path)
    try:
        voxels = np.asanyarray(image.dataobj)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise VolumeError(f"{path} cannot be read to its end") from error
    voxels = library().apply_orientation(voxels, _turn(image))
    voxels = voxels.reshape(*voxels.shape[:3], -1)
    return voxels.transpose(2, 1, 0, 3)


def _mask(path):
    """Returns the values of a mask, uint8 `[D, H, W]`."""
    voxels = _oriented(path)[..., 0]
    values = voxels.astype(np.uint8)
    wrong = values != voxels
    if wrong.any():
        raise ValueError(
            f"{path} has a label of {voxels[wrong][0]:g}: masks must have integers "
            "from 0 to 255"
        )
    return values


def _mapped(read, paths, form):
    """Reads files with `read`, and cuts and pads the results to the shape of `form`."""

    def fitted(path):
        return _fitted(read(os.fsdecode(np.asarray(path).item())), form.shape[:-1])

    def one(path):
        made = tf.numpy_function(fitted, [path], form.dtype)
        return tf.ensure_shape(made, form.shape)

    return tf.map_fn(one, paths, fn_output_signature=form)


def _fitted(volume, size):
    """Cuts and pads `[D, H, W, C]` about the middle, with zeros."""
    for axis, (length, wanted) in enumerate(zip(volume.shape, size)):
        more = wanted - length
        before = abs(more) // 2
        if more < 0:
            volume = volume.take(range(before, before + wanted), axis)
        else:
            padding = [(0, 0)] * volume.ndim
            padding[axis] = before, more - before
            volume = np.pad(volume, padding)
    return volume
