# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of the network of Sabour et al. (2017) in PyTorch.

`tf-capsops bench --suite training` runs this in a process of its own where PyTorch is
installed. Each method is one line of JSON: `method` and either `error`, or `samples`,
seconds of a step, and `peak_bytes`, `busy_us` and `launches` where there is a GPU.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

SAMPLE_SECONDS = 0.3
METHODS = {
    "PyTorch": None,
    "PyTorch, torch.compile": "default",
    "PyTorch, torch.compile, CUDA graphs": "reduce-overhead",
}


def squash(vectors):
    squared = vectors.square().sum(-1, keepdim=True)
    return vectors * squared / (1 + squared) / torch.sqrt(squared + 1e-7)


class CapsNet(nn.Module):
    """The network as in section 4 of the paper, with its decoder; returns the loss."""

    def __init__(self, classes=10, capsule_dim=16, iterations=3):
        super().__init__()
        self.iterations = iterations
        self.conv = nn.Conv2d(1, 256, 9)
        self.primary = nn.Conv2d(256, 256, 9, stride=2)
        kernel = 0.05 * torch.randn(1152, classes, capsule_dim, 8)
        self.kernel = nn.Parameter(kernel)
        self.decoder = nn.Sequential(
            nn.Linear(classes * capsule_dim, 512),
            nn.ReLU(),
            nn.Linear(512, 1024),
            nn.ReLU(),
            nn.Linear(1024, 784),
            nn.Sigmoid(),
        )

    def capsules(self, images):
        features = self.primary(functional.relu(self.conv(images)))
        batch, _, height, width = features.shape
        features = features.reshape(batch, 32, 8, height, width)
        inputs = squash(features.permute(0, 3, 4, 1, 2).reshape(batch, 1152, 8))
        predictions = torch.einsum("bik,ijdk->bijd", inputs, self.kernel)
        logits = torch.zeros_like(predictions[..., 0])
        for iteration in range(self.iterations):
            sums = torch.einsum("bij,bijd->bjd", logits.softmax(2), predictions)
            outputs = squash(sums)
            if iteration + 1 < self.iterations:
                logits = logits + torch.einsum("bijd,bjd->bij", predictions, outputs)
        return outputs

    def forward(self, images, labels):
        capsules = self.capsules(images)
        one_hot = functional.one_hot(labels, capsules.shape[1]).to(capsules.dtype)
        lengths = torch.sqrt(capsules.square().sum(-1) + 1e-7)
        margin = one_hot * functional.relu(0.9 - lengths).square()
        margin = margin + 0.5 * (1 - one_hot) * functional.relu(lengths - 0.1).square()
        drawn = self.decoder((capsules * one_hot[..., None]).flatten(1))
        errors = (drawn - images.flatten(1)).square().sum(1)
        return (margin.sum(1) + 0.0005 * errors).mean()


def training_step(mode, batch, device):
    """Returns a function that takes one training step."""
    model = CapsNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    images = torch.rand(batch, 1, 28, 28, device=device)
    labels = torch.randint(10, (batch,), device=device)
    loss_of = model if mode is None else torch.compile(model, mode=mode)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(images, labels).backward()
        optimizer.step()

    return step


def seconds(step, count, device):
    """Returns how long a step takes, of so many in a row."""
    if device == "cpu":
        began = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - began) / count
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / count


def gpu_work(step, count):
    """Returns the microseconds of all kernels of a step, and how many there are."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    kernels = [
        event.time_range.elapsed_us()
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
    ]
    return {"busy_us": sum(kernels) / count, "launches": len(kernels) / count}


def measure(mode, batch, device, repeat):
    """Returns what a line of JSON says of one method."""
    step = training_step(mode, batch, device)
    for _ in range(5 if device == "cuda" else 2):
        step()
    once = statistics.median(seconds(step, 1, device) for _ in range(3))
    count = max(1, round(SAMPLE_SECONDS / once))
    if device == "cpu":
        samples = [seconds(step, count, device) for _ in range(repeat)]
        return {"samples": samples, "peak_bytes": None}
    torch.cuda.reset_peak_memory_stats()
    samples = [seconds(step, count, device) for _ in range(repeat)]
    peak = torch.cuda.max_memory_allocated()
    return {"samples": samples, "peak_bytes": peak, **gpu_work(step, count)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["CPU", "GPU"], default="GPU")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    device = {"CPU": "cpu", "GPU": "cuda"}[options.device]
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True
    for name, mode in METHODS.items():
        if device == "cpu" and mode == "reduce-overhead":
            continue
        try:
            row = measure(mode, options.batch_size, device, options.repeat)
        except Exception as error:  # a method that fails leaves the others alone
            row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps({"method": name, **row}), flush=True)
        torch.compiler.reset()
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
