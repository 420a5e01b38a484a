# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trained networks from the package, a folder or a server."""

import hashlib
import json
import os
import pathlib

import keras

MANIFEST = "manifest.json"
SHIPPED = pathlib.Path(__file__).with_name("shipped")  # Networks in the package.
_VARIABLE = "TF_CAPSOPS_PRETRAINED"


def load_pretrained(name, source=None):
    """Loads a trained network, and checks the SHA-256 checksum of its file.

    `tf-capsops report --release FOLDER` writes folders of networks: a file `NAME.keras`
    and a model card `NAME.md` for each network, and manifest.json with the checksums.

    Args:
      name: the name of the network, which is the name of its training recipe.
      source: a folder, or a URL that serves one; downloaded files are kept in Keras'
        cache. None for the environment variable TF_CAPSOPS_PRETRAINED or, if that is
        not set, for the package itself. The package holds "p_capsnet-digits", for
        images `[8, 8, 1]` of scikit-learn's digits.

    Returns:
      A Keras model, built but not compiled.

    Raises:
      ValueError: if the manifest is not readable or lacks the name, or the file is
        missing or has another checksum; the message says which.

    >>> import numpy as np
    >>> import tf_capsops
    >>> model = tf_capsops.models.load_pretrained("p_capsnet-digits")
    >>> model.predict(np.zeros([1, 8, 8, 1], "float32"), verbose=0).shape
    (1, 10)
    >>> import hashlib, json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> model = tf_capsops.models.p_capsnet((28, 28, 1), 10)
    >>> model.save(folder / "mine.keras")
    >>> checksum = hashlib.sha256((folder / "mine.keras").read_bytes()).hexdigest()
    >>> manifest = json.dumps({"mine": {"sha256": checksum}})
    >>> _ = (folder / "manifest.json").write_text(manifest)
    >>> tf_capsops.models.load_pretrained("mine", folder).count_params()
    82336
    """
    source = source or os.environ.get(_VARIABLE)
    is_shipped = not source
    source = os.fspath(source or SHIPPED)
    manifest = _manifest(source)
    if is_shipped and name not in manifest:
        raise ValueError(
            f"load_pretrained: give a folder or URL as source, or in {_VARIABLE}: the "
            f"package has {', '.join(manifest)}, not {name!r}"
        )
    if name not in manifest:
        known = ", ".join(manifest) or "nothing"
        raise ValueError(f"load_pretrained: {source} has {known}, not {name!r}")
    path = _file(source, f"{name}.keras", manifest[name]["sha256"])
    return keras.saving.load_model(path)


def _is_url(source):
    return "://" in source


def _manifest(source):
    """Returns the manifest: for each name, a dict with the checksum as "sha256"."""
    try:
        path = pathlib.Path(source, MANIFEST)
        if _is_url(source):
            path = _download(source, MANIFEST, force_download=True)
        content = json.loads(pathlib.Path(path).read_text())
        if all(isinstance(entry["sha256"], str) for entry in content.values()):
            return content
        text = "a checksum is not text"
    except Exception as error:
        # Keras raises a bare Exception if a download fails.
        text = f"{type(error).__name__}: {error}"
    raise ValueError(f"load_pretrained: no {MANIFEST} in {source}: {text}")


def _file(source, file, checksum):
    """Returns the path of a file, after checking its checksum."""
    path = pathlib.Path(source, file)
    if _is_url(source):
        try:
            # This downloads again if the cached file has another checksum.
            path = pathlib.Path(_download(source, file, file_hash=checksum))
        except ValueError:
            # Without the check, so that the error below can name the checksum.
            path = pathlib.Path(_download(source, file))
        except Exception as error:
            raise ValueError(
                f"load_pretrained: no {file} in {source}: {error}"
            ) from error
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"load_pretrained: no {file} in {source}: {error}") from error
    if found != checksum:
        raise ValueError(
            f"load_pretrained: {file} of {source} has the SHA-256 checksum {found}, "
            f"but its manifest says {checksum}"
        )
    return path


def _download(source, file, **options):
    folder = hashlib.sha256(source.encode()).hexdigest()[:16]
    return keras.utils.get_file(
        file,
        f"{source.rstrip('/')}/{file}",
        hash_algorithm="sha256",
        cache_subdir=os.path.join("tf_capsops", folder),
        **options,
    )
