"""What a sweep lays out: names, combinations, shared classifiers, and what it refuses."""

from __future__ import annotations

import pytest
import yaml

from fcam.errors import FcamError
from fcam.files import write_text
from fcam.recipes import recipe
from fcam.run import config_to_dict
from fcam.sweep import PRESETS, SweepConfig, make_plan
from fcam.sweep.command import SweepCommand, asked_for
from fcam.sweep.plan import with_fields


@pytest.fixture
def asked(drawn_set, tmp_path):
    def ask(*recipes, **values):
        return make_plan(
            SweepConfig(recipes=recipes, **{"data": str(drawn_set), "out": str(tmp_path / "sweep"), **values})
        )

    return ask


def test_all_combinations_with_readable_names(asked):
    plan = asked("cub10-lite0-cam", vary={"seed": [0, 1], "seeds.n-minus": [0.1, 0.2]})
    assert plan.names() == [
        "cub10-lite0-cam,seeds.n_minus=0.1,seed=0", "cub10-lite0-cam,seeds.n_minus=0.1,seed=1",
        "cub10-lite0-cam,seeds.n_minus=0.2,seed=0", "cub10-lite0-cam,seeds.n_minus=0.2,seed=1",
    ]  # fmt: skip
    assert [(run.config.seeds.n_minus, run.config.seed) for run in plan.runs] == [
        (0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1),
    ]  # fmt: skip
    assert {run.label for run in plan.runs} == {"seeds.n_minus = 0.1", "seeds.n_minus = 0.2"}


def test_runs_that_differ_in_stage_two_share_a_classifier_per_seed(asked):
    plan = asked("cub10-lite0-cam", preset=("n-minus", "ablation", "alpha"), vary={"seed": [0, 1]})
    assert len(plan.classifiers) == 2
    assert len(plan.names()) == 2 * (7 + 4 + 2)
    for run in plan.runs:
        first = plan.classifiers[run.classifier]
        assert run.config.stages == "decoder"
        assert run.config.classifier_from == first.out
        assert (first.stages, first.seed, first.model) == ("classifier", run.config.seed, run.config.model)


@pytest.mark.parametrize(
    ("values", "classifiers"),
    [
        ({"preset": ("methods",)}, 1),
        # The epoch of stage 1 is then chosen by the CAM of the method, so that each has its own classifier.
        ({"preset": ("methods",), "set": {"stage1.select": "pxap"}}, 6),
        ({"vary": {"stage1.optimizer.lr": [0.1, 0.2]}}, 2),
        ({"vary": {"crop": [96, 112]}}, 2),
        ({"vary": {"stage2.optimizer.lr": [0.1, 0.2], "workers": [0, 1]}}, 1),
        ({"vary": {"rounds": [1, 2], "mosaics": [0, 0.5], "recolor": [0, 0.5]}}, 1),
        ({"vary": {"model.decoder_channels": [[16, 16, 16, 16], [32, 16, 16, 16]]}}, 1),
    ],
)
def test_what_moves_stage_one_has_a_classifier_of_its_own(asked, values, classifiers):
    assert len(asked("cub10-lite0-cam", **values).classifiers) == classifiers


def test_a_method_takes_the_recipe_of_that_method(asked):
    plan = asked("cub10-lite0-cam", preset=("methods",))
    assert plan.names()[-1] == "cub10-lite0-layercam,seed=0"
    assert [run.config.method for run in plan.runs] == [v.overrides["method"] for v in PRESETS["methods"]]


def test_the_ablation_turns_off_terms(asked):
    plan = asked("cub10-lite0-cam", preset=("ablation",))
    weights = {run.label: (run.config.loss.crf > 0, run.config.loss.size > 0) for run in plan.runs}
    assert weights == {
        "SR": (False, False),
        "SR + ASC": (False, True),
        "SR + CRF": (True, False),
        "SR + CRF + ASC": (True, True),
    }


def test_sets_are_found_below_the_folder_of_sets(drawn_set, tmp_path):
    (tmp_path / "CUB").symlink_to(drawn_set)
    (tmp_path / "cub10").symlink_to(drawn_set)
    asked = SweepConfig(("cub-resnet50-cam", "cub10-lite0-cam"), str(tmp_path), str(tmp_path / "sweep"))
    plan = make_plan(asked)
    assert {run.config.data for run in plan.runs} == {str(drawn_set.resolve())}
    assert len(plan.classifiers) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"preset": ("everything",)}, "everything.*n-minus"),
        ({"vary": {"seeds.n_minsu": [1]}}, "unknown field 'n_minsu'.*n_minus"),
        ({"vary": {"sedes.n_minus": [1]}}, "no setting 'sedes.n_minus'"),
        ({"vary": {"seed": ["a"]}}, "seed is 'a'"),
        ({"vary": {"seeds.erosion": [3, 4]}}, "--seeds.erosion is 4"),
        ({"vary": {"seed": 1}}, "list of values"),
        ({"set": {"out": "x"}}, "set by the sweep itself"),
        ({"set": {"stages": "classifier"}}, "trains none"),
        ({"set": {1: 2}}, "unknown field '1'"),
        ({"variants": {"a": 3}}, "variant 'a' is 3"),
        ({"preset": ("n-minus",), "vary": {"seeds.n_minus": [0.1]}}, "seeds.n_minus is set by .* varies"),
        ({"variants": {"a": {"seed": 1}}, "vary": {"seed": [0]}}, "seed is set by 'a' and varies"),
        ({"vary": {"seeds.n_minus": [0.1234561, 0.1234562]}}, "two different runs.*n_minus=0.123456"),
        ({"data": "nowhere"}, "nowhere"),
        ({"out": ""}, "needs out"),
    ],
)
def test_mistakes_are_named_before_anything_runs(asked, values, words, tmp_path):
    with pytest.raises(FcamError, match=words):
        asked("cub10-lite0-cam", **values)
    assert not (tmp_path / "sweep").exists()


def test_an_unknown_recipe_shows_near_names(asked):
    with pytest.raises(FcamError, match="cub10-lite0-cam"):
        asked("cub10-lite-cam")


def test_runs_of_files_called_alike_are_never_taken_for_one(asked, tmp_path):
    sources = []
    for folder, n_minus in (("lr0.1", 0.1), ("lr0.01", 0.2)):
        config = with_fields(recipe("cub10-lite0-cam"), {"seeds.n_minus": n_minus})
        for name in ("config.yaml", "mine.yaml"):
            write_text(tmp_path / folder / name, yaml.safe_dump(config_to_dict(config)))
        sources.append(tmp_path / folder)
    # The folder of a run has no suffix, whatever its name.
    assert asked(*map(str, sources)).names() == ["lr0.1,seed=0", "lr0.01,seed=0"]
    with pytest.raises(FcamError, match="two different runs.*lr0.1/mine.yaml.*lr0.01/mine.yaml.*rename"):
        asked(*(str(source / "mine.yaml") for source in sources))


def test_a_seed_of_a_variant_goes_over_that_of_all_runs(asked):
    plan = asked("cub10-lite0-cam", set={"seed": 5}, variants={"a": {"seed": 1}, "b": {"seeds.erosion": 1}})
    assert [run.config.seed for run in plan.runs] == [1, 5]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fixed": ("classifier_from=@runs/a",)}, "'@runs/a', the value of classifier_from.*=\"@runs/a\"'$"),
        ({"fixed": ("class_names=%names.txt",)}, "'%names.txt', the value of class_names: .*; quote it"),
        ({"fixed": ("weights=[v2] model.pt",)}, r"--set 'weights=\"\[v2\] model.pt\"'$"),
        ({"fixed": ("weights=a: b: c",)}, "mapping values are not allowed.*--set 'weights=\"a: b: c\"'$"),
        ({"fixed": ("weights=" + "[" * 5000,)}, "recursion depth exceeded.*; quote it: --set .*\\.\\.\\.$"),
        ({"vary": ("class_names=2024-13-01,b",)}, "the values of class_names: month must be in 1..12; quote"),
        ({"vary": ("seed=[1",)}, "cannot read '\\[1', the values of seed"),
    ],
)
def test_values_that_are_no_yaml_are_named(values, words):
    with pytest.raises(FcamError, match=words) as refused:
        asked_for(SweepCommand(("cub10-lite0-cam",), **values))
    assert len(str(refused.value)) < 1000


def test_what_the_message_advises_is_read():
    command = SweepCommand((), fixed=('weights="a: b: c"',), vary=('class_names="2024-13-01","b"',))
    asked = asked_for(command)
    assert (asked.set, asked.vary) == ({"weights": "a: b: c"}, {"class_names": ["2024-13-01", "b"]})


def test_recipes_of_a_file_are_one_or_a_list(tmp_path):
    path = tmp_path / "sweep.yaml"
    for text, recipes in (("folder-lite0-cam", ("folder-lite0-cam",)), ("[a, b]", ("a", "b"))):
        path.write_text(f"recipes: {text}\n")
        assert asked_for(SweepCommand((str(path),))).recipes == recipes
    for text in ("5", "{a: b}", "", "[5]"):
        path.write_text(f"recipes: {text}\n")
        with pytest.raises(FcamError, match=r"the sweep\.recipes is .* belongs there"):
            asked_for(SweepCommand((str(path),)))
    for damaged in (b"recipes: \xff\n", b"recipes: 2024-13-01\n", b"recipes: [" + b"[" * 5000):
        path.write_bytes(damaged)
        with pytest.raises(FcamError, match=r"sweep\.yaml is no YAML: .*; mend the file$"):
            asked_for(SweepCommand((str(path),)))


def test_the_word_no_stays_a_word(asked):
    plan = asked("cub10-lite0-cam", set=yaml.safe_load("precision: no"))
    assert plan.runs[0].config.precision == "no"
