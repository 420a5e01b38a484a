# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`predict` writes masks beside others, and replaces none."""

import json

import numpy as np
import pytest
from masked import masked_pictures

from tf_capsops import models
from tf_capsops.__main__ import main
from tf_capsops.cli import kept


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with model.keras, which segments, and the picture scans/0.png."""
    folder = tmp_path_factory.mktemp("work")
    models.unet((8, 16, 1), 2, size="small").save(folder / "model.keras")
    masked_pictures(folder / "some", 1)
    (folder / "some/images").rename(folder / "scans")
    return folder


def _predict(work, *options):
    return main(["predict", str(work / "model.keras"), str(work / "scans"), *options])


@pytest.mark.parametrize("output", ["cells/masks", "cells/masks/new", "link", "link/a"])
def test_true_masks_of_other_pictures_stay_alone(work, output, tmp_path, capsys):
    cells = masked_pictures(tmp_path / "cells", 1)
    (tmp_path / "link").symlink_to(cells / "masks")
    before = (cells / "masks/0.png").read_bytes()
    assert _predict(work, "--output", str(tmp_path / output)) == 2
    said = capsys.readouterr().err
    assert f"cells/masks has the masks of the pictures in {cells / 'images'}: " in said
    assert [path.read_bytes() for path in (cells / "masks").iterdir()] == [before]


def test_a_mask_of_the_same_name_stays(work, tmp_path, capsys):
    (tmp_path / "0.png").write_bytes(b"drawn by hand")
    options = ["--output", str(tmp_path), "--overlays"]
    for _ in range(2):  # the second time, the mask is there already
        assert _predict(work, *options, "--json") == 0
        (answer,) = json.loads(capsys.readouterr().out)
        assert answer["mask"] == str(tmp_path / "0-2.png")
        found = {path.name for path in tmp_path.rglob("*.*")}
        assert found == {"0.png", "0-2.png"}
        assert [path.name for path in (tmp_path / "overlays").iterdir()] == ["0-2.png"]
    assert (tmp_path / "0.png").read_bytes() == b"drawn by hand"
    (tmp_path / "0-2.png").write_bytes(b"corrected")
    assert _predict(work, *options) == 0
    assert f"scans/0.png -> {tmp_path / '0-3.png'}: " in capsys.readouterr().out
    assert (tmp_path / "0-2.png").read_bytes() == b"corrected"


def test_pictures_of_one_name_have_masks_of_their_own(work, tmp_path, capsys):
    twin = tmp_path / "twin/0.png"
    twin.parent.mkdir()
    twin.write_bytes((work / "scans/0.png").read_bytes())
    given = [str(twin), str(twin), "--json", "--output", str(tmp_path / "found")]
    for _ in range(2):
        assert _predict(work, *given) == 0
        masks = [each["mask"] for each in json.loads(capsys.readouterr().out)]
        names = ["0.png", "0-2.png", "0-2.png"]  # one is named twice
        assert masks == [str(tmp_path / "found" / name) for name in names]
    assert len([*(tmp_path / "found").iterdir()]) == 2


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    def draw(path):
        np.save(path.open("wb"), 0)
        raise OSError

    with pytest.raises(OSError):
        kept.write(draw, tmp_path, "mask")
    assert not [*tmp_path.iterdir()]
