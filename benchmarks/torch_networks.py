# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The classifiers of the benchmark in PyTorch: from images and labels to the loss.

Each has the weights of ours in the same order, and computes the same from them
(check_torch.py). Images are `[B, C, H, W]` in channels_last, so that no map is copied
to make capsules of it.
"""

import torch
from torch import nn
from torch.nn import functional
from torch_moments import gathered
from torch_slim_caps import squash


def margin_loss(lengths, one_hot, m_plus=0.9, m_minus=0.1):
    present = one_hot * functional.relu(m_plus - lengths).square()
    absent = (1 - one_hot) * functional.relu(lengths - m_minus).square()
    return (present + 0.5 * absent).sum(-1)


def map_size(size, kernel_size, stride):
    return tuple((each - kernel_size) // stride + 1 for each in size)


class DigitCaps(nn.Module):
    """Fully connected capsules with dynamic routing."""

    def __init__(self, children, parents, inner, columns, iterations):
        super().__init__()
        self.iterations = iterations
        self.kernel = nn.Parameter(
            0.05 * torch.randn(children, parents, columns, inner)
        )

    def forward(self, inputs):
        predictions = torch.einsum("bik,ijdk->bijd", inputs, self.kernel)
        logits = torch.zeros_like(predictions[..., 0])
        for iteration in range(self.iterations):
            sums = torch.einsum("bij,bijd->bjd", logits.softmax(2), predictions)
            outputs = squash(sums)
            if iteration + 1 < self.iterations:
                logits = logits + torch.einsum("bijd,bjd->bij", predictions, outputs)
        return outputs


class CapsNet(nn.Module):
    """The network of Sabour et al. (2017), section 4, with its decoder."""

    def __init__(
        self,
        image_shape,
        classes,
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
    ):
        super().__init__()
        *size, channels = image_shape
        self.reconstruction_weight = reconstruction_weight
        self.dim = primary_dim
        features = primary_channels * primary_dim
        self.conv = nn.Conv2d(channels, filters, kernel_size)
        self.primary = nn.Conv2d(
            filters, features, primary_kernel_size, primary_strides
        )
        size = map_size(size, kernel_size, 1)
        height, width = map_size(size, primary_kernel_size, primary_strides)
        children = height * width * primary_channels
        self.digits = DigitCaps(
            children, classes, primary_dim, capsule_dim, routing_iterations
        )
        layers, inner = [], classes * capsule_dim
        for units in decoder_units:
            layers += [nn.Linear(inner, units), nn.ReLU()]
            inner = units
        pixels = image_shape[0] * image_shape[1] * channels
        self.decoder = nn.Sequential(*layers, nn.Linear(inner, pixels), nn.Sigmoid())

    def forward(self, images, labels):
        features = self.primary(functional.relu(self.conv(images)))
        features = features.permute(0, 2, 3, 1).flatten(1)
        capsules = self.digits(squash(features.unflatten(1, (-1, self.dim)))).float()
        one_hot = functional.one_hot(labels, capsules.shape[1]).to(capsules.dtype)
        lengths = torch.sqrt(capsules.square().sum(-1) + 1e-7)
        drawn = self.decoder((capsules * one_hot[..., None]).flatten(1))
        errors = (drawn - images.permute(0, 2, 3, 1).flatten(1)).square().sum(1)
        losses = margin_loss(lengths, one_hot) + self.reconstruction_weight * errors
        return losses.mean()


def exponential_squash(vectors):
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return (1 - torch.exp(-norm)) * vectors / (norm + 1e-12)


class WholeMap(nn.Module):
    """A depthwise convolution as large as the map: a product and a sum."""

    def __init__(self, size, features):
        super().__init__()
        self.kernel = nn.Parameter(0.05 * torch.randn(*size, features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, features):
        return (features.permute(0, 2, 3, 1) * self.kernel).sum((1, 2)) + self.bias


class SelfAttentionCaps(nn.Module):
    """Fully connected capsules with self-attention routing."""

    def __init__(self, children, parents, inner, columns):
        super().__init__()
        self.kernel = nn.Parameter(
            0.05 * torch.randn(children, parents, inner, columns)
        )
        self.priors = nn.Parameter(torch.zeros(children, parents))

    def forward(self, inputs):
        votes = torch.einsum("bik,ijkd->bijd", inputs, self.kernel)
        agreement = torch.einsum("bijd,bjd->bij", votes, votes.sum(1))
        shares = (agreement * votes.shape[-1] ** -0.5).softmax(2) + self.priors
        return exponential_squash(torch.einsum("bij,bijd->bjd", shares, votes).float())


class EfficientCapsNet(nn.Module):
    """The network of Mazzia, Salvetti and Chiaberge (2021), without its decoder."""

    def __init__(
        self,
        image_shape,
        classes,
        filters=(32, 64, 64, 128),
        kernel_sizes=(5, 3, 3, 3),
        strides=(1, 1, 1, 2),
        primary_dim=8,
        capsule_dim=16,
    ):
        super().__init__()
        *size, inner = image_shape
        self.dim = primary_dim
        layers = []
        for features, kernel_size, stride in zip(
            filters, kernel_sizes, strides, strict=True
        ):
            layers += [nn.Conv2d(inner, features, kernel_size, stride), nn.ReLU()]
            layers.append(nn.BatchNorm2d(features, eps=1e-3, momentum=0.01))
            size, inner = map_size(size, kernel_size, stride), features
        self.features = nn.Sequential(*layers)
        self.primary = WholeMap(size, inner)
        children = inner // primary_dim
        self.capsules = SelfAttentionCaps(children, classes, primary_dim, capsule_dim)

    def forward(self, images, labels):
        features = self.primary(self.features(images)).float()
        children = exponential_squash(features.unflatten(1, (-1, self.dim)))
        capsules = self.capsules(children)
        lengths = torch.linalg.vector_norm(capsules, dim=-1)
        one_hot = functional.one_hot(labels, capsules.shape[1]).to(lengths.dtype)
        return margin_loss(lengths, one_hot).mean()


class EMRouting(nn.Module):
    """EM routing, of Hinton, Sabour and Frosst (2018), procedure 1, for stored votes.

    Axes are windows `[N, H', W']`, the children in one `[KH, KW, C]`, parents and poses
    `[O, P, R]`.
    """

    def __init__(self, parents, iterations=3, final_lambda=0.01, epsilon=1e-4):
        super().__init__()
        self.iterations, self.epsilon = iterations, epsilon
        self.final_lambda = final_lambda
        self.beta_a = nn.Parameter(torch.zeros(parents))
        self.beta_u = nn.Parameter(torch.zeros(parents))

    def forward(self, votes, activations, normalize):
        """Returns poses and activations of the parents.

        Args:
            votes: `[N, H', W', KH, KW, C, O, P, R]`.
            activations: Of the children, `[N, H', W', KH, KW, C]`.
            normalize: From logits `[N, H', W', KH, KW, C, O]` to shares.
        """
        children, pose = (3, 4, 5), (-2, -1)
        activations = activations.float()[..., None]
        shares = (activations / votes.shape[-3]).expand(votes.shape[:-2])
        for iteration in range(self.iterations):
            weights = shares[..., None, None]
            mass = weights.sum(children, keepdim=True) + 1e-7
            means = (weights * votes).sum(children, keepdim=True) / mass
            squares = (votes - means).square()
            variances = (weights * squares).sum(children, keepdim=True) / mass
            variances = variances + self.epsilon
            logarithms = 0.5 * variances.log().sum(pose)
            costs = votes.shape[-2] * votes.shape[-1] * self.beta_u + logarithms
            costs = costs * mass[..., 0, 0]
            inverse_temperature = self.final_lambda * (1 - 0.95 ** (iteration + 1))
            active = inverse_temperature * (self.beta_a - costs)
            if iteration + 1 < self.iterations:
                distances = (squares * (0.5 / variances)).sum(pose)
                logits = functional.logsigmoid(active) - logarithms - distances
                shares = normalize(logits) * activations
        return means.squeeze(children), active.sigmoid().squeeze(children)


class ConvCaps(nn.Module):
    """Convolutional capsules without padding, routed by EM.

    A child's shares add up to one over the parents of all windows that see it.
    """

    def __init__(self, size, inner, parents, kernel_size, stride, pose_shape):
        super().__init__()
        self.window = tuple((axis, kernel_size, stride, 1) for axis in (1, 2))
        pairs = kernel_size, kernel_size, inner, parents
        self.kernel = nn.Parameter(0.5 * torch.randn(*pairs, *pose_shape))
        self.routing = EMRouting(parents)
        # The pixel at each place in each window, and the places of each pixel. A pixel
        # in fewer windows than others has the place after the last, which is empty.
        pixels = torch.arange(size[0] * size[1])
        pixels = gathered(pixels.reshape(1, *size), self.window).flatten()
        counts = torch.bincount(pixels, minlength=size[0] * size[1])
        order = torch.argsort(pixels, stable=True)
        first = counts.cumsum(0) - counts
        ranks = torch.arange(len(pixels)) - first[pixels[order]]
        places = torch.full((len(counts), int(counts.max())), len(pixels))
        places[pixels[order], ranks] = order
        self.register_buffer("pixels", pixels)
        self.register_buffer("places", places)

    def normalize(self, logits):
        flat = logits.flatten(1, 4)  # of each place in each window
        totals = functional.pad(flat.logsumexp(-1), (0, 0, 0, 1), value=-1e30)
        totals = totals[:, self.places].logsumexp(2)
        return torch.exp(flat - totals[:, self.pixels, :, None]).reshape(logits.shape)

    def forward(self, poses, activations):
        children = gathered(poses, self.window)
        votes = torch.einsum("nyxabcpq,abcoqr->nyxabcopr", children, self.kernel)
        activations = gathered(activations, self.window)
        return self.routing(votes, activations, self.normalize)


class ClassCaps(nn.Module):
    """A capsule for each class, of those at all positions, with their coordinates."""

    def __init__(self, inner, classes, pose_shape):
        super().__init__()
        pairs = inner, classes, *pose_shape
        self.kernel = nn.Parameter(0.5 * torch.randn(pairs))
        self.routing = EMRouting(classes)

    def forward(self, poses, activations):
        votes = torch.einsum("nabcpq,coqr->nabcopr", poses, self.kernel)
        height, width = poses.shape[1:3]
        added = torch.zeros(height, width, 1, 1, *votes.shape[-2:], device=votes.device)
        rows = torch.arange(height, device=votes.device) + 0.5
        columns = torch.arange(width, device=votes.device) + 0.5
        added[..., 0, 0, 0, -1] = (rows / height)[:, None]
        added[..., 0, 0, 1, -1] = columns / width
        votes = (votes + added.to(votes.dtype))[:, None, None]
        softmax = nn.Softmax(-1)
        poses, activations = self.routing(votes, activations[:, None, None], softmax)
        return poses[:, 0, 0], activations[:, 0, 0]


class MatrixCapsNet(nn.Module):
    """The network of Hinton, Sabour and Frosst (2018), with the last of its margins."""

    def __init__(
        self,
        image_shape,
        classes,
        filters=32,
        kernel_size=5,
        strides=2,
        primary_capsules=32,
        capsules=(32, 32),
        capsule_kernel_sizes=(3, 3),
        capsule_strides=(2, 1),
        pose_shape=(4, 4),
    ):
        super().__init__()
        self.types, self.pose = primary_capsules, tuple(pose_shape)
        self.numbers = primary_capsules * pose_shape[0] * pose_shape[1]
        self.conv = nn.Conv2d(image_shape[-1], filters, kernel_size, strides)
        self.primary = nn.Conv2d(filters, self.numbers + primary_capsules, 1)
        layers, inner = [], primary_capsules
        size = map_size(image_shape[:2], kernel_size, strides)
        for parents, kernel_size, stride in zip(
            capsules, capsule_kernel_sizes, capsule_strides, strict=True
        ):
            layers.append(
                ConvCaps(size, inner, parents, kernel_size, stride, self.pose)
            )
            size, inner = map_size(size, kernel_size, stride), parents
        self.layers = nn.ModuleList([*layers, ClassCaps(inner, classes, self.pose)])

    def forward(self, images, labels):
        features = self.primary(functional.relu(self.conv(images)))
        features = features.permute(0, 2, 3, 1)
        poses = features[..., : self.numbers].unflatten(-1, (self.types, *self.pose))
        activations = features[..., self.numbers :].sigmoid()
        for layer in self.layers:
            poses, activations = layer(poses, activations)
        one_hot = functional.one_hot(labels, activations.shape[1])
        ahead = (activations * one_hot).sum(1, keepdim=True) - activations
        excess = functional.relu(0.9 - ahead).square() * (1 - one_hot)
        return excess.sum(1).mean()


NETWORKS = {
    "capsnet": CapsNet,
    "efficient_capsnet": EfficientCapsNet,
    "matrix_capsnet": MatrixCapsNet,
}
