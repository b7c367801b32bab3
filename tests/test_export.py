"""fcam export: one file that gives what the model gives, or none."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from timm.layers import Conv2dSame
from torch import Tensor, nn

import fcam
from fcam.cli import main
from fcam.data.synthetic import draw_image
from fcam.errors import FcamError, escaped
from fcam.export import check as export_check
from fcam.export import export_onnx, export_torch
from fcam.export import formats as export
from fcam.export.check import OUTPUTS, check
from fcam.export.graph import pool
from fcam.model import FCAM, foreground

SIZES = [(1, 64, 64), (3, 47, 90), (2, 33, 160)]


class Small(nn.Module):
    """A classifier with what makes graphs of any size hard: "same" padding, pooling to 3x3, a view with the batch size."""

    def __init__(self, side: int = 3) -> None:
        super().__init__()
        self.one = nn.Sequential(Conv2dSame(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.two = nn.Sequential(Conv2dSame(8, 12, 5, 2), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(side) if side else nn.Identity()
        self.fc = nn.Linear(12 * (side or 16) ** 2, 5)

    def forward(self, images: Tensor) -> Tensor:
        top = self.pool(self.two(self.one(images)))
        return self.fc(top.view(images.shape[0], -1))


@torch.no_grad()
def randomized(model: FCAM, size: int = 64) -> FCAM:
    """Statistics that a wrong order or a missing layer would show, a map with both grounds, and a card."""
    torch.manual_seed(1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            nn.init.normal_(layer.running_mean, 0, 0.1)  # type: ignore[arg-type]
    model.classes = [f"class {i}, é" for i in range(model.classifier.num_classes)]
    model.classes[0] = os.fsdecode(b"caf\xe9")  # a folder's name that is not UTF-8
    model.metadata = {"threshold": 0.42, "training": {"crop": size}}
    model.eval()
    maps = model(torch.rand(2, 3, size, size)).maps
    logit, last = maps[:, 1] - maps[:, 0], model.decoder.segmentation_head[0]
    assert isinstance(last, nn.Conv2d)
    last.weight.mul_(2 / logit.std())
    last.bias.copy_(torch.tensor([2 * float(logit.mean() / logit.std()), 0]))  # type: ignore[union-attr]
    return model


def build(name: str) -> FCAM:
    torch.manual_seed(0)
    if name == "attached resnet18":
        return randomized(fcam.attach(torchvision.models.resnet18(num_classes=5), channels=(8,) * 5))
    if name == "attached own":
        return randomized(fcam.attach(Small(), image_size=64, channels=(8,) * 2))
    model = fcam.create_model(name, 5, False, output_stride=16, decoder_channels=(8,) * 5)
    if name == "tf_efficientnet_lite0":  # one layer of each stage shows all that there is to go wrong
        for stage in model.classifier.backbone.net.blocks:  # type: ignore[union-attr]
            del stage[1:]
    return randomized(model)


@pytest.fixture(scope="module")
def tiny() -> FCAM:
    return build("attached own")


@pytest.fixture(scope="module")
def tiny_onnx(tiny: FCAM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = export_onnx(tiny, tmp_path_factory.mktemp("onnx") / "tiny.onnx")
    assert 0 < done.difference < 1e-4
    return done.path


def wanted(model: FCAM, images: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        out = model(images)
    return [out.logits, out.logits.softmax(1), foreground(out.maps)]


def session(path: Path) -> Any:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def compare(model: FCAM, run, pixels: bool = False, sizes=SIZES) -> None:
    for batch, height, width in sizes:
        grid = torch.randint(0, 256, (batch, 3, height, width), generator=torch.Generator().manual_seed(2))
        given = grid.permute(0, 2, 3, 1).contiguous().byte() if pixels else grid.float() / 255
        for name, want, have in zip(OUTPUTS, wanted(model, grid.float() / 255), run(given), strict=True):
            assert tuple(have.shape) == tuple(want.shape), name
            torch.testing.assert_close(torch.as_tensor(have), want, atol=5e-5, rtol=5e-5, msg=name)


def test_onnx_gives_what_the_model_gives_at_any_size(tiny: FCAM, tiny_onnx: Path) -> None:
    assert [p.name for p in tiny_onnx.parent.iterdir()] == ["tiny.onnx"]  # weights are inside
    file = session(tiny_onnx)
    compare(tiny, lambda images: file.run(None, {"images": images.numpy()}))
    assert [(i.name, i.shape) for i in file.get_inputs()] == [("images", ["batch", 3, "height", "width"])]
    assert [(o.name, o.shape) for o in file.get_outputs()] == [
        ("logits", ["batch", 5]),
        ("probabilities", ["batch", 5]),
        ("foreground", ["batch", "height", "width"]),
    ]


def test_onnx_of_the_mobile_network(tmp_path: Path) -> None:
    model = build("tf_efficientnet_lite0")
    done = export_onnx(model, tmp_path / "m.onnx")
    assert done.num_bytes == done.path.stat().st_size
    file = session(done.path)
    compare(model, lambda images: file.run(None, {"images": images.numpy()}))


def test_torch_export_of_an_attached_network(tmp_path: Path) -> None:
    model = build("attached resnet18")
    compare(model, torch.export.load(export_torch(model, tmp_path / "m.pt2").path).module())


def test_torch_export_gives_what_the_model_gives_at_any_size(tiny: FCAM, tmp_path: Path) -> None:
    before = {key: (value.clone(), value.stride()) for key, value in tiny.state_dict().items()}
    tiny.decoder.train()
    try:
        done = export_torch(tiny, tmp_path / "m.pt2")
        assert tiny.decoder.training
    finally:
        tiny.eval()
    for key, value in tiny.state_dict().items():
        assert torch.equal(value, before[key][0])
        assert value.stride() == before[key][1]
    assert [p.name for p in tmp_path.iterdir()] == ["m.pt2"]
    extra = {"fcam.json": ""}
    program = torch.export.load(done.path, extra_files=extra)
    compare(tiny, program.module())
    assert json.loads(extra["fcam.json"]) == done.note
    assert str(Path(fcam.__file__).parent).encode() not in done.path.read_bytes()


def test_torch_export_of_pixels_without_names_and_with_options(tiny: FCAM, tmp_path: Path) -> None:
    bare = copy.deepcopy(tiny)
    bare.classes, bare.metadata = None, {}
    done = export_torch(bare, tmp_path / "m.pt2", input="uint8", threshold=0.3, size=96)
    assert json.loads(done.note["classes"]) == ["0", "1", "2", "3", "4"]
    assert (done.note["threshold"], done.note["size"]) == ("0.3", "96")
    assert done.sizes[0] == (96, 96)
    compare(bare, torch.export.load(done.path).module(), pixels=True)


def test_the_file_tells_all_that_its_user_needs(tiny: FCAM, tiny_onnx: Path) -> None:
    notes = session(tiny_onnx).get_modelmeta().custom_metadata_map
    assert json.loads(notes["classes"]) == [r"caf\udce9", *(tiny.classes or ())[1:]]
    assert float(notes["threshold"]) == 0.42
    assert int(notes["size"]) == 64
    assert notes["fcam_version"] == fcam.__version__
    mean = tiny.classifier.backbone.mean.flatten().tolist()
    assert json.loads(notes["mean"]) == pytest.approx(mean)
    assert len(json.loads(notes["std"])) == 3
    assert "RGB" in notes["input"]
    # Where it was made stays unsaid.
    assert str(Path(fcam.__file__).parent).encode() not in tiny_onnx.read_bytes()
    assert b"site-packages" not in tiny_onnx.read_bytes()


def test_one_size_for_classifiers_that_take_no_other_and_pixels(tmp_path: Path) -> None:
    model = randomized(fcam.attach(Small(side=0), image_size=64, channels=(8,) * 2))
    with pytest.raises(FcamError, match="fixed-size"):
        export_torch(model, tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())
    done = export_onnx(model, tmp_path / "m.onnx", fixed_size=True, input="uint8")
    assert done.sizes == ((64, 64),)
    file = session(done.path)
    assert file.get_inputs()[0].shape == ["batch", 64, 64, 3]
    run = lambda images: file.run(None, {"images": images.numpy()})  # noqa: E731
    compare(model, run, pixels=True, sizes=[(1, 64, 64), (3, 64, 64)])


@pytest.mark.parametrize(("size", "bins"), [((7, 11), (3, 3)), ((4, 5), (7, 7)), ((9, 12), (3, 4))])
def test_adaptive_pooling_by_matrices(size: tuple[int, int], bins: tuple[int, int]) -> None:
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pool(images, bins), F.adaptive_avg_pool2d(images, bins))


# When it goes wrong.


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_extra_is_named(name: str, tiny: FCAM, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FcamError, match=rf'{name}, which is not installed; pip install "fcam\[export\]"'):
        export_onnx(tiny, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_gives_something_else_is_not_kept(tiny: FCAM, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(b"an earlier file")
    forward = export.Network.forward

    def other(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, probabilities, map = forward(self, images)
        return logits, probabilities, map + 2e-4

    monkeypatch.setattr(export.Network, "forward", other)
    with pytest.raises(FcamError, match="foreground differ.*0.0002.*nothing was written"):
        export_torch(tiny, path)
    assert path.read_bytes() == b"an earlier file"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("index", "change", "words"),
    [
        (0, lambda x: x + 2e-4 * x.abs().max().clamp(min=1), "logits differ"),
        (1, lambda x: x + 2e-4, "probabilities differ"),
        (2, lambda x: x * float("nan"), "foreground differ .* by nan"),
        (2, lambda x: x[:, 1:], "foreground of shape"),
    ],
)
def test_every_output_is_compared(index, change, words, tiny: FCAM) -> None:
    def run(images: Tensor) -> list[Tensor]:
        outputs = wanted(tiny, images)
        outputs[index] = change(outputs[index])
        return outputs

    images = torch.randint(0, 256, (2, 3, 48, 64), dtype=torch.uint8)
    assert check(lambda images: wanted(tiny, images), tiny, iter([images])) == 0
    with pytest.raises(FcamError, match=words):
        check(run, tiny, iter([images]))


def test_a_model_that_gives_nothing_finite_is_refused(tiny: FCAM) -> None:
    model = copy.deepcopy(tiny)
    nn.init.constant_(model.decoder.segmentation_head[0].weight, float("nan"))  # type: ignore[arg-type]
    with pytest.raises(FcamError, match="not finite"):
        check(lambda images: wanted(model, images), model, iter([torch.zeros(1, 3, 64, 64).byte()]))


def test_a_full_disk_is_one_sentence(tiny: FCAM, tmp_path: Path, monkeypatch) -> None:
    """Where torch writes the file itself, the interpreter is aborted."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FcamError, match=r"m\.pt2: No space left on device; check that the folder"):
        export_torch(tiny, tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_weights_beyond_the_format_are_refused(tiny: FCAM, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(export, "ONNX_LIMIT", 1000)
    with pytest.raises(FcamError, match=r"\.pt2"):
        export_onnx(tiny, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--out", "m.onnx"], "nowhere"),
        (["nowhere", "--out", "m.tflite"], "must end in .onnx or .pt2"),
        (["{model}", "--out", "file/m.onnx"], "cannot write"),
        (["{model}", "--out", "folder.onnx"], "is a folder"),
        (["{model}", "--out", "m.onnx", "--photos", "nothing.jpg"], "nothing.jpg"),
        (["{model}", "--out", "m.pt2", "--photos", "file"], "cannot read image"),
        (["{model}", "--out", "m.pt2", "--threshold", "1.5"], "threshold must lie in [0, 1), got 1.5"),
        (["{model}", "--out", "m.pt2", "--size", "8"], "size is 8"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments, words, saved, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no photo")
    Path("folder.onnx").mkdir()
    assert main(["export", *(a.format(model=saved) for a in arguments)]) == 2
    err = capsys.readouterr().err.strip()
    assert words in err
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.onnx"]


# The way users go.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    build("timm:test_resnet").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo that is not square and lies on its side."""
    path = tmp_path_factory.mktemp("photos") / "photo.jpg"
    picture = Image.fromarray(draw_image(1, 160, np.random.default_rng(0)).image).crop((0, 20, 160, 130))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(path, quality=95, exif=exif)
    return path


def test_the_command_checks_on_given_photos(
    saved: Path, photo: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    seen = []
    monkeypatch.setattr(export_check, "drawn", lambda side: pytest.fail("photos were given"))
    original = export.check

    def watched(run, model, batches, pixels):
        batches = list(batches)
        seen.extend(tuple(batch.shape) for batch in batches)
        return original(run, model, iter(batches), pixels)

    monkeypatch.setattr(export, "check", watched)
    out = tmp_path / "new" / "m.pt2"
    assert main(["export", str(saved), "--out", str(out), "--photos", str(photo.parent)]) == 0
    assert [p.name for p in out.parent.iterdir()] == ["m.pt2"]
    err = capsys.readouterr().err
    assert "1 photos at 64x64 and 49x45" in err
    assert (2, 3, 64, 64) in seen
    assert (1, 3, 49, 45) in seen


def test_the_script_of_the_documentation(tiny: FCAM, tiny_onnx: Path, photo: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text(encoding="utf-8")
    script = next(s for s in re.findall(r"```python\n(.*?)```", page, re.S) if "InferenceSession" in s)
    assert len([line for line in script.splitlines() if line and not line.startswith("#")]) <= 16
    assert not re.search(r"\b(torch|fcam)\b", script)
    (tmp_path / "locate.py").write_text(script)
    command = [sys.executable, "locate.py", str(tiny_onnx), str(photo)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = fcam.Localizer(tiny, dtype=torch.float32)(photo)
    name, *box = done.stdout.rsplit(maxsplit=4)
    assert name == escaped(str(expected.label))
    mask = np.array(Image.open(tmp_path / "mask.png"))
    assert set(np.unique(mask)) <= {0, 255}
    assert mask.shape == expected.mask.shape == (160, 110)
    assert (mask.astype(bool) != expected.mask).mean() < 0.01
    assert 0.02 < expected.mask.mean() < 0.98
    y, x = mask.nonzero()
    assert [int(v) for v in box] == [x.min(), y.min(), x.max() + 1, y.max() + 1]
