# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Incremental network quantization: weights that are zero or powers of two.

The method of Zhou et al., "Incremental Network Quantization: Towards Lossless CNNs with
Low-Precision Weights" (2017). Weights of `bits` bits come from the code book
`{0, +-2^n1, +-2^(n1-1), ..., +-2^n2}` with `n2 = n1 + 1 - 2^(bits-2)`.
"""

from tf_capsops.codes import decode, encode, quantize, top_exponent
from tf_capsops.inq.conversion import convert, report
from tf_capsops.inq.training import IncrementalQuantization
from tf_capsops.packing import pack, unpack

__all__ = [
    "IncrementalQuantization",
    "convert",
    "decode",
    "encode",
    "pack",
    "quantize",
    "report",
    "top_exponent",
    "unpack",
]
