# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which GPU kernels can run a call of an op, and why the others cannot."""

import ast
import inspect
import math
import re

from tf_capsops.errors import CommandError, reported

_FUNCTIONS = {
    "CapsulePrediction": "capsule_prediction",
    "CapsuleRouting": "capsule_routing",
    "CapsuleConv": "capsule_conv2d",
    "CapsuleConvRouting": "capsule_conv_routing",
    "CapsuleMoments": "capsule_moments",
    "HighOrderConv": "high_order_conv2d",
    "InqConv": "inq_conv2d",
    "InqConvInt8": "inq_conv2d_int8",
}
# Arguments without a default that are no tensors with a shape of interest.
_NUMBERS = ("kernel_size", "top_exponent", "scale", "zero_point")
_MOST_NUMBERS = 2**48
_SHAPE = re.compile(r"\d{1,9}(x\d{1,9})*")


def add_arguments(parser):
    """Adds the options that describe a call of an op."""
    group = parser.add_argument_group("which kernels can run an op on a GPU")
    group.add_argument("--op", choices=_FUNCTIONS, help="the op; its gradient, too")
    group.add_argument(
        "--shape",
        metavar="SHAPE",
        nargs="+",
        help="shapes of its tensors in the order of the Python function, such as "
        "128x14x14x32x4x4 3x3x32x32x4x4, or none for a tensor that is left out",
    )
    group.add_argument(
        "--argument",
        metavar="NAME=VALUE",
        nargs="+",
        help="its other arguments, such as strides=2 padding=SAME; a value such as "
        "8x8x32 is a tensor of that shape",
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "float64", "float16", "bfloat16"),
        help="type of its tensors (default: float32)",
    )
    group.add_argument(
        "--capability",
        choices=("8.0", "8.6", "9.0", "10.0", "12.0"),
        help="compute capability of the GPU (default: the GPU here, or else 9.0)",
    )


def check(args):
    """Raises a CommandError if the options do not describe a call of an op."""
    others = ("shape", "argument", "dtype", "capability")
    if not args.op:
        for name in others:
            if getattr(args, name):
                raise CommandError(f"--{name} needs --op")
        return
    if not args.shape:
        raise CommandError("--op needs --shape")
    for shape in args.shape:
        if shape != "none" and not _SHAPE.fullmatch(shape):
            raise CommandError(
                f"--shape: expected sizes such as 128x14x14x32, got '{shape}'"
            )
        if shape != "none" and math.prod(map(int, shape.split("x"))) > _MOST_NUMBERS:
            raise CommandError(f"--shape: {shape} has more than 2^48 elements")
    for argument in args.argument or ():
        if not re.fullmatch(r"\w+=.+", argument):
            raise CommandError(f"--argument: expected NAME=VALUE, got '{argument}'")


def run(args):
    """Runs the op and its gradient once, on zeros, and prints the kernels."""
    import tensorflow as tf

    from tf_capsops import _library, kernels

    with reported(ImportError):
        built = _library.build_info()
    if not built["cuda"]:
        # Reports mistakes in the call first. In a graph nothing is computed.
        with tf.Graph().as_default():
            _call(args)
        raise CommandError(
            "this library is CPU-only, so it has no GPU kernels: `make build CUDA=1` "
            "builds them, in a clone"
        )
    gpus = tf.config.list_physical_devices("GPU")
    if args.capability or not gpus:
        capability = round(10 * float(args.capability or "9.0"))
        device = kernels.pretend_device(
            capability=capability, **kernels.GPUS[capability]
        )
        with tf.device("CPU:0"), device, kernels.explained() as candidates:
            _call(args)
    else:
        with tf.device("GPU:0"), kernels.explained() as candidates:
            _call(args)
    chosen = set()
    for op, kernel, refusal in candidates:
        state = "can"
        if refusal:
            state = f"cannot, because {refusal}"
        elif op not in chosen:
            chosen.add(op)
            state = "runs"
        print(f"{op:<28}{kernel:<10}{state}")
    return 0


def _check_count(args, function):
    """Raises a CommandError if a tensor that an op needs has no shape."""
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.default is each.empty]
    needed = [each for each in names if each not in _NUMBERS]
    given = {each.partition("=")[0] for each in args.argument or ()}
    missing = [each for each in needed[len(args.shape) :] if each not in given]
    if missing:
        raise CommandError(
            f"--shape: {args.op} needs the shapes of {', '.join(needed)}, in this "
            f"order, and {missing[0]} has none"
        )


def _call(args):
    import tensorflow as tf

    import tf_capsops

    dtype = args.dtype or "float32"

    def zeros(shape, dtype=dtype):
        return tf.zeros([int(size) for size in shape.split("x")], dtype)

    tensors = [None if shape == "none" else zeros(shape) for shape in args.shape]
    if args.op.startswith("InqConv") and len(tensors) == 2:
        scale_and_zero_point = [1.0, 0] if args.op == "InqConvInt8" else []
        tensors[1:] = [zeros(args.shape[1], "uint8"), 0, *scale_and_zero_point]
    options = {}
    for argument in args.argument or ():
        name, _, value = argument.partition("=")
        if _SHAPE.fullmatch(value) and "x" in value:
            options[name] = zeros(value)
            continue
        try:
            options[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            options[name] = value
    function = getattr(tf_capsops, _FUNCTIONS[args.op])
    _check_count(args, function)
    watched = [each for each in (*tensors, *options.values()) if tf.is_tensor(each)]
    watched = [tensor for tensor in watched if tensor.dtype.is_floating]
    with reported(TypeError, ValueError, tf.errors.OpError):
        with tf.GradientTape() as tape:
            tape.watch(watched)
            results = function(*tensors, **options)
        if args.op != "InqConvInt8":  # this op has no gradient
            tape.gradient(results, watched)
