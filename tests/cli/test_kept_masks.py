# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`predict` writes masks next to others, and replaces none."""

import json
import os

import numpy as np
import pytest
from masked import masked_pictures

from tf_capsops import models
from tf_capsops.__main__ import main
from tf_capsops.cli import kept
from tf_capsops.data import masks


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
        written = [each["mask"] for each in json.loads(capsys.readouterr().out)]
        names = ["0.png", "0-2.png", "0-2.png"]  # one is named twice
        assert written == [str(tmp_path / "found" / name) for name in names]
    assert len([*(tmp_path / "found").iterdir()]) == 2


def test_overlays_of_equal_masks_stay(work, tmp_path):
    """Pictures of one name that have the same mask are drawn apart."""
    options = ["--output", str(tmp_path / "found"), "--overlays"]
    for folder, gray in (("a", 0), ("b", 1)):
        picture = tmp_path / folder / "0.png"
        picture.parent.mkdir()
        masks.write_png(picture, np.full([8, 16, 1], gray, np.uint8))
        assert main(["predict", str(work / "model.keras"), str(picture), *options]) == 0
    drawn = [path.read_bytes() for path in (tmp_path / "found/overlays").iterdir()]
    assert len(drawn) == 2 and drawn[0] != drawn[1]


def test_pictures_behind_links_stay(work, tmp_path, capsys):
    picture = work / "scans/0.png"
    before = picture.read_bytes()
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays/x.png").symlink_to(picture)
    given = [str(tmp_path / "overlays/x.png"), "--output", str(tmp_path), "--overlays"]
    assert main(["predict", str(work / "model.keras"), *given]) == 2
    said = "overlays/x.png is one of the pictures, and a mask would replace it"
    assert said in capsys.readouterr().err
    assert picture.read_bytes() == before


def test_another_process_may_be_faster(tmp_path, monkeypatch):
    link = os.link

    def outrun(partial, path):
        if path.name == "mask.png":
            path.write_bytes(b"another")
        link(partial, path)

    monkeypatch.setattr(os, "link", outrun)
    draw = {"{}.png": lambda path: path.write_bytes(b"one")}
    assert kept.write(draw, tmp_path, "mask") == (tmp_path / "mask-2.png", False)
    assert (tmp_path / "mask.png").read_bytes() == b"another"


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    def draw(path):
        np.save(path.open("wb"), 0)
        raise OSError

    with pytest.raises(OSError):
        kept.write({"{}.png": draw}, tmp_path, "mask")
    assert not [*tmp_path.iterdir()]
