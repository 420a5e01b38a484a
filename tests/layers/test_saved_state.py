# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files and clones of models keep what is not among a model's arguments.

Which layers are trainable, the optimizer, dtype policies of layers, and quantization.
"""

import keras
import numpy as np
import pytest
import small

from tf_capsops import layers, losses, models

_IMAGES = np.random.default_rng(1).random([6, 8, 8, 1], np.float32)
_LABELS = np.arange(6) % 3


@keras.saving.register_keras_serializable("tests")
class _Subclassed(keras.Model):
    """A model whose layers Keras builds by calling it, without values."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = keras.saving.deserialize_keras_object(layer)

    def call(self, inputs):
        return self.layer(inputs)

    def get_config(self):
        layer = keras.saving.serialize_keras_object(self.layer)
        return {**super().get_config(), "layer": layer}


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: layers.InqConv2D(3, 2), (2, 6, 6, 3)),
        (lambda: layers.PoseCaps(2, bits=4), (2, 6, 6, 3)),
        (lambda: layers.SlimCaps1D(2, 4, 3, bits=4), (2, 6, 2, 3)),
        (lambda: layers.DigitCaps(3, 4, logits_trainable=True), (2, 6, 3)),
    ],
)
def test_subclassed_models(make, shape, tmp_path):
    model = _Subclassed(keras.saving.serialize_keras_object(make()))
    inputs = np.random.default_rng(2).random(shape, np.float32)
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    found = keras.models.load_model(tmp_path / "model.keras")(inputs)
    for one, other in zip(
        keras.tree.flatten(found), keras.tree.flatten(expected), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def _matrix_capsnet(**arguments):
    return models.matrix_capsnet(
        (8, 8, 1),
        3,
        routing=None,
        filters=4,
        kernel_size=3,
        primary_capsules=2,
        capsules=(2,),
        capsule_kernel_sizes=(2,),
        capsule_strides=(1,),
        **arguments,
    )


def _p_capsnet(**arguments):
    return models.p_capsnet(
        (8, 8, 1), 3, filters=(2,), kernel_sizes=(3,), strides=(2,), **arguments
    )


def _convnet(**arguments):
    return models.convnet(
        (8, 8, 1), 3, filters=(4,), kernel_size=3, units=(4,), dropout=0, **arguments
    )


def _frozen_but_for_one(model, layer):
    model.trainable = False
    layer.trainable = True


def _sub_models_frozen(model):
    model.encoder.trainable = False
    _frozen_but_for_one(model.decoder, model.decoder.layers[0])


def _layers_changed(model):
    convolution = model.encoder.get_layer("primary_caps").conv
    convolution.trainable = False
    convolution.dtype_policy = "mixed_bfloat16"
    first, second, *_ = model.decoder.layers
    first.dtype_policy = "mixed_bfloat16"
    second.trainable = False


def _convolution_of_poses_frozen(model):
    model.get_layer("pose_caps").conv.trainable = False


def _first_layer_frozen(model):
    model.layers[1].trainable = False


def _nothing(model):
    pass


_CASES = {
    change.__name__: (make, change)
    for make, change in [
        (small.capsnet, _sub_models_frozen),
        (small.capsnet, _layers_changed),
        (_matrix_capsnet, _convolution_of_poses_frozen),
        (_p_capsnet, _first_layer_frozen),
        (_convnet, _nothing),
    ]
}


def _everything_in(layer):
    """Yields a layer and all that are in it."""
    yield layer
    parts = layer.layers if isinstance(layer, keras.Model) else [layer.conv]
    for part in parts:
        composite = isinstance(part, (keras.Model, layers.PrimaryCaps, layers.PoseCaps))
        yield from _everything_in(part) if composite else [part]


def _states(model):
    return [
        (each.name, each.trainable, each.dtype_policy.name)
        for each in _everything_in(model)
        if not isinstance(each, keras.layers.InputLayer)  # Keras keeps none of it
    ]


def _saved_and_loaded(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def _assert_equal_variables(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", _CASES)
def test_a_file_keeps_everything(case, tmp_path):
    make, change = _CASES[case]
    model = make()
    change(model)
    model.compile(keras.optimizers.Adam(), losses.MarginLoss(), run_eagerly=True)
    model.train_on_batch(_IMAGES, _LABELS)
    again = _saved_and_loaded(model, tmp_path)
    assert _states(again) == _states(model)
    assert again.optimizer.iterations == 1
    _assert_equal_variables(model.optimizer.variables, again.optimizer.variables)
    for each in (model, again):
        each.train_on_batch(_IMAGES, _LABELS)
    _assert_equal_variables(model.weights, again.weights)
    clone = keras.models.clone_model(model)
    assert _states(clone) == _states(model)


def test_a_file_keeps_that_a_whole_model_is_frozen(tmp_path):
    for make in (small.capsnet, _p_capsnet, _convnet):
        model = make()
        _frozen_but_for_one(model, model.layers[1])
        again = _saved_and_loaded(model, tmp_path)
        assert _states(again) == _states(model)
        assert again.trainable_variables == []


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
@pytest.mark.parametrize("make", [small.capsnet, _convnet])
def test_int8_is_kept(make, tmp_path):
    model = make()
    model.quantize("int8")
    kinds = [each.dtype for each in model.weights]
    assert "int8" in kinds
    expected = keras.tree.flatten(model(_IMAGES))
    again = _saved_and_loaded(model, tmp_path)
    assert [each.dtype for each in again.weights] == kinds
    for ours, theirs in zip(expected, keras.tree.flatten(again(_IMAGES))):
        np.testing.assert_array_equal(theirs, ours)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for ours, theirs in zip(expected, keras.tree.flatten(clone(_IMAGES))):
        np.testing.assert_array_equal(theirs, ours)


def test_inference_model_keeps_what_is_frozen(tmp_path):
    model = small.capsnet()
    _sub_models_frozen(model)
    inference = model.inference_model()
    again = _saved_and_loaded(inference, tmp_path)
    assert type(again) is type(inference)
    assert _states(again) == _states(inference)
    assert _states(keras.models.clone_model(inference)) == _states(inference)


def test_a_clone_of_half_precision_scales_its_loss_too():
    model = _matrix_capsnet(dtype="mixed_float16")
    clone = keras.models.clone_model(model)
    clone.compile("sgd", losses.MarginLoss())
    assert isinstance(clone.optimizer, keras.optimizers.LossScaleOptimizer)


def test_a_config_may_be_changed():
    model = small.capsnet()
    _sub_models_frozen(model)
    config = model.get_config()
    weighted = models.CapsNet.from_config({**config, "reconstruction_weight": 0.5})
    assert _states(weighted) == _states(model)
    wider = models.CapsNet.from_config({**config, "filters": 5, "num_classes": 4})
    assert wider.encoder.get_layer("conv").filters == 5
    assert wider.encoder.output_shape == (None, 4, 16)
    half = models.CapsNet.from_config({**config, "dtype": "mixed_float16"})
    assert half.encoder.get_layer("conv").compute_dtype == "float16"
    config.pop("layers")  # as files of earlier releases have it
    assert models.CapsNet.from_config(config).encoder.trainable


@pytest.mark.parametrize(
    "layer", [layers.PrimaryCaps(2, 4, 3), layers.PoseCaps(2, (2, 2))]
)
def test_a_config_has_the_convolution_only_where_it_was_changed(layer):
    # So that who changes another entry changes the convolution with it.
    config = layer.get_config()
    assert "conv" not in config
    again = type(layer).from_config({**config, "dtype": "mixed_bfloat16"})
    assert again.conv.dtype_policy.name == "mixed_bfloat16"
    layer.conv.trainable = False
    assert layer.get_config()["conv"] == {"trainable": False}
    assert not type(layer).from_config(layer.get_config()).conv.trainable


def test_low_rank_weights_of_a_convolution_are_kept():
    layer = layers.PrimaryCaps(2, 4, 3)
    layer.build((None, 8, 8, 1))
    layer.conv.enable_lora(2)
    again = type(layer).from_config(layer.get_config())
    again.build((None, 8, 8, 1))
    assert [each.path for each in again.trainable_weights] == [
        each.path for each in layer.trainable_weights
    ]
    assert "lora_kernel_a" in {each.name for each in again.trainable_weights}
