# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Image data sets: arrays, folders of pictures, and samples that are generated."""

from tf_capsops.data.affine_mnist import AffineMnist, ShiftedMnist
from tf_capsops.data.dataset import Dataset
from tf_capsops.data.multimnist import MultiMnist
from tf_capsops.data.pictures import Pictures, read_pictures
from tf_capsops.data.samples import Samples
from tf_capsops.data.segmented_mnist import MovingMnist, SegmentedMnist
from tf_capsops.data.sources import absolute, is_pictures, load
from tf_capsops.data.volumes import read_volume

__all__ = [
    "AffineMnist",
    "Dataset",
    "MovingMnist",
    "MultiMnist",
    "Pictures",
    "Samples",
    "SegmentedMnist",
    "ShiftedMnist",
    "absolute",
    "is_pictures",
    "load",
    "read_pictures",
    "read_volume",
]
