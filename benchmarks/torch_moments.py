# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times the moments of votes in PyTorch, which stores the votes.

`tf-capsops bench --op CapsuleMoments` runs this for each of its cases, and reads lines
as torch_timing.py prints them, with the `direction`; `peak_bytes` are beyond the
inputs.
"""

import functools
import json

import torch
import torch_timing
from torch.nn import functional


def moments(poses, weights, given, *, order, normalize, strides, dilations):
    """Computes what `tf_capsops.capsule_moments` does, without padding.

    Args:
        given: The optional inputs, by name.
    """
    window = tuple(zip((1, 2), weights.shape[:2], strides, dilations, strict=True))
    votes = torch.einsum("nyxabcpq,abcoqr->nyxabcopr", gathered(poses, window), weights)

    def of_windows(name):
        return given[name][:, :, :, None, None, None]

    logits = torch.zeros_like(votes[..., 0, 0])
    if "prior" in given:
        logits = logits + given["prior"]
    if "bias" in given:
        logits = logits + of_windows("bias")
    if "linear" in given:
        logits = logits + (votes * of_windows("linear")).sum((-2, -1))
    if "center" in given:
        votes = votes - of_windows("center")
    if "precision" in given:
        logits = logits - 0.5 * (votes**2 * of_windows("precision")).sum((-2, -1))
    if normalize == "parents":
        logits = functional.softmax(logits, -1)
    elif normalize == "all":
        logits = over_all_that_see(logits, poses.shape[1:3], window)
    if "activations" in given:
        logits = logits * gathered(given["activations"], window)[..., None]
    sums = [
        torch.einsum("nyxabco,nyxabcopr->nyxopr", logits, votes**power)
        for power in range(1, order + 1)
    ]
    return logits.sum((3, 4, 5)), *sums


def gathered(images, window):
    """Returns what the windows see: `[N, H', W', KH, KW, C, ...]`."""
    for axis, taps, stride, dilation in window:
        seen = images.unfold(axis, (taps - 1) * dilation + 1, stride)
        images = seen[..., ::dilation]
    return images.movedim((-2, -1), (3, 4))


def over_all_that_see(logits, size, window):
    """The softmax over parents of each child and over the windows that it is in."""
    pixels = torch.arange(size[0] * size[1], device=logits.device)
    pixels = gathered(pixels.reshape(1, *size), window).flatten()
    flat = logits.flatten(1, 4)  # of each place in each window
    largest = flat.detach().amax(-1)
    most = torch.full_like(largest[:, :1], -torch.inf).expand(-1, size.numel(), -1)
    index = pixels[None, :, None].expand_as(largest)
    most = most.scatter_reduce(1, index, largest, "amax")
    weighed = torch.exp(flat - most[:, pixels, :, None])
    total = torch.zeros_like(most).index_add(1, pixels, weighed.sum(-1))
    return (weighed / total[:, pixels, :, None]).reshape(logits.shape)


def drawn(case, device):
    """Returns poses, weights and the optional inputs of a case, in order."""
    sizes, attributes = case["sizes"], case["attributes"]
    kernel = sizes["kernel_height"], sizes["kernel_width"]
    image = sizes["batch"], sizes["height"], sizes["width"], sizes["channels"]
    pairs = *kernel, sizes["channels"], sizes["parents"]
    moved = zip(image[1:3], kernel, attributes["strides"], attributes["dilations"])
    out = [(size - (taps - 1) * d - 1) // stride + 1 for size, taps, stride, d in moved]
    parents = sizes["batch"], *out, sizes["parents"]
    pose = sizes["rows"], sizes["columns"]
    shapes = {"activations": image, "bias": parents, "prior": pairs}
    shapes |= dict.fromkeys(("linear", "precision", "center"), (*parents, *pose))

    def uniform(shape):
        return torch.rand(shape, device=device, requires_grad=True)

    poses = uniform((*image, sizes["rows"], sizes["inner"]))
    weights = uniform((*pairs, sizes["inner"], sizes["columns"]))
    return poses, weights, *(uniform(shapes[name]) for name in attributes["given"])


def main():
    parser = torch_timing.parser(__doc__)
    parser.add_argument("--case", type=json.loads, required=True)
    options = parser.parse_args()
    if options.case["attributes"]["padding"] != "VALID":
        parser.error("only windows without padding are written here")
    for name in ("strides", "dilations"):
        value = options.case["attributes"][name]
        options.case["attributes"][name] = (
            value if isinstance(value, list) else [value] * 2
        )
    names = ("order", "normalize", "strides", "dilations")
    named = {name: options.case["attributes"][name] for name in names}
    given = options.case["attributes"]["given"]

    def compute(poses, weights, *others):
        return moments(poses, weights, dict(zip(given, others)), **named)

    torch_timing.report_op(compute, functools.partial(drawn, options.case), options)


if __name__ == "__main__":
    main()
