# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the networks that `train` names, with their rules of routing and losses."""

import keras

from tf_capsops import losses, models, routing
from tf_capsops.cli.errors import CommandError

# With the paper's inverse temperature, 0.01, the activations of a network of few
# capsules are so close to each other that the spread loss never falls. With this one,
# all activations of the paper's network are 1 from the start, and it does not fall
# either.
_FINAL_LAMBDA_OF_SMALL = 0.05

RULES = {
    "em": routing.EM,
    "vb": routing.VB,
    "dynamic": routing.Dynamic,
    "inverted-attention": routing.InvertedAttention,
    "self-attention": routing.SelfAttention,
}


def rule(name, iterations, preset, gradient):
    """Returns a rule of so many iterations, for a preset of matrix_capsnet.

    `gradient` is that of `EM`, or None for its default; other rules have none.

    Raises:
      CommandError: if the rule does not iterate, and a number is given.
    """
    if name == "em":
        scale = {"final_lambda": _FINAL_LAMBDA_OF_SMALL} if preset == "small" else {}
        return routing.EM(iterations or 2, gradient=gradient or "all", **scale)
    if name != "self-attention":
        return RULES[name](iterations or 2)
    if iterations:
        raise CommandError("self-attention does not iterate: no --routing-iterations")
    return routing.SelfAttention()


def model(trained, image_shape, num_classes):
    """Returns the network that `settings.of` describes, not compiled.

    Raises:
      ValueError: if the images do not suit it.
      CommandError: if its rule does not suit the options.
    """
    options = dict(trained["network"])
    if trained["routing"]:
        options["routing"] = rule(
            trained["routing"],
            trained["routing_iterations"],
            trained["preset"],
            trained["routing_gradient"],
        )
    precision = trained["mixed_precision"]
    make = getattr(models, trained["model"])
    dtype = precision and f"mixed_{precision}"
    return make(image_shape, num_classes, dtype=dtype, **options)


def loss(trained, steps):
    """Returns the loss that suits the scores of a network, in a training of `steps`."""
    if trained["routing"] in ("em", "vb"):
        margin = trained.get("margin", 0.9)
        return losses.SpreadLoss(max(1, steps // 2), end=margin)
    if trained["model"] == "convnet" or trained["routing"] == "inverted-attention":
        return keras.losses.SparseCategoricalCrossentropy()
    return losses.MarginLoss()
