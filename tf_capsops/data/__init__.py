# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Image data sets for training: loaded whole, or generated sample by sample."""

from tf_capsops.data.affine_mnist import AffineMnist, ShiftedMnist
from tf_capsops.data.dataset import Dataset
from tf_capsops.data.multimnist import MultiMnist
from tf_capsops.data.samples import Samples
from tf_capsops.data.sources import absolute, load

__all__ = [
    "AffineMnist",
    "Dataset",
    "MultiMnist",
    "Samples",
    "ShiftedMnist",
    "absolute",
    "load",
]
