# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments of `compile` for a model whose outputs are lengths and a reconstruction."""

import keras

from tf_capsops.metrics import ExactMatch


def lists_by_output(owner, argument, value, most=None):
    """Returns an argument of `compile` as a dict of lists, by output.

    Args:
      owner: the name that messages begin with.
      argument: the name of the argument.
      value: an entry for the lengths or a list of entries, or a dict of these by
        output; None for no entry.
      most: the most entries that an output may have; None for any number.

    Raises:
      ValueError: if `value` is something else; the message names argument and value.
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
            f"{owner}: {argument} must be for the lengths, or a dict of 'lengths' and "
            f"'reconstruction'{', with one entry each' if most else ''}, got {value!r}"
        )
    return lists


def one_by_output(owner, argument, value, defaults):
    """Returns an argument of `compile` as a dict of one entry for each output.

    Args:
      owner: the name that messages begin with.
      argument: the name of the argument.
      value: as for `lists_by_output`, with at most one entry for an output.
      defaults: the entries, by output, of outputs without an entry in `value`.

    Raises:
      ValueError: if `value` is something else; the message names argument and value.
    """
    lists = lists_by_output(owner, argument, value, most=1)
    return {**defaults, **{name: each[0] for name, each in lists.items() if each}}


def metrics_by_output(owner, argument, value, objects):
    """Returns metrics as `lists_by_output` does.

    With several objects, an accuracy becomes an `ExactMatch` of all classes in a
    sample, because Keras' accuracy is for a single class.

    Args:
      owner: the name that messages begin with.
      argument: the name of the argument.
      value: as for `lists_by_output`.
      objects: the number of classes in a sample.
    """
    metrics = lists_by_output(owner, argument, value)
    if objects == 1:
        return metrics
    return {
        name: [
            ExactMatch(objects, each) if each in ("accuracy", "acc") else each
            for each in entries
        ]
        for name, entries in metrics.items()
    }


def with_integers(owner, arguments, objects):
    """Returns arguments of `compile` in which sparse losses and metrics are wrapped.

    The model passes one-hot labels to all losses and metrics. The wrappers convert them
    to integers.

    Args:
      owner: the name that messages begin with.
      arguments: a dict of `"loss"`, `"metrics"` and `"weighted_metrics"`, each by
        output, and others.
      objects: the number of classes in a sample.

    Raises:
      ValueError: if a loss or metric is sparse and there are several `objects`.
    """

    def wrapped(entry, wrapper):
        if not is_sparse(entry):
            return entry
        if objects > 1:
            raise ValueError(
                f"{owner}: {entry!r} is of one class a sample, but this model has "
                f"{objects} objects"
            )
        return wrapper(entry)

    changed = dict(arguments)
    loss = arguments["loss"]["lengths"]
    changed["loss"] = {**arguments["loss"], "lengths": wrapped(loss, _IntegerLoss)}
    for argument in ("metrics", "weighted_metrics"):
        entries = arguments[argument].get("lengths", [])
        entries = [wrapped(each, _IntegerMetric) for each in entries]
        changed[argument] = {**arguments[argument], "lengths": entries}
    return changed


def is_sparse(entry):
    """Returns whether a loss or metric, in any form of Keras, takes integers."""
    names = [entry] if isinstance(entry, str) else [getattr(entry, "__name__", "")]
    names += [each.__name__ for each in type(entry).__mro__]
    return any(name.lower().startswith("sparse") for name in names)


def _integers(one_hot):
    return keras.ops.argmax(one_hot, axis=-1)


class _IntegerLoss(keras.losses.Loss):
    """Wraps a sparse loss, and passes it integers in place of one-hot labels."""

    def __init__(self, loss):
        loss = keras.losses.get(loss)
        self._call = loss
        arguments = {"name": getattr(loss, "name", None) or loss.__name__}
        if isinstance(loss, keras.losses.Loss):
            self._call = loss.call
            arguments |= {"reduction": loss.reduction, "dtype": loss.dtype}
        super().__init__(**arguments)

    def call(self, y_true, y_pred):
        return self._call(_integers(y_true), y_pred)


class _IntegerMetric(keras.metrics.Metric):
    """Wraps a sparse metric, and passes it integers in place of one-hot labels."""

    def __init__(self, metric):
        found = keras.metrics.get(metric)
        if not isinstance(found, keras.metrics.Metric):
            name = metric if isinstance(metric, str) else found.__name__
            found = keras.metrics.MeanMetricWrapper(found, name=name)
        elif isinstance(metric, str):
            found.name = metric
        super().__init__(name=found.name, dtype=found.dtype)
        self._metric = found

    def update_state(self, y_true, y_pred, sample_weight=None):
        self._metric.update_state(_integers(y_true), y_pred, sample_weight)

    def result(self):
        return self._metric.result()

    def reset_state(self):
        self._metric.reset_state()
