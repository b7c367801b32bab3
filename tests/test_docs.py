"""The documentation keeps up with the code: links, verbs, options, error sentences, and a site that builds by itself."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from fcam.cli import VERBS, main

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
FENCE = re.compile(r"^(`{3,})(\w*)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"--[a-z][\w.-]*")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `fcam ...` line of the page's fenced blocks, and of inline code that begins so."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for _, _, block in FENCE.findall(text)]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *INLINE.findall(FENCE.sub("", text))]:
        if line.strip().startswith("fcam "):
            try:
                yield shlex.split(line, comments=True)[1:]
            except ValueError as error:
                raise AssertionError(f"{name_of(page)}: {line!r} is no command line: {error}") from error


@functools.cache
def options_of(*words: str) -> frozenset[str]:
    """What the help of a verb names; the parser itself writes it."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("COLUMNS", "200")
        with contextlib.suppress(SystemExit):
            main([*words, "--help"])
    return frozenset(OPTION.findall(re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())))


def parser_words(words: list[str]) -> tuple[str, ...]:
    """The part of a command line that chooses the parser."""
    if words[0] == "train":
        return ("train", "cub-resnet50-cam")
    return tuple(words[:2]) if words[0] == "data" else (words[0],)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page):
    broken = []
    for target in LINK.findall(prose(page)):
        path = target.partition("#")[0]
        if path and "://" not in path and not path.startswith("mailto:"):
            broken += [] if (page.parent / path).exists() else [target]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_verbs_exist(page):
    named = {words[0] for words in commands(page) if words and re.fullmatch(r"[a-z-]+", words[0])}
    assert named <= set(VERBS)


def test_options_of_commands_exist():
    wrong = []
    for page in PAGES:
        for words in commands(page):
            given = {word.partition("=")[0] for word in words if word.startswith("--")} - {
                "--help",
                "--version",
            }
            if given and words[0] in VERBS:
                wrong += [f"{name_of(page)}: {o}" for o in given - options_of(*parser_words(words))]
    assert not wrong


def test_options_in_the_text_exist():
    """Inline code such as `--seeds.erosion 1` names an option of some verb."""
    known = (
        options_of("data", "check") | options_of("data", "prepare") | options_of("train", "cub-resnet50-cam")
    )
    for verb in VERBS.keys() - {"data", "train", "list"}:
        known |= options_of(verb)
    wrong = []
    for page in PAGES:
        for code in INLINE.findall(prose(page)):
            if code.startswith("--"):
                wrong += [f"{name_of(page)}: {o}" for o in set(OPTION.findall(code)) - known - {"--help"}]
    assert not wrong


def test_an_option_that_does_not_exist_is_noticed():
    assert "--seeds.n-minus" in options_of("train", "cub-resnet50-cam")
    assert "--seeds.nminus" not in options_of("train", "cub-resnet50-cam")


@functools.cache
def strings() -> tuple[list[tuple[list[str], str]], str]:
    """The package's strings: the texts of each between its values, with a pattern for the whole; and all texts at length."""
    patterns: dict[str, list[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else None for p in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node.value]
            else:
                continue
            pattern = "".join("(.+?)" if part is None else re.escape(str(part)) for part in parts)
            patterns[pattern] = [str(part) for part in parts if part is not None]
    literals = {text for texts in patterns.values() for text in texts}
    return [(texts, pattern) for pattern, texts in patterns.items()], "\n".join(literals)


def is_raised(sentence: str) -> bool:
    """Whether the package can say this: as part of a string, or as a string with values in it, after a path or not.

    Three tenths of it at least must be words of the string, or values that are strings of the package: a string of values
    alone, "{path}: {reason}", fits anything.
    """
    patterns, literals = strings()
    if sentence in literals:
        return True
    for texts, pattern in patterns:
        if len("".join(texts)) < 15 or not all(text in sentence for text in texts):
            continue
        if match := re.fullmatch(rf"(?:\S+: )?{pattern}", sentence, re.DOTALL):
            known = "".join(
                [*texts, *(value for value in match.groups() if len(value) >= 10 and value in literals)]
            )
            if len(known) >= 0.3 * len(sentence):
                return True
    return False


def quoted() -> list[str]:
    """The sentences of the troubleshooting page: lines of its text blocks, and code that begins a table's row."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    lines = [line for _, kind, block in FENCE.findall(text) if kind == "text" for line in block.splitlines()]
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    return [line.removeprefix("fcam: ") for line in lines] + rows


def test_quoted_errors_are_still_raised():
    assert len(quoted()) > 40
    assert [sentence for sentence in quoted() if not is_raised(sentence)] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "there is no data set in data/brids: it is not a folder; look again",
        "the image data/a.jpg is broken: it is truncated",
        "it is cut short",
    ],
)
def test_sentences_that_nobody_raises_are_noticed(sentence):
    assert not is_raised(sentence)


class Fetched(HTMLParser):
    """Addresses that a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        names = {"link": ("href",), "a": (), "form": ()}.get(tag, ("src", "srcset", "data", "poster", "href"))
        self.addresses += [given[name] or "" for name in names if name in given]
        self.addresses += re.findall(r"url\(([^)]+)\)", given.get("style") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if not all(find_spec(name) for name in ("mkdocs", "material", "mkdocstrings", "latex2mathml")):
        if os.environ.get("CI"):
            pytest.fail('CI is set but the site cannot be built: pip install ".[docs]"')
        pytest.skip('the site needs pip install "fcam[docs]"')
    out = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of its successor
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr
    return out


def test_every_page_is_in_the_site(site):
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in DOCS}
    assert all((site / page).is_file() for page in pages)
    start = (site / "index.html").read_text(encoding="utf-8")
    assert [str(page) for page in pages if f'href="{page}"' not in start and page.name != "index.html"] == []


def test_the_site_fetches_nothing_from_other_hosts(site):
    foreign = []
    for page in site.rglob("*.html"):
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        foreign += [f"{page.name}: {a}" for a in parser.addresses if re.match(r"\s*(\w+:)?//", a)]
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        foreign += [
            f"{sheet.name}: {a}"
            for a in re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")]+)", text)
        ]
    assert not foreign


def test_equations_and_docstrings_are_drawn(site):
    seeds = (site / "method" / "seeds.html").read_text(encoding="utf-8")
    assert seeds.count("<math") == 2
    assert "\\mathbb" not in re.sub(r"<annotation.*?</annotation>", "", seeds, flags=re.DOTALL)
    losses = (site / "api" / "losses.html").read_text(encoding="utf-8")
    assert 'id="fcam.seeds.sample_seeds"' in losses
    assert "at the resolution of the loss" in losses


def test_help_of_the_command_line_is_what_the_tests_read(capsys):
    assert main(["train", "--help"]) == 0
    assert "--seeds.n-minus" in capsys.readouterr().out
