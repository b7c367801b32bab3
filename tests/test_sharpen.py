"""Sharpening: what a decoder goes on to learn from its own maps."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from discs import blurred, disc
from fcam import cams, stages
from fcam.config import LossConfig, Sharpener, TrainConfig
from fcam.losses.total import TERMS, terms_on
from fcam.model import FCAM
from fcam.optimization import copy_of
from fcam.run import Run
from fcam.seeds import IGNORE, SeedMaps, sample_seeds
from fcam.sharpen import SEEDS, sharp_maps, sharpening
from fcam.train import train

THRESHOLD = 0.7


def taught_by(
    maps: torch.Tensor, by: Sharpener, images: torch.Tensor, class_maps: torch.Tensor | None = None
) -> torch.Tensor:
    says = torch.zeros_like(maps) if class_maps is None else class_maps
    teach = sharp_maps(lambda *_: maps, lambda *_: says, THRESHOLD, by)
    return teach(images, [], torch.zeros(len(images), dtype=torch.int64))


@pytest.mark.parametrize("by", ["refine", "grabcut"])
def test_the_teachers_object_ends_where_the_photos_does(by: Sharpener) -> None:
    images, object = disc()
    maps = blurred(object, 4)
    learned = taught_by(maps, by, images / 255)
    assert learned.shape == maps.shape
    assert set(learned.unique().tolist()) == {0.0, 1.0}

    def overlap(mask: torch.Tensor) -> float:
        return ((mask & object).sum() / (mask | object).sum()).item()

    assert overlap(maps[0] > THRESHOLD) < 0.85
    assert overlap(learned[0] == 1) > 0.95


def test_of_two_things_that_stand_out_the_one_of_the_photos_class_teaches() -> None:
    images, object = disc()
    images, other = torch.cat((images, images.flip(-1)), -1), torch.cat((object.new_zeros(96, 96), object), 1)
    object = torch.cat((object, object.new_zeros(96, 96)), 1)
    maps = torch.where(object, 0.8, torch.where(other, 0.65, 0.05))[None]
    assert taught_by(maps, "refine", images / 255)[0][other].mean() > 0.9
    learned = taught_by(maps, "refine", images / 255, blurred(object, 12))[0]
    assert learned[object].mean() > 0.95
    assert not learned[other].any()


def test_a_photo_that_is_all_object_teaches_nothing() -> None:
    images, maps = torch.full((2, 3, 96, 96), 0.5), torch.full((2, 96, 96), 0.9)
    maps[0, :, :3], maps[1, :, :9] = 0.1, 0.1  # 3 and 9 % of background
    learned = taught_by(maps, "refine", images)
    seeds = sample_seeds(learned, SEEDS, torch.Generator().manual_seed(0))
    assert (seeds[0] == IGNORE).all()
    assert (seeds[1, :, 9:] != 0).all()
    assert (seeds[1] == 0).any()


def test_the_class_maps_are_those_that_the_first_round_learned_from(
    tiny_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[SeedMaps] = []
    monkeypatch.setattr(stages, "sharp_maps", lambda maps, class_maps, *_: shown.append(class_maps) or maps)

    def own(images: torch.Tensor, features: object, labels: torch.Tensor) -> torch.Tensor:
        return images.mean(1)

    config = dataclasses.replace(tiny_config, sharpen=1, rounds=2)
    train(dataclasses.replace(config, out=str(tmp_path / "own")), own)
    run = train(dataclasses.replace(config, method="smoothgradcampp", out=str(tmp_path / "cams")))
    assert shown[0] is own
    model = FCAM.from_pretrained(run).eval()
    images, labels = torch.rand(3, 3, 64, 64), torch.tensor([0, 1, 1])
    top = model(images).features
    expected = cams.interpolated(
        model.classifier,
        images,
        top[-1],
        labels,
        "smoothgradcampp",
        generator=torch.Generator().manual_seed(0),
    )
    for _ in range(2):
        assert torch.equal(shown[1](images, top, labels), expected)


def test_seeds_come_from_both_sides_up_to_the_border() -> None:
    object = disc()[1]
    learned = object.float()[None].expand(40, -1, -1)
    labels = sample_seeds(learned, SEEDS, torch.Generator().manual_seed(0))
    assert (labels == 1).sum((1, 2)).tolist() == [SEEDS.foreground_pixels] * 40
    assert (labels == 0).sum((1, 2)).tolist() == [SEEDS.background_pixels] * 40
    assert ((labels == 1) <= object).all()
    assert ((labels == 0) <= ~object).all()
    inner = -torch.nn.functional.max_pool2d(-object.float()[None, None], 5, 1, 2)[0, 0] > 0
    outer = torch.nn.functional.max_pool2d(object.float()[None, None], 5, 1, 2)[0, 0] > 0
    assert ((labels == 1) & object & ~inner).any()
    assert ((labels == 0) & outer & ~object).any()


def test_a_map_without_information_teaches_nothing() -> None:
    images, _ = disc()
    for value in (0.0, 0.4, 1.0):
        learned = taught_by(torch.full((1, 96, 96), value), "refine", images / 255)
        assert (sample_seeds(learned, SEEDS) == IGNORE).all()


def test_a_photo_that_is_nearly_all_object_lends_little_of_it_to_the_background() -> None:
    learned = torch.ones(1, 96, 96)
    learned[:, 0] = 0  # a hundredth of it
    labels = sample_seeds(learned, SEEDS, torch.Generator().manual_seed(0))
    assert (labels == 1).sum() > 40
    assert (labels == 0).sum() <= SEEDS.background_pixels


def test_every_epoch_is_taught_by_the_decoder_that_stage_2_left(
    tiny_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught_by, own_maps = [], stages.maps_of
    monkeypatch.setattr(stages, "maps_of", lambda d: taught_by.append(copy_of(d)) or own_maps(d))
    left, save = [], Run.save_state

    def saved(self: Run, stage: str, state: dict[str, Any]) -> None:
        save(self, stage, state)
        left.append((stage, copy.deepcopy(state)))

    monkeypatch.setattr(Run, "save_state", saved)
    config = dataclasses.replace(tiny_config, sharpen=2, out=str(tmp_path / "run"))
    run = train(config)
    assert [stage for stage, _ in left[-3:]] == ["decoder-round1", "decoder", "decoder"]
    (teacher,) = taught_by
    weights = left[-3][1]["best_weights"]
    assert teacher.keys() == weights.keys()
    assert all(torch.equal(teacher[name], weights[name]) for name in teacher)

    def stopped(self: Run, stage: str, state: dict[str, Any]) -> None:
        save(self, stage, state)
        if (stage, state["epoch"]) == ("decoder", 1):
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save_state", stopped)
    config = dataclasses.replace(config, out=str(tmp_path / "stopped"))
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.undo()
    resumed = train(dataclasses.replace(config, resume=True))
    model = Path("model") / "model.safetensors"
    assert (run / model).read_bytes() == (resumed / model).read_bytes()


def test_every_term_is_on_from_the_first_epoch_to_the_last() -> None:
    windows = LossConfig(crf_epochs=(5, -1), size_epochs=(1, 2), alpha_epochs=(9, 12))
    before = TrainConfig(loss=windows, sharpen=3)
    config = sharpening(before)
    assert config.stage2 == dataclasses.replace(before.stage2, epochs=3)
    assert all(set(terms_on(config.loss, epoch)) == set(terms_on(LossConfig(), 1)) for epoch in (1, 2, 3))
    weights = {name: getattr(config.loss, name) for name in TERMS.values()}
    assert weights == {name: getattr(windows, name) for name in TERMS.values()}
