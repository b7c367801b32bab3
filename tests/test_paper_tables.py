"""The paper's numbers as data: spot checks, and every printed mean that its own cells contradict has its footnote."""

from __future__ import annotations

import re

import pytest

from fcam import paper_tables as paper


def test_cells_are_those_of_the_paper():
    assert paper.printed("max_box_acc", "cub", "resnet50", "cam", "fcam") == 90.3
    assert paper.printed("max_box_acc", "cub", "resnet50", "cam", "cam") == 71.5
    assert paper.printed("max_box_acc", "cub", "inceptionv3", "cam", "fcam", "SR + CRF") == 78.9
    assert paper.printed("pxap", "openimages", "vgg16", "layercam", "fcam") == 64.3
    assert paper.printed("top1_loc", "cub", "vgg16", "smoothgradcampp", "cam") == 17.7


@pytest.mark.parametrize(
    "wanted",
    [
        ("pxap", "cub", "resnet50", "cam", "fcam"),
        ("max_box_acc", "ilsvrc", "resnet50", "cam", "fcam"),
        ("max_box_acc", "cub", "tf_efficientnet_lite0", "cam", "fcam"),
        ("max_box_acc", "cub", "resnet50", "layercam", "fcam", "SR"),
        ("max_box_acc_v2", "cub", "resnet50", "cam", "fcam", "SR"),
    ],
)
def test_what_the_paper_does_not_print_is_none(wanted):
    assert paper.printed(*wanted) is None


def test_exactly_the_contradicted_means_are_footnoted():
    wrong = {
        (*key, method)
        for key, rows in paper.MAIN.items()
        for method, row in rows.items()
        if row.mean is not None and abs(row.mean - row.true_mean()) >= 0.0999  # some are cut off, not rounded
    }
    assert wrong == set(paper.FOOTNOTES)
    for key, note in paper.FOOTNOTES.items():
        row = paper.MAIN[key[:3]][key[3]]
        stated = [float(number) for number in re.findall(r"\d+\.\d", note)]
        assert stated == [row.mean, round(row.true_mean(), 1)]


def test_the_ablation_ends_where_the_main_table_stands():
    for data_set, metric in paper.HEADLINE.items():
        assert paper.ABLATION[data_set]["SR + CRF + ASC"] == paper.MAIN[metric, data_set, "fcam"]["cam"]


def test_the_numbers_stand_in_the_paper(shared):
    text = (shared / "spec" / "paper.tex").read_text(encoding="utf-8", errors="replace")
    printed = set(re.findall(r"\d+\.\d", text))
    cells = [v for rows in paper.MAIN.values() for row in rows.values() for v in row if v is not None]
    assert len(cells) == 10 * 6 * 3 + 6 * 6
    assert {f"{cell:.1f}" for cell in cells} <= printed
