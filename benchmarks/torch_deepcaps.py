# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeepCaps in PyTorch: from images and labels to the loss.

It has the weights of ours in the same order, and computes the same from them
(check_torch.py).
"""

import math

import torch
from torch import nn
from torch.nn import functional
from torch_networks import DigitCaps, margin_loss
from torch_segmenters import SlimCaps
from torch_slim_caps import convolution, squash, transposed_convolution, votes_of

_SIZES = {
    "paper": {
        "filters": 128,
        "cells": ((32, 4), (32, 8), (32, 8), (32, 8)),
        "capsule_dim": 32,
        "seed": 16,
        "drawn": (64, 32, 16, 8),
    },
    "small": {
        "filters": 32,
        "cells": ((8, 4), (8, 4), (8, 4)),
        "capsule_dim": 16,
        "seed": 8,
        "drawn": (16, 16, 8, 8),
    },
}


class ConvCaps(nn.Module):
    """A convolution to capsules, from all features of the capsules before."""

    def __init__(self, inner, parents, stride=1):
        super().__init__()
        self.parents, self.strides = parents, (stride, stride)
        self.conv = nn.Conv2d(inner, math.prod(parents), 3, bias=False)

    def forward(self, capsules):
        features = capsules.flatten(3).movedim(-1, 1)
        features = convolution(features, self.conv.weight, self.strides)
        return squash(features.movedim(1, -1).unflatten(-1, self.parents))


class GlobalSlimCaps(SlimCaps):
    """Slim capsules that are routed over all pixels together."""

    def forward(self, capsules):
        votes = votes_of(
            capsules, self.kernel, self.bias.shape, strides=self.strides
        ).float()
        size = votes.shape[2:4]
        votes = votes.flatten(2, 3)
        logits = torch.zeros_like(votes[..., 0])
        for iteration in range(self.iterations):
            shares = logits.flatten(2).softmax(-1).reshape(logits.shape)
            sums = (shares[..., None] * votes).sum(1) + self.bias
            by_type = sums.movedim(2, 1)
            flat = squash(by_type.flatten(2)).reshape(by_type.shape)
            outputs = flat.movedim(1, 2)
            if iteration + 1 < self.iterations:
                logits = logits + (outputs[:, None] * votes).sum(-1)
        return outputs.unflatten(1, size)


class Cell(nn.Module):
    """Three layers of capsules, and a way around the last two."""

    def __init__(self, inner, parents, routed):
        super().__init__()
        numbers = math.prod(parents)
        self.first = ConvCaps(inner, parents, 2)
        self.second = ConvCaps(numbers, parents)
        self.third = ConvCaps(numbers, parents)
        self.around = (
            GlobalSlimCaps(parents[1], parents, 3)
            if routed
            else ConvCaps(numbers, parents)
        )

    def forward(self, capsules):
        first = self.first(capsules)
        return self.third(self.second(first)) + self.around(first)


class Upsampled(nn.Module):
    """A transposed convolution of 3x3 whose padding is "SAME"."""

    def __init__(self, inner, features, stride=1):
        super().__init__()
        self.strides = stride, stride
        self.conv = nn.ConvTranspose2d(inner, features, 3, stride)

    def forward(self, features):
        weights, bias = self.conv.weight, self.conv.bias
        return transposed_convolution(features, weights, self.strides, bias=bias)


class DeepCaps(nn.Module):
    """The network of Rajasegaran et al. (2019)."""

    def __init__(self, image_shape, classes, size="paper"):
        super().__init__()
        sizes, (*sides, channels) = _SIZES[size], image_shape
        self.weight = 0.4 / math.prod(image_shape)
        inner, self.sides = sizes["filters"], sides
        self.conv = nn.Conv2d(channels, inner, 3, padding=1)
        self.normalization = nn.BatchNorm2d(inner, eps=1e-3, momentum=0.01)
        self.cells, counts = nn.ModuleList(), []
        for number, parents in enumerate(sizes["cells"], start=1):
            routed = number == len(sizes["cells"])
            self.cells.append(Cell(inner, parents, routed))
            inner, sides = math.prod(parents), [-(-side // 2) for side in sides]
            counts.append(math.prod(sides) * parents[0])
        self.digits = DigitCaps(
            sum(counts[-2:]), classes, parents[1], sizes["capsule_dim"], 3
        )
        self.decoder = self.drawing_decoder(sizes, channels)

    def drawing_decoder(self, sizes, channels):
        doublings = math.ceil(math.log2(max(1, min(self.sides) / 8)))
        doublings = min(doublings, len(sizes["drawn"]) - 1)
        seed = [math.ceil(side / 2**doublings) for side in self.sides]
        inner = sizes["seed"]
        layers = [
            nn.Linear(sizes["capsule_dim"], math.prod(seed) * inner),
            nn.ReLU(),
            nn.Unflatten(1, (*seed, inner)),
            ChannelsSecond(),
            nn.BatchNorm2d(inner, eps=1e-3, momentum=0.2),
        ]
        for number, features in enumerate(sizes["drawn"][: doublings + 1]):
            layers.append(Upsampled(inner, features, min(2, number + 1)))
            inner = features
        return nn.Sequential(*layers, Upsampled(inner, channels), nn.Sigmoid())

    def forward(self, images, labels):
        features = self.normalization(functional.relu(self.conv(images)))
        capsules, cells = features.movedim(1, -1), []
        for cell in self.cells:
            capsules = cell(capsules)
            cells.append(capsules.flatten(1, 3))
        capsules = self.digits(torch.cat(cells[:-3:-1], 1)).float()
        lengths = torch.linalg.vector_norm(capsules, dim=-1)
        one_hot = functional.one_hot(labels, capsules.shape[1]).to(capsules.dtype)
        drawn = self.decoder((capsules * one_hot[..., None]).sum(1))
        height, width = self.sides
        errors = (drawn[:, :, :height, :width] - images).square().sum((1, 2, 3))
        return (margin_loss(lengths, one_hot) + self.weight * errors).mean()


class ChannelsSecond(nn.Module):
    def forward(self, features):
        return features.movedim(-1, 1)
