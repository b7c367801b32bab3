"""The model that comes with the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fcam
from fcam import shipped
from fcam.errors import FcamError

LITE0 = "tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def small() -> fcam.FCAM:
    torch.manual_seed(0)
    return fcam.create_model(LITE0, 1000, output_stride=32, decoder_channels=(8, 8, 8, 8, 8)).eval()


def test_decoder_only_is_small_and_gives_the_same_maps(small: fcam.FCAM, tmp_path: Path) -> None:
    small.save_pretrained(tmp_path, decoder_only=True)
    again = fcam.FCAM.from_pretrained(tmp_path)
    decoder = sum(p.numel() for p in small.decoder.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < 2 * decoder + 20_000
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before, after = small(images), again(images)
    assert torch.equal(before.logits, after.logits)
    assert (before.maps.softmax(1) - after.maps.softmax(1)).abs().max() < 2e-2  # half precision
    assert all(p.dtype == torch.float32 for p in again.parameters())


def test_decoder_only_file_of_another_decoder_is_refused(small: fcam.FCAM, tmp_path: Path) -> None:
    small.save_pretrained(tmp_path, decoder_only=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["decoder"]["channels"] = [16] * 5
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FcamError, match="does not fit Decoder"):
        fcam.FCAM.from_pretrained(tmp_path)


def test_names_lead_to_folders_with_card_and_weights() -> None:
    for name in shipped.NAMES:
        folder = shipped.folder(name)
        assert (folder / "README.md").is_file()
        assert (folder / "model.safetensors").stat().st_size < 4 << 20


def test_the_default_knows_a_cat_and_finds_it() -> None:
    from skimage import data

    cat = data.cat()
    found = fcam.Localizer()(cat)
    assert "cat" in found.label or "tabby" in found.label
    assert found.score > 0.3  # unscaled logits of the un-strided network give 0.02
    ((x0, y0, x1, y1),) = found.boxes.tolist()
    height, width = cat.shape[:2]
    assert 0.15 < (x1 - x0) * (y1 - y0) / (width * height) < 0.95
    assert found.mask[height // 2, x0:x1].any()


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lite0").mkdir()
    with pytest.raises(FcamError, match="not a saved model"):
        fcam.FCAM.from_pretrained("lite0")
