"""The page of a report: the template filled in with escaped text, tables, figures and pictures."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import Any

import torch
import yaml
from PIL import Image

from fcam import files
from fcam.cams import METHODS
from fcam.environment import environment
from fcam.model import FCAM
from fcam.paper_tables import OTHER_FOOTNOTES
from fcam.report import figures, gallery, gallery_data, tables
from fcam.report.collect import Finished, Group, training_seconds
from fcam.report.curves import Survey
from fcam.run import config_to_dict
from fcam.scores import TITLES, images_scored
from fcam.tables import formats

PANEL_SIDE = 224


@dataclass
class Look:
    """What was seen of one group when its maps were computed again."""

    group: Group
    seen: list[tuple[Finished, Survey]] = field(default_factory=list)
    samples: str = ""
    failures: str = ""
    index: dict[str, Any] | None = None
    chunks: list[list[Any]] = field(default_factory=list)


def picture_rows(run: Finished, model: FCAM, seen: Survey, places: Sequence[int]) -> str:
    """HTML of some images of a split, given by position: a row of pictures each, with its overlaps in words."""
    if not places or "fcam" not in seen.maps:
        return ""
    rows = gallery.sample_rows(model, seen.dataset, places, run.config, seen.thresholds, seen.measure)
    parts = []
    for place, row in zip(places, rows, strict=True):
        label = seen.dataset.classes[seen.dataset.labels[place]]
        guess = int(seen.predicted[place])
        names = seen.dataset.classes
        right = "classified right" if guess == seen.dataset.labels[place] else f"taken for {names[guess]}"
        overlap = ", ".join(
            f"{TITLES[kind]} {seen.iou(kind)[place]:.2f}" for kind in seen.maps if seen.counted[place]
        )
        text = f"{label}, {right}. Overlap ({seen.measure}): {overlap or 'no truth for this image'}."
        cells = "".join(
            f"<div>{_picture(picture, f'{name}: {label}')}<small>{html.escape(name)}</small></div>"
            for name, picture in zip(gallery.TITLES, row, strict=True)
        )
        parts.append(
            f'<figure class="row"><div class="strip">{cells}</div><figcaption>{html.escape(text)}</figcaption></figure>'
        )
    return "".join(parts)


def _picture(image: Image.Image, alt: str) -> str:
    image = image.convert("RGB")
    image.thumbnail((PANEL_SIDE, PANEL_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80, optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    size = f'width="{image.width}" height="{image.height}"'
    return f'<img loading="lazy" {size} alt="{html.escape(alt, quote=True)}" src="data:image/jpeg;base64,{data}">'


def fill(
    split: str,
    looks: Sequence[Look],
    made: Sequence[tables.Table],
    written: Mapping[str, str],
    notes: Sequence[str],
    title: str = "",
    lead: str = "",
) -> str:
    """The whole page as HTML.

    Args:
        split: the split reported on.
        looks: one per group.
        made: the tables.
        written: names and texts of the files that the page offers for download.
        notes: sentences about what is missing.
        title: by default the data sets' names.
        lead: a paragraph that comes first.
    """
    groups = [look.group for look in looks]
    data_sets = list(dict.fromkeys(own.first.data_set for own in groups))
    name = title or f"CAM and F-CAM on {', '.join(data_sets)}"
    indices = [look.index for look in looks if look.index is not None]
    package = resources.files("fcam.report")
    values = {
        "title": html.escape(name),
        "style": package.joinpath("page.css").read_text(encoding="utf-8"),
        "script": package.joinpath("page.js").read_text(encoding="utf-8") if indices else "",
        "lead": f"<p>{html.escape(lead)}</p>" if lead else "",
        "summary": html.escape(_summary(split, groups)),
        "notes": "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes),
        "downloads": _downloads(written),
        "tables": "".join(f"<h3>{html.escape(t.title)}</h3>{formats.as_html(t)}" for t in made),
        "paper": _paper_notes(made),
        "figures": "".join(_figures(look) for look in looks),
        "samples": _section(looks, "samples"),
        "failures": _section(looks, "failures"),
        "gallery": "" if indices else " hidden",
        "settings": "".join(_settings(own) for own in groups),
        "environment": html.escape(_environment(groups)),
        "data": _data(looks) if indices else "",
    }
    template = Template(package.joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(values)


def _summary(split: str, groups: Sequence[Group]) -> str:
    """What was compared, on what and by which rule: for a reader who sees nothing but this page."""
    runs = [run for own in groups for run in own.runs]
    sets = {run.data_set: f"{run.data_set} ({images_scored(run.report)})" for run in runs}
    methods = _listed(METHODS[own.first.config.method].title for own in groups)
    backbones = _listed(own.first.config.model.backbone for own in groups)
    seeds = _listed(sorted({run.config.seed for run in runs}))
    return (
        f"Scored on the {split} split of {', '.join(sets.values())}. Runs: {len(runs)}. Backbone: {backbones}. Seeds: {seeds}. "
        f"Compared are the classifier’s own map of the true class, made by {methods} and called CAM below; the F-CAM map that "
        "a decoder learned from it without masks or boxes; and a Gaussian in the centre of the image, which looks at nothing. "
        "Every number names the rule by which its threshold was chosen: on the reported split itself, or on val."
    )


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, dict.fromkeys(names)))


def _paper_notes(made: Sequence[tables.Table]) -> str:
    beside = any(
        isinstance(c, tables.Number) and c.paper is not None for t in made for row in t.rows for c in row
    )
    if not beside:
        return "<p>The paper prints no numbers for these data sets and backbones.</p>"
    items = "".join(f"<li>{html.escape(note)}</li>" for note in OTHER_FOOTNOTES)
    return (
        "<p>“paper” is the number printed by Belharbi et al., F-CAM, WACV 2022: single runs without a spread, at the threshold "
        "that is best on test. Where the paper’s text contradicts its own tables:</p>"
        f"<ul>{items}</ul>"
    )


def _figures(look: Look) -> str:
    charts = figures.of_group(look.group, [seen for _, seen in look.seen])
    if not charts:
        return ""
    drawn = "".join(figures.as_svg(chart) for chart in charts)
    return f'<h3>{html.escape(look.group.label)}</h3><div class="charts">{drawn}</div>'


def _section(looks: Sequence[Look], part: str) -> str:
    shown = [look for look in looks if getattr(look, part)]
    if not shown:
        return "<p>No pictures: the maps were not computed again for this page.</p>"
    return "".join(f"<h3>{html.escape(look.group.label)}</h3>{getattr(look, part)}" for look in shown)


def _settings(own: Group) -> str:
    text = yaml.safe_dump(config_to_dict(own.first.config), sort_keys=False, allow_unicode=True)
    name = own.first.config.name or "no recipe"
    changed = ", ".join(f"{k} = {v}" for k, v in own.changed.items()) or "nothing"
    line = f"{own.label}: recipe {name}, changed: {changed}; seeds {', '.join(str(r.config.seed) for r in own.runs)}"
    return f"<details><summary>{html.escape(line)}</summary><pre>{html.escape(text)}</pre></details>"


def _environment(groups: Sequence[Group]) -> str:
    """Machines and versions of training, as far as the runs recorded them, and of this page."""
    runs = [run for own in groups for run in own.runs]
    trained = dict.fromkeys(
        _words(facts) for run in runs if (facts := run.model.get("metadata", {}).get("environment"))
    )
    total = tables.duration(training_seconds(runs))
    here = _words(environment(torch.device("cuda" if torch.cuda.is_available() else "cpu"), "no"))
    where = f" on {'; '.join(trained)}" if trained else "; the runs did not record their machine"
    return f"Training took {total} in all{where}. This page was made with {here}."


def _words(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _downloads(written: Mapping[str, str]) -> str:
    links = []
    for name, text in written.items():
        if text:
            data = base64.b64encode(files.utf8(text)).decode("ascii")
            links.append(
                f'<a download="{name}" href="data:text/plain;charset=utf-8;base64,{data}">{name}</a>'
            )
    return " ".join(links)


def _data(looks: Sequence[Look]) -> str:
    """Scripts of type JSON: the index, and the pictures in chunks that are parsed when they come into sight."""
    shown = [look for look in looks if look.index is not None]
    index = {
        "side": gallery_data.SIDE,
        "steps": gallery_data.STEPS,
        "chunk": gallery_data.CHUNK,
        "colors": gallery_data.colors(),
        "titles": TITLES,
        "galleries": [look.index for look in shown],
    }
    parts = [_json_script("gallery-index", index)]
    for number, look in enumerate(shown):
        parts += [_json_script(f"gallery-{number}-{i}", chunk) for i, chunk in enumerate(look.chunks)]
    return "\n".join(parts)


def _json_script(name: str, value: Any) -> str:
    """JSON in which the page's parser sees no tag."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{name}">{text}</script>'
