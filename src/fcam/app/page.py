"""The page: gradio components around a `Viewer`, and what keeps the page from asking any other host for anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr

from fcam import __version__
from fcam.app import viewer as screen
from fcam.app.look import METHODS
from fcam.app.viewer import Session, Viewer, ways_here
from fcam.app.words import WELCOME
from fcam.errors import FcamError

# The browser gets the address of the finished file and fetches it, as a click on a link would.
DOWNLOAD = """(file) => {
  if (!file || !file.url) return;
  const link = document.createElement("a");
  link.href = file.url;
  link.download = file.orig_name || "fcam.zip";
  document.body.append(link);
  link.click();
  link.remove();
}"""
QUEUE: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "fcam", "api_visibility": "private"}
"""One thing at a time: the network runs for one tab only, and a tab's clicks are done in their order."""


def looks() -> dict[str, Any]:
    """Theme and style sheet; the fonts are the system's own."""
    theme = gr.themes.Default(
        primary_hue="sky", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    css = resources.files("fcam.app").joinpath("page.css").read_text(encoding="utf-8")
    return {"theme": theme, "css": css}


def build(viewer: Viewer, temporary: Path, source: str = "") -> gr.Blocks:
    """Lay out the page and connect its controls; `temporary` takes files to be saved, `source` names the photos' folder."""
    with gr.Blocks(title="fcam", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        first = Session(model=viewer.models.names[0])
        controls = _layout(viewer, first, source)
        _connect(page, viewer, controls, temporary)
    return page


class Controls:
    """The components that handlers read and write."""

    session: gr.State
    upload: gr.File
    folder: gr.Dropdown
    back: gr.Button
    on: gr.Button
    model: gr.Dropdown
    method: gr.Dropdown
    ways: gr.CheckboxGroup
    shown_class: gr.Dropdown
    headline: gr.HTML
    results: gr.Column
    threshold: gr.Slider
    reset: gr.Button
    rule: gr.Radio
    titles: list[gr.HTML]
    pictures: list[gr.Image]
    details: gr.HTML
    save: gr.Button
    saved: gr.DownloadButton


def _layout(viewer: Viewer, first: Session, source: str) -> Controls:
    c = Controls()
    c.session = gr.State(first)
    gr.HTML(f'<header class="fcam-header"><h1>fcam</h1><small>{__version__}</small></header>', padding=False)
    with gr.Row(elem_id="page"):
        with gr.Column(scale=1, min_width=260, elem_id="choices"):
            _choices(c, viewer, first, source)
        with gr.Column(scale=4, min_width=320, elem_id="screen"):
            c.headline = gr.HTML(WELCOME, elem_id="headline", padding=False)
            with gr.Column(visible=False, elem_id="results") as c.results:
                _results(c, first)
    return c


def _choices(c: Controls, viewer: Viewer, first: Session, source: str) -> None:
    names = list(viewer.photos)
    c.upload = gr.File(label="Photo", file_count="single", type="filepath", height=150, elem_id="upload")
    label = f"or one of {len(names)} in {source}"
    c.folder = gr.Dropdown(names, value=None, label=label, visible=bool(names), elem_id="folder")
    with gr.Row(visible=bool(names)):
        c.back = gr.Button("‹ previous", size="sm", min_width=60, elem_id="back")
        c.on = gr.Button("next ›", size="sm", min_width=60, elem_id="on")
    models = viewer.models.names
    c.model = gr.Dropdown(models, value=first.model, label="Model", visible=len(models) > 1, elem_id="model")
    methods = [(title, name) for name, title in METHODS.items()]
    c.method = gr.Dropdown(
        methods, value=first.method, label="CAM method", filterable=False, elem_id="method"
    )
    c.shown_class = gr.Dropdown([], label="CAM of the class", filterable=False, elem_id="class")
    c.ways = gr.CheckboxGroup(ways_here(), value=list(first.ways), label="Better F-CAM", elem_id="ways")


def _results(c: Controls, first: Session) -> None:
    with gr.Row(elem_id="cut"):
        c.threshold = gr.Slider(
            0,
            0.99,
            value=0.5,
            step=0.01,
            label="Threshold, as a share of the map's maximum",
            buttons=[],
            scale=4,
            min_width=240,
            elem_id="threshold",
        )
        c.rule = gr.Radio(
            ["largest", "all"], value=first.rule, label="Boxes", scale=2, min_width=210, elem_id="rule"
        )
        with gr.Column(scale=1, min_width=150):
            c.reset = gr.Button("Model's threshold", size="sm", elem_id="reset")
            c.save = gr.Button("Save what you see", size="sm", variant="primary", elem_id="save")
    with gr.Row(elem_id="pictures"):
        c.pictures, c.titles = [], []
        for place in range(3):
            with gr.Column(min_width=240):
                c.titles.append(gr.HTML(elem_id=f"title-{place}", padding=False))
                c.pictures.append(_picture(f"picture-{place}"))
    c.details = gr.HTML(elem_id="details", padding=False)
    c.saved = gr.DownloadButton("saved", elem_id="saved", elem_classes="fcam-hidden")


def _picture(name: str) -> gr.Image:
    buttons: Any = ["download", "fullscreen"]  # not the third, which would send the picture to a public site
    return gr.Image(
        format="jpeg", interactive=False, show_label=False, buttons=buttons, min_width=240, elem_id=name
    )


class Handlers:
    """What events call: a session and the values of controls in, the values of components out."""

    def __init__(self, viewer: Viewer, temporary: Path) -> None:
        self.viewer, self.temporary = viewer, temporary

    def draw(self, session: Session) -> tuple[Any, ...]:
        """What changes with every cut."""
        text = screen.headline(session, self.viewer.models)
        return session, text, *screen.titles(session), *screen.pictures(session), screen.details(session)

    def draw_all(self, session: Session) -> tuple[Any, ...]:
        """The same, and the controls that follow the photo."""
        choices, shown = screen.classes(session), session.shown
        cut = gr.skip() if session.cut is None else round(session.cut, 3)
        chosen = gr.Dropdown(choices=choices, value=None if shown is None else shown.class_idx)
        return *self.draw(session), gr.Column(visible=shown is not None), cut, session.method, chosen

    def upload(self, session: Session, path: str | None) -> tuple[Any, ...]:
        """A file was dropped, or taken away; nothing is chosen in the folder any more."""
        viewer = self.viewer
        following = viewer.open(session, path, Path(path).name) if path else viewer.clear(session)
        return *self.draw_all(following), None

    def choose(self, session: Session, name: str | None, step: int) -> tuple[Any, ...]:
        """A photo of the folder was chosen, or one `step` further; what was dropped is put away."""
        following, name = self.viewer.choose(session, name, step)
        return *self.draw_all(following), name, None

    def save(self, session: Session) -> Iterator[str]:
        """Yield the zip's path; gradio takes a copy before this goes on and the zip is gone."""
        with TemporaryDirectory(dir=self.temporary) as folder:
            try:
                yield str(self.viewer.save(session, Path(folder)))
            except FcamError as error:
                raise gr.Error(str(error), print_exception=False) from error


def _connect(page: gr.Blocks, viewer: Viewer, c: Controls, temporary: Path) -> None:
    do = Handlers(viewer, temporary)
    drawn = [c.session, c.headline, *c.titles, *c.pictures, c.details]
    everything: list[Any] = [*drawn, c.results, c.threshold, c.method, c.shown_class]
    shared = {"show_progress": "minimal", **QUEUE}
    for event in (c.upload.upload, c.upload.clear):
        event(do.upload, [c.session, c.upload], [*everything, c.folder], **shared)
    leaf: list[tuple[Any, int]] = [(c.folder.input, 0), (c.back.click, -1), (c.on.click, 1)]
    if viewer.photos:
        leaf.append((page.load, 0))
    for event, step in leaf:
        chosen = [*everything, c.folder, c.upload]
        event(partial(do.choose, step=step), [c.session, c.folder], chosen, **shared)
    c.save.click(do.save, [c.session], [c.saved], **shared).then(None, [c.saved], None, js=DOWNLOAD)

    def on(event: Any, act: Callable[..., Session], *inputs: Any, quick: bool = False) -> None:
        """Connect an event with what it does to the session; quick ones leave the other controls alone."""
        show = do.draw if quick else do.draw_all
        event(
            lambda session, *values: show(act(session, *values)),
            [c.session, *inputs],
            drawn if quick else everything,
            show_progress="hidden" if quick else "minimal",
            trigger_mode="always_last",
            **QUEUE,
        )

    on(c.model.input, viewer.use_model, c.model)
    on(c.ways.input, viewer.use_ways, c.ways)
    on(c.method.input, viewer.use_method, c.method)
    on(c.shown_class.input, viewer.use_class, c.shown_class)
    on(c.reset.click, lambda session: viewer.use_threshold(session, None))
    on(c.threshold.input, viewer.use_threshold, c.threshold, quick=True)
    on(c.rule.input, viewer.use_rule, c.rule)
