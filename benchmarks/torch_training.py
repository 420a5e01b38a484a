# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of the network of Sabour et al. (2017) in PyTorch.

`tf-capsops bench --suite training` runs this, and reads lines as torch_timing.py prints
them, with `busy_us` and `launches` of a step where there is a GPU.
"""

import torch
import torch_timing
from torch import nn
from torch.nn import functional


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


def main():
    parser = torch_timing.parser(__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()
    device = torch_timing.device_of(options)
    torch_timing.report(
        torch_timing.WITH_GRAPHS,
        lambda mode: training_step(mode, options.batch_size, device),
        device,
        options.repeat,
        gpu_work,
    )


if __name__ == "__main__":
    main()
