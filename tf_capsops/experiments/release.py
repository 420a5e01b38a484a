# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes trained networks as `models.load_pretrained` reads them, with a card each."""

import hashlib
import json
import shutil
import zipfile

import keras
import numpy as np

from tf_capsops.cli import coded_networks, quantization, runs
from tf_capsops.errors import make_directory, reported
from tf_capsops.experiments import recipes, results
from tf_capsops.models.pretrained import MANIFEST

_CARD = """# {name}

| | |
|---|---|
| network | {network}, {parameters:,} parameters |
| images | {shape}, values from 0 to 1 |
| classes | {classes} |
| trained on | {data}, {training:,} images |
| {judged} | {outcome} |
| file | {bytes:,} bytes{rounded} |
| made by | `{command}` with tf_capsops at {commit}, on {machine} |
| license | of the weights Apache-2.0, of the data {license} |

```
model = tf_capsops.models.load_pretrained("{name}", source)
```

The network is that of seed {seed}, the first one found, not the best of several.
"""


def write(folder, entries, names, root, half=False):
    """Writes networks, cards and the manifest of their checksums.

    Args:
      folder: the folder to write to; its files of other recipes are kept.
      entries: as `results.read` returns them.
      names: names of recipes; those without a finished run below `root` are passed
        over.
      root: the directory of the runs.
      half: whether weights are rounded to half precision, with which a file takes
        about 60% of its bytes. Quantized weights are not rounded.
    """
    make_directory(folder)
    with reported(OSError, ValueError):
        manifest = folder / MANIFEST
        content = json.loads(manifest.read_text()) if manifest.is_file() else {}
        for name in names:
            for entry in entries.get(name, {"runs": []})["runs"]:
                run = results.finished(root, name, entry["seed"])
                if run is not None:
                    content[name] = _write(folder, name, entry, run, half)
                    break
        runs.write_json(manifest, content)


def _write(folder, name, entry, run, half):
    """Writes a network and its card; returns its entry of the manifest."""
    recipe = recipes.find(name)
    half = half and not recipe.bits
    path = folder / f"{name}.keras"
    if recipe.bits:
        shutil.copy(run / quantization.CODES, path)
    else:
        model = coded_networks.bare_copy(keras.saving.load_model(run / runs.MODEL))
        if half:
            model.set_weights([_rounded(each) for each in model.get_weights()])
        model.save(path)
    _pack(path)
    data = recipes.DATA[recipe.data]
    card = {
        "name": name,
        "network": f"{recipe.model} in {recipe.bits} bits"
        if recipe.bits
        else recipe.model,
        "parameters": entry["parameters"],
        "shape": list(data.image_shape),
        "classes": runs.class_names(run, data.classes),
        "data": recipe.data,
        "training": data.training,
        "images": entry["images"],
        **_outcome(entry),
        "command": f"tf-capsops train --recipe {name} --seed {entry['seed']}",
        "seed": entry["seed"],
        "commit": entry["commit"][:12],
        "machine": entry["machine"],
        "license": data.license,
        "bytes": path.stat().st_size,
        "half": half,
    }
    runs.write_json(path.with_suffix(".json"), card)
    shape = " x ".join(map(str, data.image_shape))
    judged, outcome = "test", results.one_error(entry)
    if "wrong" in entry:
        judged = "test error"
        outcome += f": {entry['wrong']} of {entry['images']:,} images wrong"
    text = {
        **card,
        "judged": judged,
        "outcome": outcome,
        "shape": shape,
        "classes": ", ".join(card["classes"]),
    }
    rounded = ", weights rounded to half precision after the test"
    text["rounded"] = rounded if half else ""
    path.with_suffix(".md").write_text(_CARD.format(**text))
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": card["bytes"],
    }


def _outcome(entry):
    """Returns a card's entries about the test: wrong images, or Dice coefficient."""
    if "dice" in entry:
        return {"dice": entry["dice"]}
    return {"wrong": entry["wrong"], "error": entry["wrong"] / entry["images"]}


def _rounded(weights):
    """Returns weights rounded to half precision, in their own type."""
    if not np.issubdtype(weights.dtype, np.floating):
        return weights
    return weights.astype(np.float16).astype(weights.dtype)


def _pack(path):
    """Compresses a `.keras` file, which Keras writes uncompressed."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, each in content.items():
            archive.writestr(name, each)
