# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The networks for segmentation in PyTorch: from images and masks to the loss.

Each has the weights of ours in the same order, and computes the same from them
(check_torch.py). Images are `[B, C, (D,) H, W]` in channels_last, masks are classes
`[B, (D,) H, W, 1]`, and capsules `[B, (D,) H, W, types, dim]`.
"""

import torch
from torch import nn
from torch.nn import functional
from torch_networks import margin_loss
from torch_slim_caps import slim_caps, torch_kernel


class SlimCaps(nn.Module):
    """Capsules that are convolved and routed at each pixel; padding is "SAME"."""

    def __init__(
        self,
        inner,
        parents,
        kernel_size,
        stride=1,
        *,
        iterations=3,
        axes=2,
        transposed=False,
    ):
        super().__init__()
        self.iterations, self.strides = iterations, (stride,) * axes
        self.transposed = transposed
        weights = 0.05 * torch.randn(*[kernel_size] * axes, inner, *parents)
        self.kernel = nn.Parameter(torch_kernel(weights, transposed))
        self.bias = nn.Parameter(torch.full(parents, 0.1))

    def forward(self, capsules):
        return slim_caps(
            capsules,
            self.kernel,
            self.bias,
            iterations=self.iterations,
            strides=self.strides,
            transposed=self.transposed,
        )


def one_hot_masks(masks, classes):
    """Returns masks `[B, ..., classes]`."""
    if classes == 1:
        return masks.float()
    return functional.one_hot(masks.squeeze(-1), classes).float()


def foreground(one_hot):
    """Returns where there is an object, `[B, 1, ...]`."""
    shown = one_hot if one_hot.shape[-1] == 1 else 1 - one_hot[..., :1]
    return shown.movedim(-1, 1)


def drawing_decoder(inner, units, channels, axes):
    convolution = {2: nn.Conv2d, 3: nn.Conv3d}[axes]
    layers = []
    for features in units:
        layers += [convolution(inner, features, 1), nn.ReLU()]
        inner = features
    return nn.Sequential(*layers, convolution(inner, channels, 1), nn.Sigmoid())


_SEGCAPS = {
    "paper": {
        "filters": 16,
        "down": (((2, 16), (4, 16)), ((4, 32), (8, 32)), ((8, 64), (8, 32))),
        "up": (((8, 32), (4, 32)), ((4, 16), (4, 16)), ((2, 16),)),
        "capsule_dim": 16,
        "decoder_units": (64, 128),
    },
    "small": {
        "filters": 16,
        "down": (((1, 16), (2, 16)), ((2, 16), (2, 16)), ((2, 32), (2, 32))),
        "up": (((2, 16), (2, 16)), ((1, 16), (2, 16)), ((1, 16),)),
        "capsule_dim": 8,
        "decoder_units": (16, 32),
    },
}


class SegCaps(nn.Module):
    """The network of LaLonde and Bagci (2018), in its variant R3."""

    def __init__(self, image_shape, classes, size="paper"):
        super().__init__()
        sizes, channels = _SEGCAPS[size], image_shape[-1]
        self.classes, inner = classes, sizes["filters"]
        self.conv = nn.Conv2d(channels, inner, 5, padding=2)
        passed, self.down, self.up = [], nn.ModuleList(), nn.ModuleList()
        for number, (halved, kept) in enumerate(sizes["down"]):
            passed.append(inner)
            iterations = 3 if number else 1
            self.down.append(SlimCaps(inner, halved, 5, 2, iterations=iterations))
            self.down.append(SlimCaps(halved[1], kept, 5))
            inner = kept[1]
        for doubled, *kept in sizes["up"]:
            level = [SlimCaps(inner, doubled, 4, 2, transposed=True)]
            inner = doubled[1]
            if inner != passed.pop():
                raise ValueError("capsules side by side must have one dimension")
            for each in kept:
                level.append(SlimCaps(inner, each, 5))
                inner = each[1]
            self.up.append(nn.ModuleList(level))
        dim = sizes["capsule_dim"]
        self.class_caps = SlimCaps(inner, (classes, dim), 1)
        self.decoder = drawing_decoder(
            classes * dim, sizes["decoder_units"], channels, 2
        )

    def forward(self, images, masks):
        features = functional.relu(self.conv(images))
        capsules, passed = features.movedim(1, -1).unsqueeze(-2), []
        for halve, keep in zip(self.down[::2], self.down[1::2], strict=True):
            passed.append(capsules)
            capsules = keep(halve(capsules))
        for double, *others in self.up:
            capsules = torch.cat([double(capsules), passed.pop()], -2)
            for layer in others:
                capsules = layer(capsules)
        capsules = self.class_caps(capsules).float()
        one_hot = one_hot_masks(masks, self.classes)
        shown = foreground(one_hot)
        lengths = torch.linalg.vector_norm(capsules, dim=-1)
        masked = capsules * (one_hot * shown.movedim(1, -1))[..., None]
        drawn = self.decoder(masked.flatten(-2).movedim(-1, 1))
        errors = (drawn - images * shown).square().sum((1, 2, 3))
        return margin_loss(lengths, one_hot).mean() + 0.0005 * errors.mean()


_UCAPS = {
    "paper": {
        "features": (16, 32, 64),
        "primary": (16, 4),
        "down": (((16, 8), (16, 8)), ((8, 16), (8, 16)), ((8, 32), 64)),
        "up": ((256, 128), (128, 64), (64,)),
        "decoder_units": (64, 128),
    },
    "small": {
        "features": (4, 8, 16),
        "primary": (4, 4),
        "down": (((4, 8), (4, 8)), ((4, 8), (4, 8)), ((4, 16), 16)),
        "up": ((32, 16), (16, 16), (16,)),
        "decoder_units": (16, 32),
    },
}


class Convolved(nn.Module):
    """A convolution, normalization of each sample's features, and an activation."""

    def __init__(self, inner, features, kernel_size, dilation=1, activation=None):
        super().__init__()
        self.conv = nn.Conv3d(
            inner,
            features,
            kernel_size,
            padding="same",
            dilation=dilation,
            bias=False,
        )
        self.activation = activation or nn.PReLU()

    def forward(self, features):
        return self.activation(functional.instance_norm(self.conv(features)))


def side_by_side(capsules):
    return capsules.flatten(-2).movedim(-1, 1)


class UCaps3D(nn.Module):
    """The network of Nguyen, Hua and Le (2021)."""

    def __init__(self, image_shape, classes, size="paper"):
        super().__init__()
        sizes, channels = _UCAPS[size], image_shape[-1]
        self.classes = classes
        first, second, third = sizes["features"]
        self.features = nn.Sequential(
            Convolved(channels, first, 5),
            Convolved(first, second, 5, dilation=2),
            Convolved(second, third, 5, dilation=2, activation=nn.Tanh()),
        )
        parents = sizes["primary"]
        self.primary = SlimCaps(third, parents, 3, iterations=1, axes=3)
        passed, self.down, self.up = [], nn.ModuleList(), nn.ModuleList()
        for halved, kept in sizes["down"]:
            passed.append(parents[0] * parents[1])
            kept = kept if isinstance(kept, tuple) else (classes, kept)
            self.down.append(SlimCaps(parents[1], halved, 3, 2, axes=3))
            self.down.append(SlimCaps(halved[1], kept, 3, axes=3))
            parents = kept
        inner = parents[0] * parents[1]
        for doubled, *kept in sizes["up"]:
            level = [nn.ConvTranspose3d(inner, doubled, 2, 2)]
            inner = doubled + passed.pop()
            for features in kept:
                level.append(Convolved(inner, features, 3))
                inner = features
            self.up.append(nn.ModuleList(level))
        self.scores = nn.Conv3d(inner, classes, 1)
        self.decoder = drawing_decoder(inner, sizes["decoder_units"], channels, 3)

    def forward(self, volumes, masks):
        features = self.features(volumes)
        capsules = self.primary(features.movedim(1, -1).unsqueeze(-2))
        passed = []
        for halve, keep in zip(self.down[::2], self.down[1::2], strict=True):
            passed.append(capsules)
            capsules = keep(halve(capsules))
        coarse = torch.linalg.vector_norm(capsules.float(), dim=-1)
        features = side_by_side(capsules)
        for double, *others in self.up:
            joined = double(features), side_by_side(passed.pop())
            features = torch.cat(joined, 1)
            for layer in others:
                features = layer(features)
        one_hot = one_hot_masks(masks, self.classes)
        shares = functional.avg_pool3d(one_hot.movedim(-1, 1), 8).movedim(1, -1)
        margin = 0.5 * margin_loss(coarse, shares, 0.7, 0.3).mean()
        shown = foreground(one_hot)
        squares = (self.decoder(features) - volumes).square() * shown
        errors = squares.flatten(1).sum(1) / shown.flatten(1).sum(1).clamp(min=1)
        logits = self.scores(features).float()
        loss = functional.cross_entropy(logits, masks.squeeze(-1))
        return loss + 0.1 * margin + 0.1 * errors.mean()


class UNet(nn.Module):
    """The U-Net of LaLonde and Bagci (2018)."""

    def __init__(self, image_shape, classes, size="paper"):
        super().__init__()
        *levels, deepest = {
            "paper": (64, 128, 256, 512, 1024),
            "small": (8, 16, 32, 64),
        }[size]
        self.classes, inner = classes, image_shape[-1]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for features in (*levels, deepest):
            self.down.append(self.convolved(inner, features))
            inner = features
        for features in levels[::-1]:
            double = nn.ConvTranspose2d(inner, features, 2, 2)
            after = self.convolved(2 * features, features)
            self.up.append(nn.ModuleList([double, after]))
            inner = features
        self.scores = nn.Conv2d(inner, classes, 1)

    @staticmethod
    def convolved(inner, features):
        return nn.Sequential(
            nn.Conv2d(inner, features, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(features, features, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, images, masks):
        passed, features = [], images
        *levels, deepest = self.down
        for level in levels:
            passed.append(level(features))
            features = functional.max_pool2d(passed[-1], 2)
        features = deepest(features)
        for double, after in self.up:
            features = after(torch.cat([double(features), passed.pop()], 1))
        logits = self.scores(features).float()
        if self.classes == 1:
            masks = masks.movedim(-1, 1).float()
            return functional.binary_cross_entropy_with_logits(logits, masks)
        return functional.cross_entropy(logits, masks.squeeze(-1))


NETWORKS = {"segcaps": SegCaps, "ucaps3d": UCaps3D, "unet": UNet}
