# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments of `compile` for a model whose outputs are lengths and a reconstruction."""

from tf_capsops.metrics import ExactMatch


def lists_by_output(argument, value, most=None):
    """Returns an argument of `compile` as a dict of lists, by output.

    Args:
      argument: its name.
      value: an entry for the lengths or a list of entries, or a dict of these by
        output; None for no entry.
      most: how many entries an output may have; None for any number.

    Raises:
      ValueError: if it is something else; the message names argument and value.
    """
    by_output = value if isinstance(value, dict) else {"lengths": value}
    lists = {
        name: list(each) if isinstance(each, (list, tuple)) else [each]
        for name, each in by_output.items()
        if each is not None
    }
    entries = [entry for each in lists.values() for entry in each]
    if (
        not by_output.keys() <= {"lengths", "reconstruction"}
        or any(isinstance(entry, (list, tuple, dict)) for entry in entries)
        or (most and any(len(each) > most for each in lists.values()))
    ):
        raise ValueError(
            f"CapsNet: {argument} must be for the lengths, or a dict of 'lengths' and "
            f"'reconstruction'{', with one entry each' if most else ''}, got {value!r}"
        )
    return lists


def one_by_output(argument, value, defaults):
    """Returns an argument of `compile` as a dict of one entry for each output.

    Args:
      argument: its name.
      value: as for `lists_by_output`, with at most one entry for an output.
      defaults: a dict of the entries of outputs that have none.

    Raises:
      ValueError: if it is something else; the message names argument and value.
    """
    lists = lists_by_output(argument, value, most=1)
    return {**defaults, **{name: each[0] for name, each in lists.items() if each}}


def metrics_by_output(argument, value, objects):
    """Returns metrics as `lists_by_output` does.

    An accuracy is that of all classes that a sample shows; Keras knows one of a single
    class only.

    Args:
      argument: the name of the argument.
      value: as for `lists_by_output`.
      objects: how many classes a sample shows.
    """
    metrics = lists_by_output(argument, value)
    if objects == 1:
        return metrics
    return {
        name: [
            ExactMatch(objects, each) if each in ("accuracy", "acc") else each
            for each in entries
        ]
        for name, entries in metrics.items()
    }
