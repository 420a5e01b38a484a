# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains on one device and on two, and prints as JSON what came out of both.

A program of its own, because logical devices are made before anything else runs.
"""

import json
import warnings

import tensorflow as tf

(_CPU,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    _CPU, [tf.config.LogicalDeviceConfiguration()] * 2
)
tf.config.set_visible_devices([], "GPU")

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tf_capsops.models import Unrolled, capsnet  # noqa: E402

warnings.simplefilter("ignore")  # of Keras, that data ends
# Batches of 5 have shares of 3 and 2 samples, the last batch of 1 and none.
SAMPLES, BATCH = 11, 5
IMAGES = np.random.default_rng(1).random((SAMPLES, 8, 8, 1), np.float32)
LABELS = np.arange(SAMPLES) % 3
WEIGHTS = np.linspace(0, 1, SAMPLES, dtype=np.float32)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return len(range(0, SAMPLES, BATCH))

    def __getitem__(self, index):
        part = slice(index * BATCH, (index + 1) * BATCH)
        return IMAGES[part], LABELS[part]


def generator():
    yield from (Batches()[index] for index in range(len(Batches())))


def data_set():
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(BATCH)


def fit(*data, **arguments):
    arguments = {"shuffle": False, "verbose": 0, **arguments}
    return lambda model: [*model.fit(*data, **arguments).history["loss"]]


def evaluate(*data, **arguments):
    return lambda model: model.evaluate(
        *data, verbose=0, return_dict=True, **arguments
    )["loss"]


def lengths(predict):
    return lambda model: predict(model)["lengths"].tolist()


USES = {
    "arrays": fit(IMAGES, LABELS, batch_size=BATCH, epochs=2),
    "data set": fit(data_set()),
    "unknown size": fit(data_set().filter(lambda *_: True)),
    "infinite": fit(data_set().repeat(), steps_per_epoch=2, epochs=2),
    "generator": lambda model: fit(generator())(model),
    "PyDataset": fit(Batches()),
    "validation_split": fit(IMAGES, LABELS, batch_size=BATCH, validation_split=0.4),
    "class_weight": fit(
        IMAGES, LABELS, batch_size=BATCH, class_weight={0: 1.0, 1: 2.0, 2: 0.5}
    ),
    "sample_weight": fit(IMAGES, LABELS, batch_size=BATCH, sample_weight=WEIGHTS),
    "train_on_batch": lambda model: model.train_on_batch(IMAGES, LABELS)[0],
    "one sample": lambda model: model.train_on_batch(IMAGES[:1], LABELS[:1])[0],
    "test_on_batch": lambda model: model.test_on_batch(IMAGES, LABELS)[0],
    "evaluate": evaluate(IMAGES, LABELS, batch_size=BATCH),
    "evaluate a generator": lambda model: evaluate(generator())(model),
    "predict": lengths(
        lambda model: model.predict(IMAGES, batch_size=BATCH, verbose=0)
    ),
    "predict_on_batch": lengths(lambda model: model.predict_on_batch(IMAGES)),
}


def network():
    keras.utils.set_random_seed(1)
    model = capsnet(
        (8, 8, 1),
        3,
        filters=2,
        kernel_size=3,
        primary_channels=2,
        primary_dim=2,
        primary_kernel_size=3,
        capsule_dim=2,
        decoder_units=(),
    )
    optimizer = keras.optimizers.SGD(1.0)  # so that weights of samples matter
    # Eager steps are the same, and take no time to trace.
    model.compile(optimizer, steps_per_execution=2, run_eagerly=True)
    return model


@keras.saving.register_keras_serializable("tests")
class Dense(Unrolled, keras.Sequential):
    pass


def compiled():
    """A model that XLA compiles, whose statistics and optimizer have variables."""
    keras.utils.set_random_seed(1)
    layers = [keras.Input([6]), keras.layers.Dense(3), keras.layers.Dense(1)]
    model = Dense(layers)
    model.compile(
        keras.optimizers.Adam(0.01, weight_decay=0.01),
        "mse",
        steps_per_execution=2,
        jit_compile=True,
    )
    return model


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
    outcome = use(model)
    return [outcome, [weight.tolist() for weight in model.get_weights()]]


def main():
    recording = Recording()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], recording)
    said = {name: [] for name in [*USES, "XLA", "pixels"]}
    inputs = IMAGES.reshape(SAMPLES, -1)[:, :6]
    for scope in (tf.device("CPU:0"), strategy.scope()):
        with scope:
            model, dense = network(), compiled()
        initial = model.get_weights()
        use = fit(inputs, LABELS, batch_size=BATCH, epochs=2)
        said["XLA"].append(results(dense, use))
        for name, use in USES.items():
            model.set_weights(initial)
            said[name].append(results(model, use))
        try:
            model.fit(255 * IMAGES, LABELS, verbose=0)
        except ValueError as error:
            said["pixels"].append(str(error))
    said["summed types"] = sorted(recording.types)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
