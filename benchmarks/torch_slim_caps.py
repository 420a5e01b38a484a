# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times slim capsule layers in PyTorch, which store the votes.

They are written as public code for SegCaps is: types of children go into the batch of a
convolution, whose features are the votes, and a softmax over the parents of a pixel
divides each type. Features are channels_last, so votes are not copied to route them.

`tf-capsops bench --op CapsuleConvRouting` runs this for each of its cases
(torch_timing.py).
"""

import functools
import json

import torch
import torch_timing
from torch.nn import functional

CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
TRANSPOSED = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


def slim_caps(
    capsules,
    kernel,
    bias,
    logits=None,
    *,
    iterations=3,
    strides,
    padding="SAME",
    dilations=None,
    transposed=False,
    leaky=False,
):
    """Computes what `tf_capsops.capsule_conv_routing` does with one kernel for all.

    Args:
        capsules: `[N, spatial..., I, K]`.
        kernel: That of PyTorch's convolution from K to O * D features.
        bias: `[O, D]`.
        logits: `[I, O]`, or None for zeros.
        strides, dilations: A number for each axis.
    """
    window = {"strides": strides, "padding": padding, "dilations": dilations}
    votes = votes_of(capsules, kernel, bias.shape, transposed=transposed, **window)
    if logits is None:
        logits = votes.new_zeros(capsules.shape[-2], len(bias))
    return route(votes, bias, logits, iterations, leaky)


def votes_of(
    capsules,
    kernel,
    parents,
    *,
    strides,
    padding="SAME",
    dilations=None,
    transposed=False,
):
    """Returns votes `[N, I, spatial..., O, D]`, of parents `(O, D)`."""
    images = capsules.movedim(-2, 1).flatten(0, 1).movedim(-1, 1)
    if transposed:
        votes = transposed_convolution(images, kernel, strides, padding)
    else:
        votes = convolution(images, kernel, strides, padding, dilations)
    votes = votes.movedim(1, -1).unflatten(-1, parents)
    return votes.unflatten(0, (-1, capsules.shape[-2]))


def convolution(images, kernel, strides, padding="SAME", dilations=None):
    """Convolves, and pads as TensorFlow does."""
    count = len(strides)
    before, dilations = [0] * count, dilations or [1] * count
    if padding == "SAME":
        sizes = zip(images.shape[2:], kernel.shape[2:], strides, dilations, strict=True)
        beyond = [
            max(0, (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size)
            for size, taps, stride, dilation in sizes
        ]
        before = [each // 2 for each in beyond]
        if any(each % 2 for each in beyond):  # more after the image than before it
            ends = [(first, all_ - first) for first, all_ in zip(before, beyond)]
            images = functional.pad(images, [n for pair in ends[::-1] for n in pair])
            before = [0] * count
    convolve = CONVOLUTIONS[count - 1]
    return convolve(images, kernel, stride=strides, padding=before, dilation=dilations)


def transposed_convolution(images, kernel, strides, padding="SAME", bias=None):
    """Convolves to larger images, of TensorFlow's sizes."""
    count, windows = len(strides), kernel.shape[2:]
    beyond = [max(0, taps - stride) for taps, stride in zip(windows, strides)]
    before = [each // 2 if padding == "SAME" else 0 for each in beyond]
    made = TRANSPOSED[count - 1](
        images,
        kernel,
        bias,
        stride=strides,
        padding=before,
        output_padding=[max(0, s - taps) for taps, s in zip(windows, strides)],
    )
    if padding == "SAME":
        for axis, stride in enumerate(strides, start=2):
            made = made.narrow(axis, 0, images.shape[axis] * stride)
    return made


def route(votes, bias, logits, iterations, leaky=False):
    """Routes by agreement at each pixel.

    Args:
        votes: `[N, I, spatial..., O, D]`.
        bias: `[O, D]`.
        logits: `[I, O]`.
    """
    types, parents = logits.shape
    logits = logits.reshape(types, *[1] * (votes.ndim - 4), parents)
    for iteration in range(iterations):
        if leaky:
            shares = functional.pad(logits, (0, 1)).softmax(-1)[..., :-1]
        else:
            shares = logits.softmax(-1)
        outputs = squash((shares[..., None] * votes).sum(1) + bias)
        if iteration + 1 < iterations:
            logits = logits + (votes * outputs[:, None]).sum(-1)
    return outputs


def squash(vectors):
    squared = vectors.square().sum(-1, keepdim=True)
    return vectors * (squared / (1 + squared) / torch.sqrt(squared + 1e-7))


def torch_kernel(weights, transposed=False):
    """Returns weights `[kernel..., K, O, D]` as PyTorch's convolution has them."""
    ends = (-2, -1) if transposed else (-1, -2)
    return weights.flatten(-2).movedim(ends, (0, 1))


def drawn(case, device):
    """Returns capsules, kernel, bias and logits of a case, as PyTorch has them."""
    sizes, transposed = case["sizes"], case["attributes"]["transposed"]
    axes = [axis for axis in ("depth", "height", "width") if axis in sizes]
    types, inner, parents, dim = (
        sizes[name] for name in ("types", "in_dim", "parents", "out_dim")
    )
    image = [sizes[axis] for axis in axes]
    window = [sizes[f"kernel_{axis}"] for axis in axes]

    def uniform(*shape):
        return torch.rand(shape, device=device, requires_grad=True)

    with torch.no_grad():
        kernel = torch_kernel(uniform(*window, inner, parents, dim), transposed)
        if len(axes) > 1:
            last = {2: torch.channels_last, 3: torch.channels_last_3d}[len(axes)]
            kernel = kernel.contiguous(memory_format=last)
    capsules = uniform(sizes["batch"], *image, types, inner)
    bias, logits = uniform(parents, dim), uniform(types, parents)
    return capsules, kernel.requires_grad_(), bias, logits


def main():
    parser = torch_timing.parser(__doc__)
    parser.add_argument("--case", type=json.loads, required=True)
    options = parser.parse_args()
    if options.case["sizes"]["kernels"] > 1:
        parser.error("only one kernel for all types of children is written here")

    def compute(*inputs):
        return slim_caps(*inputs, **options.case["attributes"])

    def prepare(capsules, weights, *others):
        transposed = options.case["attributes"]["transposed"]
        return capsules, torch_kernel(weights, transposed), *others

    draw = functools.partial(drawn, options.case)
    torch_timing.report_op(compute, draw, options, prepare)


if __name__ == "__main__":
    main()
