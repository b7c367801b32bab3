"""`benchmarks/train_step.py`: both sides of the comparison do the same work, and its figures are complete."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fcam.benchmark import train_step
from fcam.benchmark.pictures import pictures
from fcam.benchmark.train_step import PARTS, Step
from fcam.cams import interpolated
from fcam.config import SeedConfig
from fcam.seeds import IGNORE, foreground_region, sample_seeds

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "train_step.py"
TINY, CPU = "timm:test_resnet", torch.device("cpu")
SIDES = ("authors' way", "ours")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_step_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def ours() -> Step:
    return Step(TINY, CPU, "no", pictures(2, 64))


def same_cams(script, ours: Step) -> tuple[torch.Tensor, torch.Tensor]:
    images = ours.bytes.float().div_(255)
    top = ours.model.classifier(images).features[-1]
    batched = interpolated(ours.model.classifier, images, top, ours.labels, "cam")
    return script.cams_one_by_one(script.AuthorsStep(ours).classifier, images, ours.labels), batched


def test_with_the_same_seeds_both_sides_take_the_same_step(script, ours, monkeypatch):
    theirs = script.AuthorsStep(ours)
    seeds = sample_seeds(same_cams(script, ours)[1], generator=torch.Generator().manual_seed(3))
    assert {0, 1} < set(seeds.unique().tolist())
    monkeypatch.setattr(train_step, "sample_seeds", lambda *_: seeds)
    monkeypatch.setattr(script, "seeds_one_by_one", lambda *_: seeds)
    before = ours.model.decoder.blocks[0].conv1[0].weight.detach().clone()
    for _ in range(2):  # the second time, momentum and running statistics have a say
        terms, laps = ours.in_parts()
        their_terms, their_laps = theirs.in_parts()
        assert set(terms) == set(their_terms) == {"partial_ce", "crf", "size"}
        for name, value in terms.items():
            assert value.abs() > 1e-6
            torch.testing.assert_close(their_terms[name], value, rtol=1e-4, atol=1e-7)
        assert set(laps) == set(their_laps) == set(PARTS)
    assert not torch.equal(before, ours.model.decoder.blocks[0].conv1[0].weight)
    for name, value in ours.model.decoder.state_dict().items():
        torch.testing.assert_close(theirs.decoder.state_dict()[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "sides", "center"),
    [((4, 6, 8, 10), (28, 14, 7, 7), False), ((4, 6, 8), (57, 29, 29), True)],
)
def test_doubling_every_map_and_going_back_is_our_decoder(script, channels, sides, center):
    torch.manual_seed(0)
    decoder = script.Decoder(channels, (8, 6, 4, 4, 3)[: len(channels) + 1], center)
    features = [torch.rand(2, c, side, side) for c, side in zip(channels, sides, strict=True)]
    size = torch.Size((56, 56))
    torch.testing.assert_close(
        script.decode(decoder, features, size), decoder(features, size), rtol=1e-4, atol=1e-4
    )


def test_cams_and_regions_image_by_image_are_those_of_the_batch(script, ours):
    singly, batched = same_cams(script, ours)
    torch.testing.assert_close(singly, batched, rtol=0, atol=1e-4)
    assert batched.flatten(1).amax(1).min() > 0.5
    config = SeedConfig()
    regions = torch.stack([torch.from_numpy(script.region_of(cam, config)) for cam in batched])
    assert torch.equal(regions, foreground_region(batched, config))
    assert regions.any()


def test_seeds_are_drawn_where_they_may_be(script):
    rows = torch.arange(64.0)[:, None].expand(64, 64) / 63
    cams = torch.stack([rows, torch.zeros(64, 64)])
    config = SeedConfig(erosion=11, n_minus=0.25)
    torch.manual_seed(0)
    seeds, empty = script.seeds_one_by_one(cams, config)
    assert (empty == IGNORE).all()
    assert 0 < (seeds == 1).sum() <= 9
    assert 0 < (seeds == 0).sum() <= 9
    assert torch.where(seeds == 1)[0].min() >= 36
    assert torch.where(seeds == 0)[0].max() <= 16


def test_their_side_is_laid_out_as_described(script, ours):
    theirs = script.AuthorsStep(ours)
    for module in (theirs.encoder, theirs.classifier, theirs.decoder):
        assert all(value.is_contiguous() for value in module.parameters())
    assert not ours.model.decoder.blocks[0].conv1[0].weight.is_contiguous()
    assert theirs.decoder.training
    assert not theirs.classifier.training
    pairs = zip(theirs.encoder.parameters(), theirs.classifier.parameters(), strict=True)
    assert all(a is not b and torch.equal(a, b) for a, b in pairs)


def test_the_script_writes_both_sides(script, tmp_path):
    command = [sys.executable, str(SCRIPT), "--quick", "--backbones", TINY, "--threads", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    (one,) = json.loads((tmp_path / "train_step.json").read_text())["train_step"]
    assert (one["batch_size"], one["size"], one["precision_of_ours"]) == (2, 64, "no")
    for side in SIDES:
        assert one["whole_ms"][side]["repeats"] == 2
        assert set(one["parts_ms"][side]) == set(PARTS)
        total = sum(part["median"] for part in one["parts_ms"][side].values())
        assert total <= 1.05 * one["whole_ms"][side]["high"]
        assert one["processor_ms"][side] > 0
    assert one["ratio"] > 0
    page = (tmp_path / "train_step.md").read_text()
    assert f"| part | {SIDES[0]} (ms) | {SIDES[1]} (ms) | ratio |" in page
    assert f"| **whole step** | {one['whole_ms'][SIDES[0]]['median']:,.1f}" in page
    assert page.strip() in done.stdout.replace("\r", "") or "whole step" in done.stdout
