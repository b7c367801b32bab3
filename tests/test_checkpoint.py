"""Saved models: what is written is what is read, and what is damaged says so."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fcam import checkpoint
from fcam.errors import FcamError
from fcam.model import FCAM
from fcam.registry import create_model


@pytest.fixture(scope="module")
def model() -> FCAM:
    torch.manual_seed(0)
    model = create_model(
        "timm:test_resnet",
        3,
        pretrained=False,
        output_stride=16,
        decoder_channels=(16, 8, 8, 8, 4),
        head="logsumexp",
        head_options={"r": 5.0},
        classes=["ant", "bee", "wasp"],
    )
    model.metadata["thresholds"] = {"fcam": 0.42}
    model.classifier.backbone.set_normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    return model.eval()


@pytest.fixture
def saved(model: FCAM, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_round_trip(model: FCAM, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("loading a folder opened a socket")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(torch, "load", no_network)
    state = torch.random.get_rng_state()
    loaded = FCAM.from_pretrained(saved)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert sorted(p.name for p in saved.iterdir()) == ["config.json", "model.safetensors"]
    assert not loaded.training
    assert loaded.classes == ["ant", "bee", "wasp"]
    assert loaded.metadata == {"thresholds": {"fcam": 0.42}}
    assert loaded.config() == model.config()
    images = torch.rand(1, 3, 64, 48)
    with torch.no_grad():
        for a, b in zip(loaded(images)[:2], model(images)[:2], strict=True):
            assert torch.equal(a, b)
    assert loaded.classifier.frozen


def test_a_run_folder_will_do(model: FCAM, saved: Path) -> None:
    assert FCAM.from_pretrained(saved.parent).config() == model.config()


def test_channels_last_weights_are_stored(model: FCAM, tmp_path: Path) -> None:
    model.to(memory_format=torch.channels_last).save_pretrained(tmp_path)
    state = FCAM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_missing_files(saved: Path, tmp_path: Path) -> None:
    (saved / "config.json").unlink()
    with pytest.raises(FcamError, match=r"config\.json is missing"):
        FCAM.from_pretrained(saved)
    with pytest.raises(FcamError, match=r"there is no folder .*nowhere"):
        FCAM.from_pretrained(tmp_path / "nowhere")


def test_damaged_weights(saved: Path) -> None:
    data = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(FcamError, match=r"model\.safetensors is damaged"):
        FCAM.from_pretrained(saved)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', '{"format": 1}'])
def test_damaged_config(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(FcamError, match=r"config\.json"):
        FCAM.from_pretrained(saved)


def test_weights_of_another_model(saved: Path) -> None:
    # Copies: the file that the tensors are read from is written over.
    wrong = {key: value.clone() for key, value in load_file(saved / "model.safetensors").items()}
    wrong["decoder.blocks.0.conv1.0.weight"] = torch.zeros(1, 2, 3, 3)
    save_file(wrong, saved / "model.safetensors")
    with pytest.raises(FcamError, match=r"blocks\.0\.conv1\.0\.weight has shape \(1, 2, 3, 3\) instead of"):
        FCAM.from_pretrained(saved)
    del wrong["decoder.blocks.0.conv1.0.weight"]
    save_file({**wrong, "extra": torch.zeros(1)}, saved / "model.safetensors")
    with pytest.raises(FcamError, match=r"conv1\.0\.weight is missing; extra is unexpected"):
        FCAM.from_pretrained(saved)


def test_metadata_must_be_json(model: FCAM, tmp_path: Path) -> None:
    model.metadata["bad"] = torch.zeros(1)
    try:
        with pytest.raises(FcamError, match="cannot be stored as JSON"):
            model.save_pretrained(tmp_path / "bad")
    finally:
        del model.metadata["bad"]
    assert not (tmp_path / "bad").exists()


def test_a_hub_id_is_downloaded_and_only_when_no_folder_has_its_name(
    model: FCAM, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        if repo_id == "me/absent":
            raise OSError("404 Not Found")
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert FCAM.from_pretrained("me/birds").config() == model.config()
    assert asked == [("me/birds", ["config.json", "model.safetensors"])]
    with pytest.raises(FcamError, match=r"me/absent is neither a folder here nor .*404"):
        FCAM.from_pretrained("me/absent")
    monkeypatch.chdir(saved.parent)
    (saved.parent / "runs").mkdir()
    saved.rename(saved.parent / "runs/birds")
    FCAM.from_pretrained("runs/birds")
    assert len(asked) == 2


def test_push_uploads_what_is_saved(model: FCAM, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[str] = []

    class Api:
        def create_repo(self, repo_id: str, private: bool, exist_ok: bool) -> None:
            if repo_id == "other/birds":
                raise OSError("403 Forbidden")

        def upload_folder(self, repo_id: str, folder_path: str, commit_message: str) -> str:
            files.extend(sorted(p.name for p in Path(folder_path).iterdir()))
            return f"https://huggingface.co/{repo_id}"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert model.push_to_hub("me/birds") == "https://huggingface.co/me/birds"
    assert files == ["config.json", "model.safetensors"]
    with pytest.raises(FcamError, match="403 Forbidden"):
        model.push_to_hub("other/birds")


def test_config_is_readable(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config["format"] == checkpoint.FORMAT
    assert config["backbone"] == "timm:test_resnet"
    assert config["head"] == {"name": "logsumexp", "background": False, "r": 5.0}
    assert config["decoder"] == {"channels": [16, 8, 8, 8, 4], "center": False}


def test_a_slip_in_a_folders_name_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "birds").mkdir(parents=True)
    with pytest.raises(FcamError, match=r"no folder runs/brids; did you mean runs/birds\?"):
        checkpoint.resolve("runs/brids", download=lambda repo_id: pytest.fail("asked the hub"))
    assert checkpoint.resolve("runs/cats", download=lambda repo_id: f"hub/{repo_id}") == Path("hub/runs/cats")
