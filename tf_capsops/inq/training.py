# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains in steps, each of which quantizes a part of the weights."""

import numbers
import warnings

import keras
import numpy as np

from tf_capsops.arguments import boolean, positive_int
from tf_capsops.codes import checked_bits
from tf_capsops.inq.activations import simulate
from tf_capsops.inq.kernels import PartlyFixedKernel, layers_and_kernels
from tf_capsops.inq.twins import checked_activation_bits


class IncrementalQuantization(keras.callbacks.Callback):
    """Quantizes the weights of a trained model part by part, with training in between.

    Incremental network quantization by Zhou et al. (2017), algorithm 1. At each step
    the largest weights of each kernel that are still free are rounded by
    `tf_capsops.inq.quantize` and never change again; the others go on training and make
    up for the error. The top exponent n1 of a kernel is that of its weights at the
    first step. After the last step, if its fraction is 1, all weights are zero or
    powers of two; the epochs that follow train biases and whatever else is not
    quantized.

    With `straight_through` the epochs after the last step train quantized weights, too,
    from code to code, which helps with 3 bits and fewer. Each weight has a latent
    number that takes the optimizer's steps, and is that number, rounded (the
    straight-through estimator of Bengio et al., 2013). Kernels and channels that are
    zero stay zero, and averages that an optimizer keeps do not replace kernels.

    The callback quantizes the `kernel` of every layer that has one (`Conv2D`,
    `DepthwiseConv2D`, `Dense`, `CapsuleConv2D`, `DigitCaps` and others) and the
    `depthwise_kernel` and `pointwise_kernel` of `SeparableConv2D`, also where the layer
    is a part of another layer or model. Biases and logits are not quantized. A warning
    names other trained weights of two or more axes, such as those of `Embedding`.

    Fixed weights keep every bit under any optimizer of Keras, with momentum, weight
    decay, gradient accumulation, averaged weights, and many batches in one execution.
    For this purpose the callback replaces each kernel's constraint while it trains (and
    applies the one you gave first), and makes Keras trace the training step again. A
    callback that sets weights itself, as `EarlyStopping` does with
    `restore_best_weights`, must come before this one in the list.

    A further `fit` with the same callback continues where the last one ended: no step
    is taken twice. `state` and `resume` go on in another process. If training ends
    before the last step, for example by `EarlyStopping`, a warning says so. A `fit`
    without the callback trains all weights again, unless an exception ended the `fit`
    before it.

    With `activation_bits` the model computes like the result of
    `convert(activation_bits=...)`, while it trains and afterwards:
    `tf_capsops.layers.FakeQuant` rounds the inputs of layers with kernels and the
    outputs of capsule layers. The ranges are those of the first batch at first, and
    moving averages from then on (Jacob et al., CVPR 2018). `convert` takes them from
    the model; files of the model do not hold them.

    Args:
      layers_or_model: A model, a layer, or a list of them.
      bits: Bits of a weight, 2 to 8.
      steps: The fraction of weights that is quantized after each step, rising to at
        most 1.
      epochs_per_step: Epochs from one step to the next. The first step is taken before
        the first epoch, so training needs at least
        `epochs_per_step * (len(steps) - 1) + 1` epochs.
      per_channel: Whether each output channel of a kernel has its own n1, where the
        paper has one for each layer. `convert` needs it, too.
      activation_bits: Bits of an activation, 2 to 8; None for floating point.
      straight_through: Whether weights go on training once all are quantized. The last
        of `steps` must be 1.

    Attributes:
      kernels: The state of each kernel, from the first `fit` on: objects with `layer`,
        `variable` (the kernel itself), `top_exponent`, `mask` (which weights are
        quantized) and `fraction`.
      steps_taken: How many steps have been taken.

    Raises:
      ValueError: An argument is not as above, or no layer has a kernel. In `fit`: there
        are too few epochs for the steps, a layer is not part of the model or not built,
        a weight is not finite, another callback of this `fit` quantizes one of the
        kernels, or `activation_bits` meets a model that `convert` does not take or that
        has a `FakeQuant`.

    >>> import keras
    >>> import numpy as np
    >>> import tf_capsops
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> steps = tf_capsops.inq.IncrementalQuantization(model, bits=3)
    >>> history = model.fit(
    ...     np.ones([8, 4]), np.ones([8, 3]), epochs=4, verbose=0, callbacks=[steps])
    >>> kernel = model.layers[0].kernel.numpy()
    >>> bool(np.all(kernel == tf_capsops.inq.quantize(kernel, bits=3)))
    True
    """

    def __init__(
        self,
        layers_or_model,
        bits=5,
        steps=(0.5, 0.75, 0.875, 1.0),
        epochs_per_step=1,
        per_channel=False,
        activation_bits=None,
        straight_through=False,
    ):
        super().__init__()
        owner = "IncrementalQuantization"
        self.bits = checked_bits(owner, bits)
        self.per_channel = boolean(owner, "per_channel", per_channel)
        self.activation_bits = checked_activation_bits(owner, activation_bits)
        self.steps = _rising_fractions(owner, steps)
        self.straight_through = boolean(owner, "straight_through", straight_through)
        if self.straight_through and self.steps[-1] != 1:
            raise ValueError(
                f"{owner}: straight_through trains quantized weights, so steps must "
                f"end with 1, got {steps!r}"
            )
        self.epochs_per_step = positive_int(owner, "epochs_per_step", epochs_per_step)
        roots = layers_or_model
        if isinstance(roots, keras.Layer):
            roots = [roots]
        if not isinstance(roots, (list, tuple)) or not roots:
            raise ValueError(
                f"{owner}: layers_or_model must be a model, a layer or a list of them, "
                f"got {layers_or_model!r}"
            )
        for root in roots:
            if not isinstance(root, keras.Layer):
                raise ValueError(
                    f"{owner}: layers_or_model must hold layers, got {root!r}"
                )
        self._roots = roots
        self.kernels = []
        self._simulated = []
        self.steps_taken = 0
        self._epochs_trained = 0
        self._is_first_epoch = False
        self._resumed = None

    def state(self):
        """Returns what `resume` needs in addition to the model.

        Returns:
          A dict of NumPy arrays, for `np.savez`, as of the end of an epoch: which
          weights are quantized, code books, latent weights and ranges of activations.
        """
        state = {
            "arguments": np.array(self._arguments()),
            "progress": np.array([self._epochs_trained, self.steps_taken]),
        }
        for number, kernel in enumerate(self.kernels):
            for name, value in kernel.state().items():
                state[f"kernel_{number}_{name}"] = value
        for name, fake in self._ranges():
            state[name] = np.array(
                [*map(keras.ops.convert_to_numpy, (fake.lo, fake.hi))]
            )
        return state

    def resume(self, state):
        """Lets the next `fit` go on from the `state` of another callback.

        The model must have the weights that it had then, as its file does, and the
        callback must have the same arguments. Give `fit` the number of epochs that were
        trained as its `initial_epoch`.

        Args:
          state: What `state` returned, also as `np.load` returns it.

        Raises:
          ValueError: This callback has trained already, or the state is from a callback
            with other arguments. In `fit`: the state is of another model.

        >>> import keras
        >>> import numpy as np
        >>> import tf_capsops
        >>> layers = [keras.Input([4]), keras.layers.Dense(3)]
        >>> model = keras.Sequential(layers)
        >>> model.compile("sgd", "mse")
        >>> quantized = tf_capsops.inq.IncrementalQuantization(model, steps=(0.5, 1.0))
        >>> images, targets = np.ones([8, 4]), np.ones([8, 3])
        >>> _ = model.fit(images, targets, epochs=2, verbose=0, callbacks=[quantized])
        >>> state = quantized.state()
        >>> quantized = tf_capsops.inq.IncrementalQuantization(model, steps=(0.5, 1.0))
        >>> quantized.resume(state)
        >>> _ = model.fit(images, targets, initial_epoch=2, epochs=3, verbose=0,
        ...               callbacks=[quantized])
        >>> quantized.steps_taken
        2
        """
        if self.kernels:
            raise ValueError(
                "IncrementalQuantization: resume must come before the first fit"
            )
        state = dict(state)
        theirs = str(state.get("arguments", "another callback"))
        if theirs != self._arguments():
            raise ValueError(
                f"IncrementalQuantization: the state to resume is of {theirs}, not of "
                f"{self._arguments()}"
            )
        self._resumed = state

    def _arguments(self):
        names = "bits", "steps", "epochs_per_step", "per_channel", "activation_bits"
        names = *names, "straight_through"
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    def _resume(self, state):
        try:
            for number, kernel in enumerate(self.kernels):
                prefix = f"kernel_{number}_"
                kernel.resume(
                    {
                        name.removeprefix(prefix): value
                        for name, value in state.items()
                        if name.startswith(prefix)
                    }
                )
            for name, fake in self._ranges():
                fake.lo.assign(state[name][0])
                fake.hi.assign(state[name][1])
            self._epochs_trained, self.steps_taken = map(int, state["progress"])
        except KeyError as error:
            raise ValueError(
                f"IncrementalQuantization: the state to resume has no {error}: it is "
                "of another model"
            ) from error

    def _ranges(self):
        """Yields the `FakeQuant`s that round activations, each with a name."""
        for number, simulated in enumerate(self._simulated):
            for side, fakes in zip(("input", "output"), simulated.learned.sides):
                for place, fake in enumerate(fakes):
                    if fake is not None:
                        yield f"{side}_{number}_{place}", fake

    def on_train_begin(self, logs=None):
        if not self.kernels:
            self.kernels = [
                PartlyFixedKernel(
                    layer, kernel, self.bits, self.per_channel, self.straight_through
                )
                for layer, kernel in self._layers_and_kernels()
            ]
            self._warn_of_others()
        known = {id(variable) for variable in self.model.variables}
        for kernel in self.kernels:
            if id(kernel.variable) not in known:
                raise ValueError(
                    f"IncrementalQuantization: {kernel.layer.path} is not a part of "
                    f"{self.model.name}, which is being trained"
                )
        with self.model.distribute_strategy.scope():
            if self.activation_bits and not self._simulated:
                self._simulated = simulate(self._roots, self.activation_bits)
            if self._resumed:
                self._resume(self._resumed)
                self._resumed = None
            for kernel in self.kernels:
                kernel.hold(self.params)
        for simulated in self._simulated:
            simulated.hold()
        self._is_first_epoch = True

    def on_epoch_begin(self, epoch, logs=None):
        if self._is_first_epoch:
            self._is_first_epoch = False
            self._require_epochs((self.params or {}).get("epochs"), epoch)
            for kernel in self.kernels:
                kernel.restore()
            # A training step traced earlier does not have the new constraints.
            self._trace_again()
        remaining = self.steps[self.steps_taken :]
        if remaining and self._epochs_trained == self._due(self.steps_taken):
            for kernel in self.kernels:
                kernel.fix(remaining[0])
            self.steps_taken += 1
            if self.straight_through and len(remaining) == 1:
                with self.model.distribute_strategy.scope():
                    for kernel in self.kernels:
                        kernel.train_codes()
                self._trace_again()

    def on_epoch_end(self, epoch, logs=None):
        self._epochs_trained += 1
        for kernel in self.kernels:
            kernel.restore()

    def on_train_end(self, logs=None):
        # After the last epoch Keras replaces all weights by their averages, if the
        # optimizer keeps any.
        for kernel in self.kernels:
            kernel.restore()
        self._release()
        self._trace_again()
        if self.steps_taken < len(self.steps):
            fraction = self.steps[self.steps_taken - 1] if self.steps_taken else 0
            warnings.warn(
                f"IncrementalQuantization: training ended after {self.steps_taken} of "
                f"{len(self.steps)} steps, with {fraction:.1%} of the weights "
                "quantized: call fit again with this callback to take the rest",
                stacklevel=2,
            )

    def _layers_and_kernels(self):
        found = {}
        for root in self._roots:
            if not root.built:
                raise ValueError(
                    f"IncrementalQuantization: {root.path or root.name} has no weights "
                    "yet: build it, or call it once"
                )
            pairs = layers_and_kernels(root)
            if not pairs:
                raise ValueError(
                    f"IncrementalQuantization: {root.path or root.name} has no kernel "
                    "to quantize"
                )
            found.update((id(kernel), (layer, kernel)) for layer, kernel in pairs)
        return found.values()

    def _warn_of_others(self):
        quantized = {id(kernel.variable) for kernel in self.kernels}
        others = {
            variable.path: None
            for root in self._roots
            for variable in root.trainable_variables
            if len(variable.shape) >= 2
            and id(variable) not in quantized
            and variable.name not in ("bias", "logits")
        }
        if others:
            warnings.warn(
                f"IncrementalQuantization: {', '.join(others)} will not be quantized: "
                "only kernels are",
                stacklevel=2,
            )

    def _release(self):
        for each in (*self.kernels, *self._simulated):
            each.release()

    def _trace_again(self):
        self.model.make_train_function(force=True)
        if self._simulated:
            self.model.make_test_function(force=True)
            self.model.make_predict_function(force=True)

    def _due(self, step):
        """Returns after how many epochs the step is taken."""
        return step * self.epochs_per_step

    def _require_epochs(self, epochs, epoch):
        last = self._due(len(self.steps) - 1)
        needed = last + 1 - self._epochs_trained
        if self.steps_taken == len(self.steps) or epochs is None:
            return
        if epochs - epoch < needed:
            self._release()
            raise ValueError(
                f"IncrementalQuantization: {len(self.steps)} steps, "
                f"{self.steps_taken} of them taken, with epochs_per_step "
                f"{self.epochs_per_step} need {needed} epochs or more, got "
                f"{epochs - epoch}"
            )


def _rising_fractions(owner, steps):
    try:
        fractions = tuple(steps)
    except TypeError:
        fractions = ()
    previous = 0
    for fraction in fractions:
        is_real = isinstance(fraction, numbers.Real) and not isinstance(fraction, bool)
        if not is_real or not previous < fraction <= 1:
            fractions = ()
            break
        previous = fraction
    if not fractions:
        raise ValueError(
            f"{owner}: steps must be fractions that rise from above 0 to at most 1, "
            f"got {steps!r}"
        )
    return tuple(map(float, fractions))
