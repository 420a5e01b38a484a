# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random changes of training images, and of their masks with them."""

import math

import tensorflow as tf

from tf_capsops.data.samples import warp

_GRID = 3  # points along each side at which a bend is drawn, as in the U-Net's paper


def distort(images, seed, distortion):
    """Moves, bends, brightens and partly erases each image, by random amounts.

    Args:
      images: `[B, H, W, C]`, from 0 to 1; or volumes `[B, D, H, W, C]`, all slices of
        which change alike.
      seed: two integers.
      distortion: a `presets.Distortion` with the largest amounts. If it neither turns,
        zooms nor bends, images shift by whole pixels, without interpolation. Pixels
        from outside of an image are zero.
    """
    if len(images.shape) == 5:
        return _slice_by_slice(distort, images, seed, distortion)
    largest, draws = distortion, _own_draws(images, seed)
    images = _mirrored(_moved(images, seed, largest), draws, largest)
    if largest.brightness or largest.contrast:
        mean = tf.reduce_mean(images, axis=(1, 2, 3), keepdims=True)
        contrast = 1 + (2 * draws[1] - 1) * largest.contrast
        brightness = (2 * draws[2] - 1) * largest.brightness
        images = mean + brightness + (images - mean) * contrast
        images = tf.clip_by_value(images, 0.0, 1.0)
    return _erased(images, draws[3:], largest.erase) if largest.erase else images


def distort_masks(masks, seed, distortion):
    """Moves masks as `distort` moves their images, taking the nearest pixel.

    Args:
      masks: classes, int32 `[B, H, W, 1]` or `[B, D, H, W, 1]`. Pixels from outside
        are background, class 0.
      seed, distortion: as for the images.
    """
    if len(masks.shape) == 5:
        return _slice_by_slice(distort_masks, masks, seed, distortion)
    moved = _moved(masks, seed, distortion, "NEAREST")
    return _mirrored(moved, _own_draws(masks, seed), distortion)


def _slice_by_slice(change, volumes, seed, distortion):
    """Changes the slices of volumes `[B, D, H, W, C]` as channels of one image."""
    _, depth, height, width, channels = volumes.shape
    planes = tf.transpose(volumes, [0, 2, 3, 1, 4])
    planes = tf.reshape(planes, [-1, height, width, depth * channels])
    changed = change(planes, seed, distortion)
    changed = tf.reshape(changed, [-1, height, width, depth, channels])
    return tf.transpose(changed, [0, 3, 1, 2, 4])


def _own_draws(images, seed):
    """Returns seven numbers from 0 to 1 for each image, `[7, B, 1, 1, 1]`."""
    own = tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int64), 1)
    return tf.random.stateless_uniform([7, tf.shape(images)[0], 1, 1, 1], own)


def _mirrored(images, draws, largest):
    if not largest.flip:
        return images
    return tf.where(draws[0] < largest.flip, tf.reverse(images, axis=[2]), images)


def _erased(images, draws, largest):
    """Replaces in each image a rectangle of random area, form and place by the mean.

    Args:
      images: `[B, H, W, C]`.
      draws: four numbers from 0 to 1 for each, `[4, B, 1, 1, 1]`.
      largest: the rectangle's largest share of the image's area.
    """
    share, form = draws[0] * largest, 4 ** (draws[1] - 0.5)  # width / height
    mean = tf.reduce_mean(images, axis=(1, 2), keepdims=True)
    inside = True
    for axis, factor, place in ((1, 1 / form, draws[2]), (2, form, draws[3])):
        length = images.shape[axis]
        size = tf.minimum(tf.sqrt(share * factor), 1.0) * length
        shape = [-1 if each == axis else 1 for each in range(4)]
        pixels = tf.reshape(tf.range(length, dtype=tf.float32) + 0.5, shape)
        begin = place * (length - size)
        inside &= (begin <= pixels) & (pixels < begin + size)
    return tf.where(inside, mean, images)


def _moved(images, seed, largest, interpolation="BILINEAR"):
    """Shifts, turns, zooms and bends each image."""
    if not (largest.shift or largest.degrees or largest.zoom or largest.elastic):
        return images
    size, seed = images.shape[1:3], tf.cast(seed, tf.int64)
    transforms = _transforms(tf.shape(images)[0], size, seed, largest)
    if not largest.elastic:
        return warp(images, transforms, size, interpolation)
    return _bent(images, transforms, seed, largest.elastic, interpolation)


def _transforms(count, size, seed, largest):
    """Returns random transforms of images about their middles, as `warp` takes them."""
    draws = tf.random.stateless_uniform([count, 4], seed, -1.0, 1.0)
    angle = draws[:, 0] * math.radians(largest.degrees)
    scale = tf.exp(draws[:, 1] * math.log1p(largest.zoom))
    if largest.degrees or largest.zoom or largest.elastic:
        shift = draws[:, 2:] * largest.shift
    else:
        # Every whole number of pixels is as likely as any other.
        shift = tf.round(draws[:, 2:] * (largest.shift + 0.4999))
    cos, sin = scale * tf.cos(angle), scale * tf.sin(angle)
    middle_y, middle_x = ((each - 1) / 2 for each in size)
    rows = (
        [cos, -sin, middle_x - cos * middle_x + sin * middle_y + shift[:, 0]],
        [sin, cos, middle_y - sin * middle_x - cos * middle_y + shift[:, 1]],
    )
    return tf.stack([tf.stack(row, axis=1) for row in rows], axis=1)


def _bent(images, transforms, seed, largest, interpolation):
    """Maps images affinely, after smooth random displacements of up to `largest`.

    Ronneberger, Fischer and Brox, "U-Net" (2015), section 3.1: displacements at the
    points of a coarse grid, and cubic interpolation between them.
    """
    count, (height, width) = tf.shape(images)[0], images.shape[1:3]
    own = tf.random.experimental.stateless_fold_in(seed, 2)
    grid = tf.random.stateless_uniform([count, _GRID, _GRID, 2], own, -1.0, 1.0)
    bend = largest * tf.image.resize(grid, (height, width), method="bicubic")
    columns = tf.range(width, dtype=tf.float32) + bend[..., 0]
    rows = tf.range(height, dtype=tf.float32)[:, tf.newaxis] + bend[..., 1]
    places = tf.stack([columns, rows, tf.ones_like(rows)], axis=-1)
    places = tf.einsum("bhwk,bjk->bhwj", places, transforms)
    columns, rows = places[..., 0], places[..., 1]
    if interpolation == "NEAREST":
        return _pixels(images, tf.round(rows), tf.round(columns))
    top, left = tf.floor(rows), tf.floor(columns)
    down, across = (rows - top)[..., tf.newaxis], (columns - left)[..., tf.newaxis]
    upper, lower = (
        (1 - across) * _pixels(images, row, left)
        + across * _pixels(images, row, left + 1)
        for row in (top, top + 1)
    )
    return (1 - down) * upper + down * lower


def _pixels(images, rows, columns):
    """Returns the pixels at whole `rows` and `columns` `[B, H, W]`, zero outside."""
    places, inside = [], True
    for place, length in ((rows, images.shape[1]), (columns, images.shape[2])):
        inside &= (place >= 0) & (place < length)
        places.append(tf.clip_by_value(tf.cast(place, tf.int32), 0, length - 1))
    found = tf.gather_nd(images, tf.stack(places, axis=-1), batch_dims=1)
    return tf.where(inside[..., tf.newaxis], found, tf.zeros([], found.dtype))
