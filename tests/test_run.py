"""Run folders: configurations go to YAML and back, and damage is named."""

from __future__ import annotations

import dataclasses

import pytest

from fcam.config import SeedConfig, TrainConfig
from fcam.errors import FcamError
from fcam.recipes import at_size, list_recipes, recipe
from fcam.run import Run, config_from_dict, config_to_dict, load_config


@pytest.mark.parametrize("name", list_recipes()[::17])
def test_every_recipe_survives_yaml(name, tmp_path):
    config = dataclasses.replace(recipe(name), data="somewhere", out=str(tmp_path))
    Run(tmp_path).open(config)
    assert load_config(tmp_path) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sed": 3}, "unknown field 'sed'.*'seed'"),
        ({"seed": "three"}, "seed is 'three'"),
        ({"seed": True}, "seed is True"),
        ({"method": "camm"}, "method is 'camm'.*'layercam'"),
        ({"seeds": {"n_minus": "much"}}, "seeds.n_minus is 'much'"),
        ({"seeds": 3}, "holds 3"),
        ({"loss": {"crf_epochs": [1]}}, "crf_epochs"),
    ],
)
def test_a_damaged_configuration_is_named(change, words):
    with pytest.raises(FcamError, match=words):
        config_from_dict(TrainConfig, {**config_to_dict(TrainConfig()), **change})


def test_a_folder_without_a_run_and_a_damaged_file(tmp_path):
    with pytest.raises(FcamError, match="not the folder of a run"):
        load_config(tmp_path)
    (tmp_path / "config.yaml").write_text("a: [1")
    with pytest.raises(FcamError, match="damaged"):
        load_config(tmp_path)


def test_a_damaged_resume_point_is_named(tmp_path):
    run = Run(tmp_path)
    run.state_path("decoder").parent.mkdir()
    run.state_path("decoder").write_bytes(b"not a checkpoint")
    with pytest.raises(FcamError, match=r"decoder\.pt is damaged"):
        run.load_state("decoder")


def test_a_log_torn_by_a_kill_is_mended(tmp_path):
    run = Run(tmp_path)
    for epoch in (1, 2, 3):
        run.log({"stage": "decoder", "epoch": epoch})
    with (tmp_path / "log.jsonl").open("a") as stream:
        stream.write('{"stage": "deco')
    run.trim_log("decoder", 2)
    assert [record["epoch"] for record in run.records()] == [1, 2]


def test_unknown_recipe_shows_near_names():
    with pytest.raises(FcamError, match="cub10-lite0-cam"):
        recipe("cub10-lite-cam")


def test_pixel_quantities_move_with_the_size():
    half = at_size(recipe("cub10-lite0-cam"), 112)
    assert (half.crop, half.resize, half.loss.sigma_xy) == (112, 128, 50.0)
    assert half.loss.crf == pytest.approx(16 * 1.2e-9)
    assert half.seeds.erosion % 2 == 1
    assert half.seeds.erosion < SeedConfig().erosion


def test_a_configuration_file_of_any_name_is_read(tmp_path):
    config = recipe("pets3-lite0-layercam")
    Run(tmp_path).open(config)
    (tmp_path / "config.yaml").rename(tmp_path / "mine.yml")
    assert load_config(tmp_path / "mine.yml") == config


def test_resuming_with_other_settings_names_the_field_alone(tmp_path):
    config = dataclasses.replace(recipe("cub10-lite0-cam"), out=str(tmp_path))
    run = Run(tmp_path)
    run.open(config)
    longer = dataclasses.replace(config, stage2=dataclasses.replace(config.stage2, epochs=999), resume=True)
    with pytest.raises(FcamError) as caught:
        run.open(longer)
    expected = (
        f"{tmp_path} was started with stage2.epochs = {config.stage2.epochs}, now it is 999; resume with"
    )
    assert str(caught.value).startswith(expected)
    run.open(dataclasses.replace(config, workers=7, resume=True))


def test_a_damaged_log_names_the_line(tmp_path):
    run = Run(tmp_path)
    for line in ("{}", "[" * 100_000, "3", '{"stage": "decoder", "epoch": []}', "\udcff"):
        (tmp_path / "log.jsonl").write_bytes(
            b'{"stage": "decoder", "epoch": 1}\n' + line.encode("utf-8", "replace")
        )
        with pytest.raises(FcamError, match=r"log\.jsonl, line 2 is damaged"):
            run.records()
        run.trim_log("decoder", 5)
        assert len(run.records()) == 1


@pytest.mark.parametrize("state", [{}, [], {"epoch": "2", "best": None, "best_weights": None}, 3])
def test_a_resume_point_of_something_else_is_named(state, tmp_path):
    run = Run(tmp_path)
    run.save_state("decoder", state)
    with pytest.raises(FcamError, match=r"decoder\.pt is damaged"):
        run.load_state("decoder")


def test_yaml_that_grows_without_end_is_refused_at_once(tmp_path):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 20)]
    (tmp_path / "config.yaml").write_text("\n".join([*rows, "seed: *a19"]))
    with pytest.raises(FcamError, match="unknown field 'a0'"):
        load_config(tmp_path)
    (tmp_path / "config.yaml").write_text("\n".join(["seed:", *(f"  {row}" for row in rows)]))
    with pytest.raises(FcamError, match=r"seed is \{'a0'"):
        load_config(tmp_path)
