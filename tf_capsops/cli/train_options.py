# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The options of `tf-capsops train`."""

from tf_capsops import options
from tf_capsops.cli import presets
from tf_capsops.experiments import recipes


def add_arguments(parser):
    """Adds the arguments of `tf-capsops train`."""
    _add_data(parser.add_argument_group("data"))
    _add_network(parser.add_argument_group("network"))
    _add_schedule(parser.add_argument_group("training"))
    _add_distortions(parser.add_argument_group("random changes of training images"))
    _add_execution(parser.add_argument_group("execution"))
    options.add_output(parser, "RECIPE or runs/DATA")
    options.add_resume(parser)


def _add_data(group):
    group.add_argument(
        "--data",
        metavar="NAME|FILE.npz|FOLDER",
        help=f"what to train on: {options.DATA} (default: that of the recipe, or "
        "digits)",
    )
    group.add_argument(
        "--image-size",
        type=options.positive_int,
        nargs="+",
        metavar="PIXELS",
        help="resize the pictures of a folder to this height and width (one number "
        "if they are the same); cut and pad volumes to this depth, height and width; "
        "put segmented or moving digits on images of this size (default: the size "
        "that all have)",
    )
    group.add_argument(
        "--color-mode",
        choices=["grayscale", "rgb"],
        help="convert the pictures of a folder to gray or to color (default: leave "
        "them as they are, if they are all alike)",
    )
    group.add_argument(
        "--test-share",
        type=options.share,
        metavar="SHARE",
        help="test with this share of each class of a folder that has no train/ and "
        "test/, the same pictures in every run (default: 0.2)",
    )
    options.add_skip_broken(group)
    group.add_argument(
        "--validation",
        type=options.share,
        metavar="SHARE",
        help="hold out this share of the training images, the same ones in every run, "
        "and test on them instead of the test images; for choosing options (default: "
        "train on all, and use the test images)",
    )


def _add_network(group):
    group.add_argument(
        "--recipe",
        metavar="NAME",
        help="all settings of one of our results; options that you add replace its "
        f"own: {', '.join(recipes.RECIPES)}",
    )
    group.add_argument(
        "--model",
        choices=list(presets.PRESETS),
        help="capsnet or deepcaps, with routing and a decoder; p_capsnet, of capsule "
        "convolutions only; matrix_capsnet, with any --routing; efficient_capsnet, of "
        "self-attention routing; or convnet, without capsules; for masks of classes "
        "segcaps, ucaps3d for volumes, or unet, without capsules (default: capsnet, or "
        "for masks segcaps or ucaps3d)",
    )
    group.add_argument(
        "--routing",
        choices=presets.RULES,
        help="the rule by which matrix_capsnet routes (default: em)",
    )
    group.add_argument(
        "--preset",
        choices=sorted({name for each in presets.PRESETS.values() for name in each}),
        help="sizes and schedule; sabour for capsnet and convnet, chen and tiny for "
        "p_capsnet, paper for deepcaps and networks for masks (default: small, compact "
        "or large, by the images' size)",
    )
    group.add_argument(
        "--routing-iterations",
        type=options.positive_int,
        help="how often routing computes the parents, for capsnet and deepcaps "
        "(default: 3) and matrix_capsnet (default: 2)",
    )
    group.add_argument(
        "--routing-gradient",
        choices=["all", "last"],
        help="the iterations of em routing that gradients flow through; with last, "
        "training takes less time (default: all)",
    )
    group.add_argument(
        "--reconstruction-weight",
        type=options.positive_float,
        help="weight in the loss of the reconstruction's squared error, summed over "
        "an image, for capsnet, deepcaps, segcaps and ucaps3d; raise it for images of "
        "few pixels, and if reconstructions of colors stay gray (default: the "
        "preset's, such as 0.0005 for compact)",
    )


def _add_schedule(group):
    preset = "the preset's"
    group.add_argument(
        "--epochs",
        type=options.positive_int,
        help=f"how often to train on every image (default: {preset})",
    )
    group.add_argument(
        "--steps-per-epoch",
        type=options.positive_int,
        help="batches in an epoch; each epoch draws anew from all images (default: "
        "enough for all images)",
    )
    rate = "the peak learning rate; it rises from zero during the first twentieth of "
    rate += "the training and then falls to zero"
    options.add_batches(group, preset, rate, preset)
    group.add_argument(
        "--class-weight",
        choices=["balanced"],
        help="balanced: rare classes count as much in the loss as common ones, and "
        "in masks, pixels of rare classes count more (default: all count alike)",
    )


def _add_distortions(group):
    group.add_argument(
        "--distortion",
        type=options.float_from_zero,
        nargs=3,
        metavar=("PIXELS", "DEGREES", "ZOOM"),
        help="shift, rotate and zoom by up to these amounts; a zoom of 0.1 makes an "
        "image up to a tenth larger or smaller (default: the preset's, such as 2 0 0 "
        "for sabour)",
    )
    group.add_argument(
        "--elastic",
        type=options.positive_float,
        metavar="PIXELS",
        help="bend images smoothly, by up to this many pixels in each direction",
    )
    group.add_argument(
        "--flip",
        action="store_const",
        const=True,
        help="mirror half of the images, left to right",
    )
    group.add_argument(
        "--brightness",
        type=options.share,
        metavar="SHARE",
        help="make images brighter or darker, by up to this share of the way from "
        "black to white",
    )
    group.add_argument(
        "--contrast",
        type=options.share,
        metavar="SHARE",
        help="raise or lower the contrast by up to this share",
    )
    group.add_argument(
        "--erase",
        type=options.share,
        metavar="SHARE",
        help="paint over a rectangle of up to this share of the image's area",
    )


def _add_execution(group):
    group.add_argument(
        "--mixed-precision",
        choices=["float16", "bfloat16"],
        help="compute in this type and keep weights in float32; float16 with a scaled "
        "loss (default: float32 throughout)",
    )
    group.add_argument(
        "--jit",
        choices=["auto", "on", "off"],
        help="compile with XLA; auto does so if there is a GPU and no --seed "
        "(default: auto)",
    )
    group.add_argument(
        "--steps-per-execution",
        type=options.positive_int,
        help="batches that are trained on in one call of TensorFlow; more take less "
        "time if batches are quick (default: up to 20 with a GPU, else 1)",
    )
    group.add_argument(
        "--distribute",
        choices=["mirrored", "multiworker"],
        help="divide every batch among all GPUs (without a GPU, all logical CPUs): "
        "mirrored, those of this process; multiworker, those of all processes that "
        "TF_CONFIG names (default: one device)",
    )
    options.add_seed(group)
    options.add_nondeterministic(group)
