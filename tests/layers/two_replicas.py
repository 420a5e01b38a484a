# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains on one device and on two, and prints as JSON what came out of both.

On two GPUs where there are as many, and otherwise on two logical CPUs: these are made
before anything else runs, so this is a program of its own.
"""

import functools
import json
import warnings

import tensorflow as tf

_GPUS = tf.config.list_physical_devices("GPU")
if len(_GPUS) > 1:
    DEVICES = ["GPU:0", "GPU:1"]
    for _gpu in _GPUS:
        tf.config.experimental.set_memory_growth(_gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(False)
else:
    DEVICES = ["CPU:0", "CPU:1"]
    (_CPU,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        _CPU, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    tf.config.set_visible_devices([], "GPU")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import small  # noqa: E402

from tf_capsops import inq  # noqa: E402
from tf_capsops.metrics import Dice  # noqa: E402
from tf_capsops.models import Unrolled, grouping, segcaps  # noqa: E402

warnings.simplefilter("ignore")  # of Keras, that data ends
# Batches of 5 have shares of 3 and 2 samples, the last batch of 1 and none.
SAMPLES, BATCH = 11, 5
IMAGES = np.random.default_rng(1).random((SAMPLES, 8, 8, 1), np.float32)
LABELS = np.arange(SAMPLES) % 3
WEIGHTS = np.linspace(0, 1, SAMPLES, dtype=np.float32)


class Batches(keras.utils.PyDataset):
    def __init__(self, inputs, targets):
        super().__init__()
        self.arrays = inputs, targets

    def __len__(self):
        return len(range(0, SAMPLES, BATCH))

    def __getitem__(self, index):
        return tuple(each[index * BATCH :][:BATCH] for each in self.arrays)


def generator(data):
    yield from (Batches(*data)[index] for index in range(len(Batches(*data))))


def fit(model, *data, **arguments):
    arguments = {"shuffle": False, "verbose": 0, **arguments}
    return model.fit(*data, **arguments).history["loss"]


def trained_weights(model, inputs):
    fit(model, inputs, inputs[:, ::-1], batch_size=BATCH)
    return flat(model.get_weights())


def evaluate(model, *data, **arguments):
    arguments = {"return_dict": True, "verbose": 0, **arguments}
    return model.evaluate(*data, **arguments)["loss"]


def trained_on(model, *batch):
    return model.train_on_batch(*batch, return_dict=True)["loss"]


def tested_on(model, *batch):
    return model.test_on_batch(*batch, return_dict=True)["loss"]


def flat(outputs):
    return np.concatenate([each.ravel() for each in keras.tree.flatten(outputs)])


def uses_of_any_model(x, y):
    """Returns what to do with a model, by name."""
    with tf.device("CPU:0"):  # the result of a predicate must be on the host
        data_set = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        unknown, endless = data_set.filter(lambda *_: True), data_set.repeat()
    size = {"batch_size": BATCH}
    return {
        "data set": lambda model: fit(model, data_set),
        "data set divided by the user": lambda model: fit(
            model, model.distribute_strategy.experimental_distribute_dataset(data_set)
        ),
        "unknown size": lambda model: fit(model, unknown),
        "infinite": lambda model: fit(model, endless, steps_per_epoch=2, epochs=2),
        "generator": lambda model: fit(model, generator((x, y))),
        "PyDataset": lambda model: fit(model, Batches(x, y)),
        "validation_split": lambda model: fit(
            model, x, y, validation_split=0.4, **size
        ),
        "one sample": lambda model: trained_on(model, x[:1], y[:1]),
        "test_on_batch": lambda model: tested_on(model, x, y),
        "evaluate": lambda model: evaluate(model, x, y, **size),
        "evaluate a generator": lambda model: evaluate(model, generator((x, y))),
    }


def uses_of_network(x, y):
    """Returns what to do with a capsule network, by name."""
    size = {"batch_size": BATCH}
    classes = {0: 1.0, 1: 2.0, 2: 0.5}
    return {
        "arrays": lambda model: fit(model, x, y, epochs=2, **size),
        "class_weight": lambda model: fit(model, x, y, class_weight=classes, **size),
        "sample_weight": lambda model: fit(model, x, y, sample_weight=WEIGHTS, **size),
        "train_on_batch": lambda model: trained_on(model, x, y, WEIGHTS),
        "predict": lambda model: flat(model.predict(x, verbose=0, **size)),
        "predict_on_batch": lambda model: flat(model.predict_on_batch(x)),
    }


def network():
    keras.utils.set_random_seed(1)
    dims = {"primary_dim": 2, "capsule_dim": 2, "decoder_units": ()}
    model = small.capsnet(filters=2, **dims)
    optimizer = keras.optimizers.SGD(1.0)  # so that weights of samples matter
    # Eager steps are the same, and take no time to trace.
    model.compile(optimizer, steps_per_execution=2, run_eagerly=True)
    return model


def network_for_masks():
    keras.utils.set_random_seed(1)
    model = segcaps((8, 8, 1), 3, size="small", reconstruction_weight=0.1)
    model.compile("sgd", metrics=[Dice(3)], run_eagerly=True)
    return model


class Dense(Unrolled, keras.Sequential):
    pass


def dense(**compiling):
    keras.utils.set_random_seed(1)
    layers = [keras.Input([6]), keras.layers.Dense(3), keras.layers.Dense(1)]
    model = Dense(layers)
    optimizer = keras.optimizers.Adam(0.01, weight_decay=0.01)
    model.compile(optimizer, "mse", steps_per_execution=2, **compiling)
    return model


class Half(Dense):
    """Trains its last layer alone."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            loss = self.optimizer.scale_loss(loss)
        variables = self.layers[-1].trainable_variables[::-1]
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"loss": loss}


class Twice(Half):
    """Has two updates in a step."""

    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


class Logging(Dense):
    """Logs a number of its own."""

    def train_step(self, data):
        bias = self.bias(*data[:2])
        return {**super().train_step(data), "bias": bias}

    def test_step(self, data):
        return {"bias": self.bias(*data[:2])}

    def bias(self, x, y):
        return tf.reduce_mean(self(x) - y)


def logging():
    keras.utils.set_random_seed(1)
    model = Logging([keras.Input([6]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    return model


def logged(model, x, y):
    """Returns logs of the second of two batches in an execution, and of a rest of 1."""
    fits = [
        model.fit(x[:n], y[:n], batch_size=size, shuffle=False, verbose=0)
        for size, n in ((BATCH, 2 * BATCH), (BATCH, SAMPLES), (4, 8))
    ]
    on_batch = model.train_on_batch(x, y, return_dict=True)["bias"]
    tested = model.evaluate(x, y, batch_size=BATCH, return_dict=True, verbose=0)
    return [*(each.history["bias"][0] for each in fits), on_batch, tested["bias"]]


def quantized(model, x, y, size):
    """Returns the kernels after each of two fits of quantized weights that train."""
    steps = inq.IncrementalQuantization(model, 3, (0.5, 1), straight_through=True)
    kernels = []
    for _ in range(2):
        fit(model, x, y, batch_size=size, epochs=3, callbacks=[steps])
        kernels += [each.variable.numpy() for each in steps.kernels]
    return flat(kernels)


def segmented(model):
    """Returns losses and scores of training on masks, and of an evaluation."""
    images = IMAGES[: BATCH + 1]
    masks = np.floor(3 * images).astype(np.int32)
    options = {"batch_size": BATCH, "verbose": 0}
    logs = model.fit(images, masks, epochs=2, shuffle=False, **options).history
    return [*logs["loss"], *logs["dice"], *model.evaluate(images, masks, **options)]


def half(kind=Half):
    keras.utils.set_random_seed(1)
    layers = [keras.Input([6]), keras.layers.Dense(6), keras.layers.Dense(6)]
    model = kind(layers)
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def measured(metric):
    keras.utils.set_random_seed(1)
    model = Dense([keras.Input([6]), keras.layers.Dense(1)])
    half = keras.metrics.MeanSquaredError("half", dtype="bfloat16")
    model.compile("sgd", "mse", metrics=[metric, half], jit_compile=True)
    return model


def errors(model, x, y):
    logs = model.train_on_batch(x, y, return_dict=True)
    logs |= {
        f"{name} later": each
        for name, each in model.evaluate(
            x, y, batch_size=BATCH, return_dict=True, verbose=0
        ).items()
    }
    return [float(each) for name, each in logs.items() if "half" not in name]


def late(model, x, y):
    """Returns losses that the bar sees of executions of two batches, and of epochs."""
    losses = []

    class Bar(grouping.Bar):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs.get("loss", 0)))  # none yet in the first one
            super().on_train_batch_end(batch, logs)

    found = grouping.gpu_of
    grouping.gpu_of = lambda model: DEVICES[0]
    more = {"validation_data": (x, y), "callbacks": [Bar()]}
    history = model.fit(
        *(x, y), batch_size=2, epochs=3, shuffle=False, verbose=0, **more
    ).history
    grouping.gpu_of = found
    return losses + [each for values in history.values() for each in values]


class Recording(tf.distribute.ReductionToOneDevice):
    """Keeps the types of what replicas sum."""

    def __init__(self):
        super().__init__()
        self.types = set()

    def reduce(self, reduce_op, per_replica_value, *args, **options):
        local = per_replica_value.values[0]
        self.types.add(local.dtype.name)
        return super().reduce(reduce_op, per_replica_value, *args, **options)

    def batch_reduce(self, reduce_op, value_destination_pairs, *args, **options):
        self.types |= {
            value.values[0].dtype.name for value, _ in value_destination_pairs
        }
        return super().batch_reduce(
            reduce_op, value_destination_pairs, *args, **options
        )


def results(model, use):
    outcome = np.asarray(use(model)).tolist()
    return [outcome, [weight.tolist() for weight in model.get_weights()]]


def main():
    recording = Recording()
    strategy = tf.distribute.MirroredStrategy(DEVICES, recording)
    inputs = IMAGES.reshape(SAMPLES, -1)[:, :6]
    targets = np.float32(LABELS[:, None])
    said = {}

    def say(name, *arguments):
        said.setdefault(name, []).append(results(*arguments))

    for scope in (tf.device(DEVICES[0]), strategy.scope()):
        outside = keras.metrics.MeanAbsoluteError()  # of the strategy's scope
        with scope:
            counted, shown = measured(outside), dense()
            capsules = network()
            eager, graphs = dense(run_eagerly=True), dense(jit_compile=True)
            trained_in_half, own_logs = half(), logging()
            segmenter = network_for_masks()
        initial = capsules.get_weights()
        for name, use in uses_of_network(IMAGES, LABELS).items():
            capsules.set_weights(initial)
            say(name, capsules, use)
        for name, use in uses_of_any_model(inputs, targets).items():
            say(name, eager, use)
        for name, size in {"XLA": BATCH, "XLA, even shares": 4}.items():
            use = functools.partial(fit, x=inputs, y=targets, batch_size=size, epochs=2)
            say(name, graphs, use)
        for name, model, size in (
            ("quantized", graphs, BATCH),
            ("quantized, even shares", eager, 4),
        ):
            use = functools.partial(quantized, x=inputs, y=targets, size=size)
            say(name, model, use)
        say("masks", segmenter, segmented)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            say("metrics", counted, lambda model: errors(model, inputs, targets))
        found = [str(each.message) for each in caught if "scope" in str(each.message)]
        said.setdefault("warnings", []).append(found)
        say("late logs", shown, lambda model: late(model, inputs, targets))
        say("own logs", own_logs, lambda model: logged(model, inputs, targets))
        say("half", trained_in_half, lambda model: trained_weights(model, inputs))
        try:
            capsules.fit(255 * IMAGES, LABELS, verbose=0)
        except ValueError as error:
            said.setdefault("pixels", []).append(str(error))
    said["summed types"] = sorted(recording.types)
    with strategy.scope():
        twice = half(Twice)
    try:
        trained_weights(twice, inputs)
    except ValueError as error:
        said["twice"] = str(error)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
