# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reports what conversion to codes makes of each layer of a model."""

import dataclasses
import math

from tf_capsops.inq.kernels import channel_axes, layers_and_kernels, layers_in
from tf_capsops.inq.twins import bits_or_why_not, twin_kind
from tf_capsops.layers.coded import holds_codes
from tf_capsops.layers.fake_quant import FakeQuant

_EXPONENT = 4  # bytes of an exponent
_OPTIONAL = "activations", "routing"  # columns that are left out if they are empty
_NUMBERS = "bits", *_OPTIONAL, "bytes", "after"


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """A layer before and after conversion; `tf_capsops.inq.report` has the fields."""

    layer: str
    kind: str
    becomes: str | None
    bits: int | None
    weights: int
    bytes_before: int
    bytes_after: int
    why_not: str | None
    activation_bits: int | None = None
    routing_bits: int | None = None

    @classmethod
    def of(cls, layer, books):
        """Returns the report of a built layer; `books` is a `twins.Books`."""
        coded = [each for each in layers_in(layer) if holds_codes(each)]
        if coded:
            kernels, bits, why_not = [each.codes for each in coded], coded[0].bits, None
            known = [*kernels, *(each.top_exponent for each in coded)]
        else:
            bits, why_not = bits_or_why_not(layer, books)
            pairs = layers_and_kernels(layer)
            kernels = known = [kernel for _, kernel in pairs]
        ids = set(map(id, known))
        others = [each for each in layer.weights if id(each) not in ids]
        sizes = [math.prod(kernel.shape) for kernel in kernels]
        as_numbers = 4 * sum(sizes) if coded else sum(map(_bytes, kernels))
        if coded:
            exponents = [math.prod(each.top_exponent.shape) for each in coded]
        elif books.per_channel:
            exponents = [_channels(*pair) for pair in pairs]
        else:
            exponents = [1] * len(sizes)
        in_codes = sum(-(-size * (bits or 0) // 8) for size in sizes)
        in_codes += _EXPONENT * sum(exponents)
        rest = sum(map(_bytes, others))
        return cls(
            layer=layer.path or layer.name,
            kind=type(layer).__name__,
            becomes=twin_kind(layer) if bits else None,
            bits=bits,
            weights=sum(sizes),
            bytes_before=as_numbers + rest,
            bytes_after=(in_codes if bits else as_numbers) + rest,
            why_not=why_not,
            activation_bits=(
                layer.bits
                if isinstance(layer, FakeQuant)
                else books.activation_bits
                if kernels
                else None
            ),
            routing_bits=books.routing_of(layer).get(
                "routing_bits", getattr(layer, "routing_bits", None)
            ),
        )


class Report(list):
    """A list of `LayerReport`, which prints as a table."""

    def __str__(self):
        heads = "layer", "kind", "becomes", "bits", *_OPTIONAL, "bytes", "after", ""
        rows = [heads]
        for each in self:
            bits = each.bits, each.activation_bits, each.routing_bits
            numbers = f"{each.bytes_before:,}", f"{each.bytes_after:,}"
            words = each.layer, each.kind, each.becomes or ""
            bits = (str(number or "") for number in bits)
            rows.append((*words, *bits, *numbers, each.why_not or ""))
        before, after = self._bytes()
        total = f"{before:,}", f"{after:,}", ""
        rows.append(("in all", *[""] * (len(heads) - 1 - len(total)), *total))
        columns = [
            column
            for column in zip(*rows)
            if column[0] not in _OPTIONAL or any(column[1:])
        ]
        rows = list(zip(*columns))
        widths = [max(map(len, column)) for column in columns]
        lines = []
        for row in rows:
            cells = [
                cell.rjust(width) if rows[0][column] in _NUMBERS else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def warning(self):
        """Returns a sentence about layers with kernels but no codes, or None."""
        left = [each for each in self if each.weights and not each.bits]
        if not left:
            return None
        largest = sorted(left, key=lambda each: -each.bytes_before)[:3]
        named = "; ".join(f"{each.layer}: {each.why_not}" for each in largest)
        more = f"; and {len(left) - 3} more" if len(left) > 3 else ""
        with_kernels = sum(1 for each in self if each.weights)
        before, _ = self._bytes()
        return (
            f"{len(left)} of {with_kernels} layers with kernels keep floating-point "
            f"weights, {sum(each.bytes_before for each in left):,} of the model's "
            f"{before:,} bytes ({named}{more}); tf_capsops.inq.report lists every layer"
        )

    def _bytes(self):
        """Returns the bytes of all layers in a file, before and after conversion."""
        before = sum(each.bytes_before for each in self)
        return before, sum(each.bytes_after for each in self)


def _channels(layer, kernel):
    return math.prod(kernel.shape[axis] for axis in channel_axes(layer, kernel))


def _bytes(variable):
    return math.prod(variable.shape) * variable.value.dtype.size
