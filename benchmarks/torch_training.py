# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of the networks beside it.

`tf-capsops bench --suite training` runs this, and reads lines as torch_timing.py prints
them, with the network's `parameters` and, on a GPU, `busy_us` and `launches` of a step.
With `--started` it takes one step instead, and prints how long the parts of that took.
"""

import json
import time

import torch
import torch_deepcaps
import torch_networks
import torch_segmenters
import torch_timing
from torch_slim_caps import torch_kernel

_IMPORTED = time.time()
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_NETWORKS = {
    **torch_networks.NETWORKS,
    **torch_segmenters.NETWORKS,
    "deepcaps": torch_deepcaps.DeepCaps,
}
_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def image_of(case):
    """Returns the sizes of a case's images or volumes."""
    names = ("in_depth", "in_height", "in_width")
    return [case["sizes"][name] for name in names if name in case["sizes"]]


def network(case):
    """Makes the network of a case, a dict of its name, sizes and attributes."""
    image, sizes = image_of(case), case["sizes"]
    make = _NETWORKS[case["name"]]
    made = make((*image, sizes["channels"]), sizes["classes"], **case["attributes"])
    return made.to(memory_format=_LAST[len(image)])


def drawn(case, device):
    """Returns images and the labels or masks of a case."""
    image, sizes = image_of(case), case["sizes"]
    images = torch.rand(sizes["batch"], sizes["channels"], *image, device=device)
    shape = [sizes["batch"]]
    if case["name"] in torch_segmenters.NETWORKS:
        shape += [*image, 1]
    classes = max(2, sizes["classes"])
    labels = torch.randint(classes, shape, device=device)
    return images.to(memory_format=_LAST[len(image)]), labels


def training_step(case, mode, dtype, device):
    """Returns a function that takes one training step.

    Args:
        case: A network's name, sizes and attributes.
        mode: Of torch.compile, or None.
        dtype: "float32", or the type of autocast; float16 has its loss scaled.
        device: "cpu" or "cuda".
    """
    model = network(case).to(device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler(device, enabled=dtype == "float16")
    images, labels = drawn(case, device)
    loss_of = model if mode is None else torch.compile(model, mode=mode)
    narrow = {"dtype": _DTYPES.get(dtype), "enabled": dtype in _DTYPES}

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, **narrow):
            loss = loss_of(images, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

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


def start_up(make_step, device, started):
    """Takes the first step of this process, and returns the seconds of its parts.

    Args:
        make_step: Returns a function that takes one step.
        started: When the process was started, in seconds since the epoch.
    """
    began = time.time()
    step = make_step()
    if device == "cuda":
        torch.cuda.synchronize()
    built = time.time()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    parts = {"import_s": _IMPORTED - started, "build_s": built - began}
    return {**parts, "first_s": time.time() - built}


def as_in_torch(array, module):
    """Returns a weight of ours as a module of PyTorch has it, but for the shape."""
    if isinstance(module, torch.nn.Linear):
        return array.T
    if isinstance(module, torch_segmenters.SlimCaps) and array.ndim > 2:
        return torch_kernel(array, module.transposed)
    if isinstance(module, torch.nn.modules.conv._ConvNd) and array.ndim > 1:
        return array.movedim((-1, -2), (0, 1))
    return array


def losses(case, weights, images, labels):
    """Returns the losses before and after a step of gradient descent.

    Args:
        weights: Those of our network, arrays in its order.
        images: `[B, (D,) H, W, C]`.
    """
    model = network(case)
    ours = iter(weights)
    with torch.no_grad():
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                array = as_in_torch(torch.as_tensor(next(ours)), module)
                parameter.copy_(array.reshape(parameter.shape))
    images = torch.as_tensor(images).movedim(-1, 1)
    labels = torch.as_tensor(labels).long()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(images, labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main():
    parser = torch_timing.parser(__doc__)
    parser.add_argument("--case", type=json.loads, required=True)
    parser.add_argument("--dtype", choices=["float32", *_DTYPES], default="float32")
    parser.add_argument("--started", type=float)
    parser.add_argument("--method", choices=torch_timing.WITH_GRAPHS)
    options = parser.parse_args()
    device = torch_timing.device_of(options)

    def make_step(mode):
        return training_step(options.case, mode, options.dtype, device)

    if options.values:
        import numpy as np

        with np.load(options.values) as file:
            images, labels, *weights = (file[name] for name in file.files)
        print(json.dumps({"losses": losses(options.case, weights, images, labels)}))
    elif options.started:
        mode = torch_timing.WITH_GRAPHS[options.method]
        parts = start_up(lambda: make_step(mode), device, options.started)
        print(json.dumps({"method": options.method, **parts}))
    else:
        counted = sum(each.numel() for each in network(options.case).parameters())
        jobs = [
            ({"method": name, "parameters": counted}, mode, make_step)
            for name, mode in torch_timing.WITH_GRAPHS.items()
        ]
        torch_timing.report(jobs, device, options, gpu_work)


if __name__ == "__main__":
    main()
