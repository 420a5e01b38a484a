# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Changes images so that a network misreads them, and counts how often it does.

Each pixel changes by at most epsilon (the l-infinity norm) and stays between 0 and 1.
Both methods follow the gradient of a loss through the whole network, including all
iterations of its routing:

* `fgsm`: one step of epsilon in the direction of the gradient's signs (Goodfellow,
  Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples", 2015).
* `pgd`: a random start and many small steps, each followed by the nearest image that is
  allowed (Madry et al., "Towards Deep Learning Models Resistant to Adversarial
  Attacks", 2018).
"""

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.errors import CommandError
from tf_capsops.models.outputs import is_sparse

_REACH = 2.5  # Total length of the steps of pgd, in epsilons: Madry et al., section 5.
FALSE_ALARMS = 0.05  # Share of clean images that detection may take for attacked ones.


def step_size(epsilon, steps):
    """Returns the usual step of `pgd`: all steps together reach from edge to edge."""
    return _REACH * epsilon / steps


def gradient_of(model, loss):
    """Returns a function of images and labels that computes a loss's image gradient.

    Args:
      model: a classifier. Its `EM` routing with `gradient="last"` is set to `"all"`.
      loss: `"own"` for the loss of the scores that the model is compiled with; or
        `"difference"`, the highest score of another class minus the label's score
        (Carlini and Wagner, "Towards Evaluating the Robustness of Neural Networks",
        2017), whose gradient does not vanish once a margin is reached.

    Raises:
      CommandError: if `loss` is `"own"` and the model was not compiled with one.
    """
    for layer in model.layers:
        if getattr(getattr(layer, "routing", None), "gradient", None) == "last":
            layer.routing.gradient = "all"
    compute = _difference if loss == "difference" else _own_loss(model)

    @tf.function(reduce_retracing=True)
    def gradient(images, labels):
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = compute(labels, scores_of(model(images, training=False)))
        return tape.gradient(total, images)

    return gradient


def scores_of(outputs):
    """Returns the scores `[B, classes]` among a classifier's outputs."""
    return outputs["lengths"] if isinstance(outputs, dict) else outputs


def _own_loss(model):
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict) and len(loss) > 1:
        loss = loss.get("lengths")
    elif isinstance(loss, (dict, list, tuple)):
        (loss,) = loss.values() if isinstance(loss, dict) else loss
    if loss is None:
        raise CommandError(
            f"the {model.name} was not compiled and has no loss to follow: give --loss "
            "difference"
        )
    function = keras.losses.get(loss)
    if is_sparse(loss):
        return function
    return lambda labels, scores: function(
        tf.one_hot(labels, scores.shape[-1], dtype=scores.dtype), scores
    )


def _difference(labels, scores):
    own = tf.one_hot(labels, scores.shape[-1], True, False)
    others = tf.reduce_max(tf.where(own, scores.dtype.min, scores), axis=-1)
    return tf.reduce_sum(others - tf.boolean_mask(scores, own))


def fgsm(gradient, images, labels, epsilon):
    """Returns images, changed by one step of the fast gradient sign method.

    Args:
      gradient: as `gradient_of` returns it.
      images: `[B, H, W, C]`, from 0 to 1.
      labels: their classes, `[B]`.
      epsilon: the most that a pixel changes.
    """
    signs = tf.sign(gradient(images, labels))
    return tf.clip_by_value(images + epsilon * signs, 0.0, 1.0)


def pgd(gradient, images, labels, epsilon, steps, size, seed):
    """Returns images as they are after the last step of projected gradient descent.

    Args:
      gradient, images, labels, epsilon: as for `fgsm`.
      steps: number of steps.
      size: what a step adds to a pixel or subtracts from it.
      seed: two integers, the seed of the random start.
    """
    lowest = tf.maximum(images - epsilon, 0.0)
    highest = tf.minimum(images + epsilon, 1.0)
    start = tf.random.stateless_uniform(images.shape, seed, -epsilon, epsilon)
    changed = tf.clip_by_value(images + start, lowest, highest)
    for _ in range(steps):
        changed += size * tf.sign(gradient(changed, labels))
        changed = tf.clip_by_value(changed, lowest, highest)
    return changed


def measure(models, samples, attack, epsilons, count, batch_size):
    """Attacks test images, and lets networks classify the clean and changed images.

    Args:
      models: the attacked network, and others that read the same images.
      samples: a `data.Samples`, each of one class.
      attack: a function from images, labels, an epsilon and the number of the batch
        to changed images.
      epsilons: values above 0; the results begin with 0, for the clean images.
      count: how many samples to attack, from the first one on.
      batch_size: images that are attacked at a time.

    Returns:
      Whether each image is classified correctly, `[models, 1 + epsilons, images]`; and
      the distance of each image from the first model's reconstruction of it,
      `[1 + epsilons, images]`, or None if that model reconstructs nothing.
    """
    right, distances = [], []
    for number, first in enumerate(range(0, count, batch_size)):
        images, labels = samples.take(range(first, min(first + batch_size, count)))
        versions = [images]
        versions += [attack(images, labels, epsilon, number) for epsilon in epsilons]
        outputs = [
            [model.predict_on_batch(each) for each in versions] for model in models
        ]
        read = [[scores_of(each).argmax(axis=-1) for each in row] for row in outputs]
        right.append(np.equal(read, labels.numpy()))
        if isinstance(outputs[0][0], dict):
            pairs = zip(versions, outputs[0])
            distances.append([_distance(x, y["reconstruction"]) for x, y in pairs])
    right = np.concatenate(right, axis=-1)
    return right, np.concatenate(distances, axis=-1) if distances else None


def _distance(images, drawn):
    squares = np.square(images.numpy() - drawn, dtype=np.float64)
    return np.sqrt(squares.reshape(len(drawn), -1).sum(axis=1))


def detection(clean, attacked):
    """Returns how well a distance tells attacked images from clean ones.

    An image is considered attacked if the capsule of its predicted class reconstructs
    a different image: Frosst, Sabour and Hinton, "DARCCC: Detecting Adversaries by
    Reconstruction from Class Conditional Capsules" (2018).

    Args:
      clean: distances of images from their reconstructions.
      attacked: the same distances for attacked images that are misread.

    Returns:
      A dict of `"false_alarms"` and `"found"`, the ROC from (0, 0) to (1, 1) as lists;
      `"area"` under it; and `"undetected"`, the share of attacked images within the
      distance that a share of `FALSE_ALARMS` of the clean ones exceeds. None without
      attacked images.
    """
    if not len(attacked):
        return None
    limits = np.unique(np.concatenate([clean, attacked, [np.inf]]))[::-1]
    rates = [
        1 - np.searchsorted(np.sort(each), limits) / len(each)
        for each in (clean, attacked)
    ]
    limit = np.quantile(clean, 1 - FALSE_ALARMS, method="higher")
    return {
        "false_alarms": rates[0].tolist(),
        "found": rates[1].tolist(),
        "area": float(np.diff(rates[0]) @ (rates[1][1:] + rates[1][:-1]) / 2),
        "undetected": float(np.mean(attacked <= limit)),
    }
