# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""NIfTI volumes with masks: folders of them, and masks that are written."""

import gzip
import json
import re
import sys
import zlib

import fresh
import nibabel
import numpy as np
import pytest
import quick

from tf_capsops import data
from tf_capsops.__main__ import main
from tf_capsops.cli import networks, tiles, train

# Axes of the files' voxels, of which LPS is the order in which networks see them.
_AXES = ["LPS", "RAS", "SAR"]


def _affine(axes, size, zooms=(0.5, 2.0, 3.0)):
    """Returns the affine of voxels whose axes point to where `axes` says.

    All are of one grid, `size` of the axes LPS.
    """
    affine, places = np.eye(4), {"R": 0, "L": 0, "A": 1, "P": 1, "S": 2, "I": 2}
    affine[:3] = 0
    affine[:3, 3] = 10, -20, 30
    for column, name in enumerate(axes):
        place = places[name]
        step = zooms[place] if name in "RAS" else -zooms[place]
        affine[place, column] = step
        affine[place, 3] -= 0 if name in "LPS" else step * (size[place] - 1)
    return affine


def _write(path, voxels, axes="LPS", moved=0):
    """Writes `[W, H, D]` or `[W, H, D, C]` of the axes LPS as others have them."""
    size = voxels.shape
    order = [
        next(i for i, pair in enumerate(("LR", "PA", "SI")) if a in pair) for a in axes
    ]
    voxels = voxels.transpose(*order, *range(3, voxels.ndim))
    flipped = [i for i, a in enumerate(axes) if a not in "LPS"]
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = _affine(axes, size)
    affine[0, 3] += moved
    image = nibabel.Nifti1Image(np.flip(voxels, flipped), affine)
    image.header.set_xyzt_units("micron", "sec")
    image.set_sform(affine, "mni")
    nibabel.save(image, path)
    return path


def _volumes(folder, count=6, size=(8, 16, 24), labels=(0, 7), suffix=".nii.gz"):
    """Writes volumes whose brightness is their mask, and returns the masks."""
    random, masks = np.random.default_rng(6), []
    for number in range(count):
        mask = random.choice(np.uint8(labels), size)
        axes = _AXES[number % len(_AXES)]
        _write(folder / f"images/{number}{suffix}", mask * 100.0 - 300, axes)
        _write(folder / f"masks/{number}{suffix}", mask, axes)
        masks.append(mask)
    return np.stack(masks)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_folder_has_volumes_and_masks(tmp_path, suffix):
    masks = _volumes(tmp_path / "organs", labels=(0, 2, 7), suffix=suffix)
    loaded = data.load(tmp_path / "organs")
    assert loaded.has_masks and loaded.class_names == ["0", "2", "7"]
    assert loaded.image_shape == (24, 16, 8, 1)
    assert (len(loaded.train), len(loaded.test)) == (5, 1)
    everything = data.load(tmp_path / "organs", training=False)
    images, targets = everything.test.take(range(6))
    expected = masks.transpose(0, 3, 2, 1)[..., np.newaxis]
    np.testing.assert_allclose(images, expected / 7, atol=1e-6)
    np.testing.assert_array_equal(np.array([0, 2, 7])[targets.numpy()], expected)
    alone = everything.test.targets(range(6), everything.test.draws(0))
    np.testing.assert_array_equal(alone, targets)
    again = data.load(tmp_path / "organs", **loaded.options)
    for ours, theirs in zip(again.train.take([1]), loaded.train.take([1])):
        np.testing.assert_array_equal(ours, theirs)
    held = loaded.held_out(np.arange(3), np.arange(3, 5))
    for ours, theirs in zip(held.test.take([0]), loaded.train.take([3])):
        np.testing.assert_array_equal(ours, theirs)
    (batch,) = loaded.train.batches(8)
    assert batch[0].shape == (5, 24, 16, 8, 1) and batch[1].dtype == "int32"
    # Volumes are cut and padded about the middle.
    fitted = data.load(tmp_path / "organs", image_size=(20, 16, 11), training=False)
    image, mask = (each.numpy() for each in fitted.test.take([2]))
    np.testing.assert_array_equal(image[0, :, :, 1:9], images[2:3, 2:22][0])
    np.testing.assert_array_equal(mask[0, :, :, 1:9], targets[2:3, 2:22][0])
    assert not image[..., 0, :].any() and not mask[..., 9:, :].any()


def test_a_volume_is_scaled_by_its_own_voxels(tmp_path):
    random = np.random.default_rng(2)
    voxels = random.normal(-500, 200, [20, 20, 20, 2])
    voxels[0, 0, 0], voxels[1, 1, 1] = 30_000, np.nan  # metal, and a hole
    found = data.read_volume(_write(tmp_path / "ct.nii", voxels))
    assert found.shape == (20, 20, 20, 2) and found.dtype == np.float32
    assert found.min() == 0 and found.max() == 1 and 0.45 < np.mean(found) < 0.55
    shares = np.mean((found > 0) & (found < 1), axis=(0, 1, 2))
    np.testing.assert_allclose(shares, 0.99, atol=0.002)
    rare = np.zeros([9, 9, 9])
    rare[4, 4, 4] = 3
    found = data.read_volume(_write(tmp_path / "rare.nii", rare))
    assert found.sum() == 1 and found[4, 4, 4, 0] == 1
    assert not data.read_volume(_write(tmp_path / "empty.nii", 0 * rare)).any()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a folder of small volumes."""
    folder = tmp_path_factory.mktemp("volumes")
    run = folder / "run"
    masks = _volumes(folder / "organs", 3, (8, 8, 8))
    given = ["--data", str(folder / "organs"), "--epochs", "1", "--batch-size", "2"]
    with quick.eager():
        assert main(["train", *given, "--output", str(run)]) == 0
        assert main(["evaluate", str(run)]) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["model"] == "ucaps3d" and config["classes"] == ["0", "7"]
    assert config["pictures"]["image_size"] == [8, 8, 8] and len(masks) == 3
    assert (run / "overlays.png").is_file()
    return run


@pytest.mark.parametrize("axes", _AXES)
def test_masks_lie_where_their_volumes_do(run, tmp_path, axes, monkeypatch, capsys):
    size, random = (9, 13, 10), np.random.default_rng(3)
    # A network that finds what is bright.
    monkeypatch.setattr(
        tiles, "classes_of", lambda _, image, __: 1 * (image[..., 0] > 0.5)
    )
    bright = random.choice([0.0, 50.0], size)
    source = _write(tmp_path / "new/scan.nii", bright, axes)
    output = tmp_path / "found"
    options = ["--json", "--overlays", "--output", str(output)]
    assert main(["predict", str(run), str(source.parent), *options]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["mask"] == str(output / "scan.nii.gz")
    written, read = nibabel.load(answer["mask"]), nibabel.load(source)
    np.testing.assert_array_equal(written.affine, read.affine)
    zooms = [0.5 if a in "LR" else 2.0 if a in "PA" else 3.0 for a in axes]
    assert list(written.header.get_zooms()) == zooms == list(read.header.get_zooms())
    for name in ("xyzt_units", "sform_code", "qform_code"):
        assert written.header[name] == read.header[name]
    assert written.header.get_xyzt_units() == ("micron", "sec")
    assert written.get_data_dtype() == np.uint8
    voxels = np.asanyarray(written.dataobj)
    np.testing.assert_array_equal(voxels, 7 * (np.asanyarray(read.dataobj) > 25))
    assert answer["classes"]["7"] == np.mean(voxels == 7)
    assert (output / "overlays/scan.png").is_file()


def test_a_network_reads_volumes_of_other_sizes(tmp_path, capsys):
    run = tmp_path / "run"
    _volumes(tmp_path / "organs", 4, (8, 8, 8))
    _write(tmp_path / "organs/images/0.nii.gz", np.zeros([9, 8, 8]))
    _write(tmp_path / "organs/masks/0.nii.gz", np.zeros([9, 8, 8], np.uint8))
    given = ["--data", str(tmp_path / "organs"), "--epochs", "1", "--batch-size", "2"]
    assert main(["train", *given, "--output", str(run)]) == 2
    assert "give --image-size DEPTH HEIGHT WIDTH" in capsys.readouterr().err
    given += ["--image-size", "8", "8", "16", "--flip"]
    assert main(["train", *given, "--output", str(run)]) == 0
    said = capsys.readouterr().out
    assert "organs: 3 volumes for training, 1 for testing" in said
    assert "\ntest voxels right " in said
    assert main(["evaluate", str(run)]) == 0
    said = capsys.readouterr().out
    assert "organs: 1 test volumes\nvoxels right " in said and " voxels    Dice" in said
    scan = str(
        _write(tmp_path / "scan.nii.gz", np.eye(21)[..., np.newaxis].repeat(12, -1))
    )
    assert main(["predict", str(run), scan, "--tile", "16"]) == 0
    assert nibabel.load(run / "masks/scan.nii.gz").shape == (21, 21, 12)
    assert main(["predict", str(run), scan, "--tile", "16"]) == 0  # equal bytes
    assert [path.name for path in (run / "masks").iterdir()] == ["scan.nii.gz"]
    two = str(_write(tmp_path / "two.nii", np.zeros([8, 8, 8, 2])))
    other = str(tmp_path / "other.mgz")
    nibabel.save(nibabel.MGHImage(np.zeros([8, 8, 8], np.float32), np.eye(4)), other)
    assert main(["predict", str(run), two, other]) == 2
    said = capsys.readouterr().err
    assert "other.mgz is no .nii or .nii.gz file, which the network reads" in said
    assert "two.nii has 2 channels, and the network takes 1" in said
    source = str(run / "masks/scan.nii.gz")
    assert main(["predict", str(run), source]) == 2
    assert "is one of the volumes, and a mask would" in capsys.readouterr().err


def _other_mask(folder):
    _write(folder / "masks/1.nii.gz", np.zeros([8, 16, 23], np.uint8))


def _broken(folder):
    (folder / "images/1.nii.gz").write_bytes(b"no volume")


def _truncated(folder):
    path = folder / "masks/1.nii.gz"
    path.write_bytes(path.read_bytes()[:-200])


def _mirrored(folder):
    path = folder / "masks/1.nii.gz"
    image = nibabel.load(path)
    affine = image.affine @ np.diag([-1, 1, 1, 1])
    nibabel.save(nibabel.Nifti1Image(image.dataobj, affine), path)


def _moved(folder):
    _write(folder / "masks/1.nii.gz", np.eye(8, 16)[..., None].repeat(24, 2), moved=0.1)


def _half(folder):
    _write(folder / "masks/1.nii.gz", np.full([8, 16, 24], 0.5))


def _large(folder):
    _write(folder / "masks/1.nii.gz", np.full([8, 16, 24], 256, np.int16))


def _picture(folder):
    (folder / "images/1.png").write_bytes(b"")


def _channels(folder):
    _write(folder / "images/1.nii.gz", np.zeros([8, 16, 24, 2]))


def _flat(folder):
    image = nibabel.Nifti1Image(np.zeros([8, 16]), np.eye(4))
    nibabel.save(image, folder / "images/1.nii.gz")


@pytest.mark.parametrize(
    "change, text",
    [
        (_other_mask, "masks/1.nii.gz has 23 x 16 x 8 voxels, and .* 24 x 16 x 8"),
        (_broken, "images/1.nii.gz cannot be read as a volume"),
        (_truncated, "masks/1.nii.gz cannot be read to its end"),
        (_mirrored, "masks/1.nii.gz lies elsewhere than .*images/1.nii.gz: their aff"),
        (_moved, "masks/1.nii.gz lies elsewhere than .*images/1.nii.gz: their affines"),
        (_flat, "images/1.nii.gz cannot be read as a volume"),
        (_half, "masks/1.nii.gz has a label of 0.5: masks must have integers"),
        (_large, "masks/1.nii.gz has a label of 256: masks must have integers"),
        (_picture, "images/1.png is no NIfTI volume: take it out"),
        (_channels, "images/1.nii.gz has 24 x 16 x 8 voxels of 2 channels, and"),
    ],
)
def test_bad_folders_are_named(tmp_path, change, text):
    _volumes(tmp_path / "organs")
    change(tmp_path / "organs")
    with pytest.raises(ValueError, match=text):
        data.load(tmp_path / "organs")


@pytest.mark.parametrize("axes", _AXES)
@pytest.mark.parametrize("moved", [0, 0.04])
def test_masks_may_have_another_order_of_axes(tmp_path, axes, moved):
    masks = _volumes(tmp_path / "organs")
    _write(tmp_path / "organs/masks/1.nii.gz", masks[1], axes, moved)
    _, targets = data.load(tmp_path / "organs", training=False).test.take([1])
    np.testing.assert_array_equal(7 * targets[0, ..., 0].numpy(), masks[1].T)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda path: path.unlink(), "there is no file .*images/..nii.gz"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-200]),
            "images/..nii.gz cannot be read to its end",
        ),
    ],
)
def test_volumes_that_go_while_training_are_named(
    tmp_path, change, text, monkeypatch, capsys
):
    _volumes(tmp_path / "organs", 4, (8, 8, 8))
    opened = networks.open_data

    def changed(*args, **options):
        found = opened(*args, **options)
        for path in (tmp_path / "organs/images").iterdir():
            change(path)
        return found

    monkeypatch.setattr(networks, "open_data", changed)
    given = ["--data", str(tmp_path / "organs"), "--epochs", "1", "--batch-size", "2"]
    assert main(["train", *given, "--output", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert re.search(f"is gone or damaged: .*{text}; put it back, and go on", said)


@pytest.mark.parametrize(
    "good, text",
    [(200, "is no NIfTI volume that can be read"), (90_000, "cannot be read to its")],
)
def test_damaged_volumes_are_named(tmp_path, good, text):
    voxels = np.random.default_rng(4).random([30, 30, 30])
    path = _write(tmp_path / "scan.nii.gz", voxels)
    compressor = zlib.compressobj(wbits=31)
    start = compressor.compress(gzip.decompress(path.read_bytes())[:good])
    start += compressor.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(start + b"\xff" * 100)  # no block of a compressed file
    with pytest.raises(ValueError, match=f"scan.nii.gz {text}"):
        data.read_volume(path)


def test_broken_volumes_are_skipped(tmp_path):
    _volumes(tmp_path / "organs", 12)
    _broken(tmp_path / "organs")
    with pytest.warns(UserWarning, match="skipped 1 file that is no volume"):
        loaded = data.load(tmp_path / "organs", skip_broken=True)
    assert len(loaded.train) + len(loaded.test) == 11


@pytest.mark.parametrize(
    "options, text",
    [
        ({"color_mode": "rgb"}, "has volumes: no --color-mode"),
        (
            {"image_size": (8, 8)},
            "image_size must be one or three integers, got (8, 8)",
        ),
        ({"class_names": ["0", "5"]}, "has a label of 7, and the network knows 0, 5"),
    ],
)
def test_options_are_those_of_volumes(tmp_path, options, text):
    _volumes(tmp_path / "organs")
    with pytest.raises(ValueError, match=re.escape(text)):
        data.load(tmp_path / "organs", **options)


@pytest.mark.parametrize("name", ["1.NII", "1.Nii.Gz", "1.nii"])
@pytest.mark.parametrize("folder", ["images", "train/images"])
def test_suffixes_of_volumes_have_any_case(tmp_path, name, folder):
    (tmp_path / folder).mkdir(parents=True)
    assert not train._has_volumes(tmp_path)
    (tmp_path / folder / name).write_bytes(b"")
    assert train._has_volumes(tmp_path)


def test_without_nibabel_an_error_says_what_to_install(tmp_path, monkeypatch, capsys):
    _volumes(tmp_path / "organs")
    monkeypatch.setitem(sys.modules, "nibabel", None)
    text = "NIfTI volumes need nibabel: run `pip install 'tf-capsops[nifti]'`"
    with pytest.raises(ImportError, match=re.escape(text)):
        data.load(tmp_path / "organs")
    assert main(["train", "--data", str(tmp_path / "organs")]) == 2
    assert text in capsys.readouterr().err
    assert "\nnifti = [" in (fresh.ROOT / "pyproject.toml").read_text()
