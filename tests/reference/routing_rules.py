# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rules of `tf_capsops.routing` as their papers write them, over stored votes.

In TensorFlow, so that a tape differentiates them. Votes are `[N, Y, X, K, O, D]`: of
the window at (Y, X) its K children, to O parents, as vectors of D numbers. Activations
of children are `[N, Y, X, K]`, and shares `[N, Y, X, K, O]`. `divide` is the softmax of
logits `[N, Y, X, K, O]` over what the shares of a child add up to one over.
"""

import math

import tensorflow as tf


def votes_and_activations(poses, activations, weights, stride):
    """Votes under padding VALID, one window after the other."""
    height, width, channels, parents = weights.shape[:4]
    down = (poses.shape[1] - height) // stride + 1
    across = (poses.shape[2] - width) // stride + 1
    votes, active = [], []
    for y in range(0, down * stride, stride):
        for x in range(0, across * stride, stride):
            window = poses[:, y : y + height, x : x + width]
            of_window = tf.einsum("nhwcpq,hwcoqr->nhwcopr", window, weights)
            children = height * width * channels
            votes.append(tf.reshape(of_window, [len(poses), children, parents, -1]))
            seen = activations[:, y : y + height, x : x + width]
            active.append(tf.reshape(seen, [len(poses), children]))
    shape = [len(poses), down, across, *votes[0].shape[1:]]
    return (
        tf.reshape(tf.stack(votes, 1), shape),
        tf.reshape(tf.stack(active, 1), shape[:4]),
    )


def divide_among_all(height, width, channels, stride, image):
    """Returns `divide` for "all": every place in a window, by the child that is there.

    Args:
      height, width: of the window.
      channels: of the children.
      stride: of the windows.
      image: height and width of the children's image.
    """

    def divide(logits):
        down, across, parents = logits.shape[1], logits.shape[2], logits.shape[4]
        found = {}
        for y in range(down):
            for x in range(across):
                for place in range(height * width * channels):
                    row, column, channel = (
                        y * stride + place // (width * channels),
                        x * stride + place // channels % width,
                        place % channels,
                    )
                    assert row < image[0] and column < image[1]
                    found.setdefault((row, column, channel), []).append((y, x, place))
        shares = {}
        for places in found.values():
            flat = tf.concat([logits[:, y, x, place] for y, x, place in places], -1)
            parts = tf.split(tf.nn.softmax(flat), len(places), -1)
            shares.update(zip(places, parts))
        children = height * width * channels
        ordered = [
            shares[y, x, place]
            for y in range(down)
            for x in range(across)
            for place in range(children)
        ]
        shape = [len(logits), down, across, children, parents]
        return tf.reshape(tf.stack(ordered, 1), shape)

    return divide


def dynamic(votes, iterations, epsilon):
    """Procedure 1 of Sabour et al. (2017)."""
    logits = tf.zeros(votes.shape[:-1], votes.dtype)
    for _ in range(iterations):
        shares = tf.nn.softmax(logits)
        s = tf.einsum("nyxko,nyxkod->nyxod", shares, votes)
        squared = tf.reduce_sum(s * s, axis=-1, keepdims=True)
        v = squared / (1 + squared) * s / tf.sqrt(squared + epsilon)
        logits += tf.einsum("nyxkod,nyxod->nyxko", votes, v)
    return v, tf.norm(v, axis=-1)


def em(votes, active, beta_a, beta_u, first_shares, divide, iterations, rule):
    """Procedure 1 of Hinton et al. (2018), with the routines of M-step and E-step."""
    shares, mu = first_shares, 0.0

    def mean(r, mass):
        """Nearly: a mass of 1e-7 at the mean before counts, too."""
        away = votes - mu[:, :, :, None] if tf.is_tensor(mu) else votes
        weights = r / (mass + 1e-7)[:, :, :, None]
        return mu + tf.reduce_sum(weights[..., None] * away, axis=3)

    for iteration in range(iterations):
        r = shares * active[..., None]
        mass = tf.reduce_sum(r, axis=3)
        mu = mean(r, mass) if iteration == 0 else mu
        mu = mean(r, mass)
        weights = r / mass[:, :, :, None]
        exact = tf.reduce_sum(weights[..., None] * votes, axis=3)
        squares = tf.square(votes - exact[:, :, :, None])
        variance = tf.reduce_sum(weights[..., None] * squares, axis=3) + rule.epsilon
        cost = (beta_u[:, None] + 0.5 * tf.math.log(variance)) * mass[..., None]
        scale = rule.final_lambda * (1 - 0.95 ** (iteration + 1))
        cost = rule.activation_scale * tf.reduce_sum(cost, axis=-1)
        a = tf.sigmoid(scale * (beta_a - cost))
        if rule.gradient == "last" and iteration + 1 < iterations:
            mu, variance, a = map(tf.stop_gradient, (mu, variance, a))
        squares = tf.square(votes - mu[:, :, :, None]) / variance[:, :, :, None]
        normal = -0.5 * tf.reduce_sum(
            squares + tf.math.log(2 * math.pi * variance)[:, :, :, None], axis=-1
        )
        shares = divide(normal + tf.math.log(a)[:, :, :, None])
    return mu, a


def vb(votes, active, beta_a, beta_u, iterations):
    """Algorithm 1 of Ribeiro et al. (2020), with a diagonal precision.

    Batch normalization as in training: by the statistics of the batch.
    """
    numbers = votes.shape[-1]
    parents = votes.shape[-2]
    shares = tf.fill(votes.shape[:-1], tf.constant(1 / parents, votes.dtype))
    for _ in range(iterations):
        r = shares * active[..., None]
        mass = tf.reduce_sum(r, axis=3)
        alpha, kappa, nu = 1 + mass, 1 + mass, numbers + 1 + mass
        mean = tf.einsum("nyxko,nyxkod->nyxod", r, votes) / mass[..., None]
        m = mass[..., None] * mean / kappa[..., None]
        squares = tf.square(votes - mean[:, :, :, None])
        scatter = tf.einsum("nyxko,nyxkod->nyxod", r, squares)
        w = 1 + scatter + (mass / kappa)[..., None] * tf.square(mean)
        log_pi = tf.math.digamma(alpha) - tf.math.digamma(
            tf.reduce_sum(alpha, -1, keepdims=True)
        )
        log_det = numbers * math.log(2) - tf.reduce_sum(tf.math.log(w), -1)
        for d in range(numbers):
            log_det += tf.math.digamma((nu - d) / 2)
        distance = tf.square(votes - m[:, :, :, None]) / w[:, :, :, None]
        distance = nu[:, :, :, None] * tf.reduce_sum(distance, axis=-1)
        known = log_pi + 0.5 * log_det - numbers / (2 * kappa)
        shares = tf.nn.softmax(known[:, :, :, None] - 0.5 * distance)
    entropy = numbers / 2 * math.log(2 * math.pi * math.e) - 0.5 * log_det
    evidence = beta_a - (beta_u + tf.exp(log_pi) * entropy)
    return (
        _standardized(m, (0, 1, 2, 4)),
        tf.sigmoid(_standardized(evidence, (0, 1, 2))),
    )


def _standardized(values, axes):
    mean = tf.reduce_mean(values, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(values - mean), axes, keepdims=True)
    return (values - mean) / tf.sqrt(variance + 1e-5)


def inverted_attention(votes, scale, offset, iterations):
    """Procedure 1 of Tsai et al. (2020), for one layer."""
    numbers, parents = votes.shape[-1], votes.shape[-2]
    shares = tf.fill(votes.shape[:-1], tf.constant(1 / parents, votes.dtype))
    for _ in range(iterations):
        pose = tf.einsum("nyxko,nyxkod->nyxod", shares, votes)
        mean = tf.reduce_mean(pose, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(pose - mean), -1, keepdims=True)
        pose = scale * (pose - mean) / tf.sqrt(variance + 1e-5) + offset
        agreement = tf.einsum("nyxkod,nyxod->nyxko", votes, pose)
        shares = tf.nn.softmax(agreement / math.sqrt(numbers))
    return pose, tf.ones(pose.shape[:-1], pose.dtype)


def self_attention(votes, priors):
    """Equations 5 to 7 of Mazzia et al. (2021)."""
    agreement = tf.einsum("nyxiod,nyxjod->nyxijo", votes, votes)
    agreement = tf.reduce_sum(agreement, axis=4) / math.sqrt(votes.shape[-1])
    coefficients = tf.nn.softmax(agreement) + priors
    s = tf.einsum("nyxko,nyxkod->nyxod", coefficients, votes)
    length = tf.norm(s, axis=-1, keepdims=True)
    pose = (1 - 1 / tf.exp(length)) * s / length
    return pose, tf.norm(pose, axis=-1)
