# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""SegCaps and DeepCaps of their authors: weights by layer, and what they compute."""

import itertools

import numpy as np
import tensorflow as tf

_RANDOM = np.random.default_rng(5)
# Window, types, dimension, stride and iterations of routing of each layer.
_SEGCAPS = {
    "primarycaps": (5, 2, 16, 2, 1),
    "conv_cap_2_1": (5, 4, 16, 1, 3),
    "conv_cap_2_2": (5, 4, 32, 2, 3),
    "conv_cap_3_1": (5, 8, 32, 1, 3),
    "conv_cap_3_2": (5, 8, 64, 2, 3),
    "conv_cap_4_1": (5, 8, 32, 1, 3),
    "deconv_cap_1_1": (4, 8, 32, 2, 3),
    "deconv_cap_1_2": (5, 4, 32, 1, 3),
    "deconv_cap_2_1": (4, 4, 16, 2, 3),
    "deconv_cap_2_2": (5, 4, 16, 1, 3),
    "deconv_cap_3_1": (4, 2, 16, 2, 3),
    "seg_caps": (1, 1, 16, 1, 3),
}
_DOUBLING = {
    "deconv_cap_1_1": "conv_cap_3_1",
    "deconv_cap_2_1": "conv_cap_2_1",
    "deconv_cap_3_1": "conv1",
}


def _kernel(*shape, gain=2.0):
    return _RANDOM.normal(0, (gain / np.prod(shape[:-1])) ** 0.5, shape)


def segcaps_weights():
    """Returns the weights of `CapsNetR3`, by layer."""
    weights = {"conv1": [_kernel(5, 5, 1, 16), _RANDOM.normal(0, 0.1, 16)]}
    dim = 16
    for name, (window, types, own, _, _) in _SEGCAPS.items():
        kernel = _kernel(window, window, dim, types * own, gain=4.0)
        if name in _DOUBLING:
            kernel = kernel.transpose(0, 1, 3, 2)
        weights[name] = [kernel, _RANDOM.normal(0.1, 0.1, (1, 1, types, own))]
        dim = own
    units = 16, 64, 128, 1
    for name, *sizes in zip(("recon_1", "recon_2", "out_recon"), units, units[1:]):
        weights[name] = [_kernel(1, 1, *sizes), _RANDOM.normal(0, 0.1, sizes[1])]
    return weights


def segcaps_lengths(images, weights):
    """Returns the lengths `[B, H, W, 1]` of the authors' network, in float64."""
    kernel, bias = weights["conv1"]
    features = np.maximum(_conv(images, kernel, 1) + bias, 0)
    capsules = features[..., np.newaxis, :]
    made = {"conv1": capsules}
    for name, (_, types, dim, stride, iterations) in _SEGCAPS.items():
        kernel, bias = weights[name]
        convolve = _doubled if name in _DOUBLING else _conv
        votes = [convolve(each, kernel, stride) for each in np.moveaxis(capsules, 3, 0)]
        votes = np.stack([each.reshape(*each.shape[:3], types, dim) for each in votes])
        logits = np.zeros(votes.shape[:-1])
        for _ in range(iterations):
            shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            sums = (shares[..., np.newaxis] * votes).sum(0) + bias[0, 0]
            norms = np.linalg.norm(sums, axis=-1, keepdims=True)
            capsules = sums / norms * norms**2 / (1 + norms**2)
            logits = logits + (votes * capsules).sum(-1)
        if name in _DOUBLING:
            capsules = np.concatenate([capsules, made[_DOUBLING[name]]], axis=3)
        made[name] = capsules
    return np.linalg.norm(capsules, axis=-1)


def deepcaps_weights():
    """Returns the weights of `DeepCapsNet28`, by layer, as their file has them."""
    weights = {"input_1": [], "conv2d_1": [_kernel(3, 3, 1, 128), _kernel(1, 128)[0]]}
    weights["batch_normalization_1"] = _normalization(128)
    sizes, number = [(128, 1), (32, 4), (32, 8), (32, 8), (32, 8)], 0
    for cell, (before, own) in enumerate(itertools.pairwise(sizes)):
        for part in range(4 if cell < 3 else 3):
            number += 1
            kernel = _kernel(3, 3, *(own if part else before), np.prod(own))
            name = f"conv2d_caps_{number}"
            weights[name] = [kernel.reshape(*kernel.shape[:-1], *own)]
    around = [_kernel(8, 3, 3, 1, 256), _RANDOM.normal(0.1, 0.1, (32, 8, 1, 1))]
    weights["conv_capsule_layer3d_1"] = around
    digits = _RANDOM.normal(0, 0.1, (10, 640, 32, 8)), _RANDOM.normal(0, 0.1, (10, 32))
    weights["digit_caps"] = [*digits]
    gamma, beta, *moving = _normalization(16)
    decoder = [_kernel(32, 784), _kernel(1, 784)[0], gamma, beta]
    for channels, filters in zip((16, 64, 32, 16), (64, 32, 16, 1)):
        decoder += [_kernel(3, 3, filters, channels), _RANDOM.normal(0, 0.1, filters)]
    weights["decoder"] = [*decoder, *moving]
    return weights


def deepcaps_cell_3(images, weights):
    """Returns the capsules of the authors' third cell, `[B, H, W, 32, 8]`."""
    kernel, bias = weights["conv2d_1"]
    features = np.maximum(_conv(images, kernel, 1) + bias, 0)
    features = _normalized(features, *weights["batch_normalization_1"])

    def convolved(features, number, stride=1):
        (kernel,) = weights[f"conv2d_caps_{number}"]
        *window, types, dim, out_types, out_dim = kernel.shape
        kernel = kernel.reshape(*window, types * dim, out_types * out_dim)
        features = features.reshape(*features.shape[:3], -1)
        capsules = _conv(features, kernel, stride)
        capsules = capsules.reshape(*capsules.shape[:3], out_types, out_dim)
        squares = np.square(capsules).sum(-1, keepdims=True)
        return squares / (1 + squares) * capsules / np.sqrt(squares + 1e-7)

    for first in (1, 5, 9):
        halved = convolved(features, first, 2)
        around = convolved(halved, first + 1)
        features = convolved(convolved(halved, first + 2), first + 3) + around
    return features


def deepcaps_drawn(capsules, weights):
    """Returns what the authors' decoder draws of `[B, 32]`, before its last relu."""
    dense, bias, gamma, beta, *deconvolutions, mean, variance = weights["decoder"]
    features = np.maximum(capsules @ dense + bias, 0).reshape(-1, 7, 7, 16)
    features = _normalized(features, gamma, beta, mean, variance)
    pairs = zip(deconvolutions[::2], deconvolutions[1::2], (1, 2, 2, 1))
    for kernel, bias, stride in pairs:
        features = _doubled(features, kernel, stride) + bias
    return features


def _conv(features, kernel, stride):
    return tf.nn.conv2d(features.astype(np.float64), kernel, stride, "SAME").numpy()


def _doubled(features, kernel, stride):
    batch, height, width, _ = features.shape
    shape = [batch, height * stride, width * stride, kernel.shape[2]]
    return tf.nn.conv2d_transpose(features, kernel, shape, stride, "SAME").numpy()


def _normalization(channels):
    """Returns the weights of a batch normalization: gamma, beta, mean and variance."""
    three = _RANDOM.normal(0.5, 0.3, (3, channels))
    return [*three, _RANDOM.uniform(0.5, 2, channels)]


def _normalized(features, gamma, beta, mean, variance):
    return gamma * (features - mean) / np.sqrt(variance + 1e-3) + beta
