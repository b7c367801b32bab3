"""The viewer without its page: what is looked at, drawn, said, saved and refused."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fcam import cams
from fcam.app import viewer as screen
from fcam.app.command import folder_photos
from fcam.app.keep import OUTPUTS
from fcam.app.look import METHODS, Models, class_map, look
from fcam.app.view import view
from fcam.app.viewer import Session, Viewer
from fcam.errors import FcamError
from fcam.predict.localizer import Localizer
from fcam.predict.output import load_predictions, name_outputs, save
from fcam.predict.prediction import BoxRule, cut
from fcam.predict.ways import Ways
from fcam.registry import create_model

CLASSES = [f"class <{i}>" for i in range(7)]


@pytest.fixture(scope="module")
def viewer(model: str, photo: Path) -> Viewer:
    Image.new("RGB", (50, 40), "white").save(photo.parent / "white.png")
    (photo.parent / "notes.jpg").write_text("no picture")
    photos = folder_photos(photo.parent)
    return Viewer(Models([model], max_pixels=1_000_000), photos)


@pytest.fixture
def session(viewer: Viewer, photo: Path) -> Session:
    return viewer.open(Session(model=viewer.models.names[0]), photo, "bird.png")


def shown(session: Session) -> screen.Shown:
    assert session.problem == ""
    assert session.shown is not None
    return session.shown


def test_f_cam_is_what_predict_says(session: Session, model: str, photo: Path) -> None:
    expected, seen = Localizer(model)(photo), shown(session).fcam.full
    np.testing.assert_allclose(seen.cam, expected.cam, atol=1e-6)
    np.testing.assert_array_equal(seen.mask, expected.mask)
    np.testing.assert_array_equal(seen.boxes, expected.boxes)
    assert (seen.label, seen.threshold) == (expected.label, 0.4)
    assert seen.score == pytest.approx(expected.score, abs=1e-6)


def test_the_five_most_probable_classes_are_listed_best_first(session: Session) -> None:
    ranking = shown(session).seen.ranking
    assert len(ranking) == 5
    assert [row.score for row in ranking] == sorted((row.score for row in ranking), reverse=True)
    assert ranking[0].label == shown(session).fcam.full.label
    choices = screen.classes(session)
    assert choices[0][0].endswith("(predicted)")
    assert [value for _, value in choices] == [row.class_idx for row in ranking]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_map_that_fcam_cam_gives(
    method: str, viewer: Viewer, session: Session
) -> None:
    localizer, seen = viewer.models[session.model], shown(session).seen
    other = seen.ranking[2].class_idx
    found = class_map(seen, other, method)
    images = seen.pixels[None].float() / 255
    raw = cams.cam(localizer.model, images, other, method)
    expected = torch.nn.functional.interpolate(raw[None], size=(180, 240), mode="bilinear", antialias=True)
    np.testing.assert_allclose(found.cam, expected[0, 0].clamp(0, 1).numpy(), atol=2e-3)
    assert found.class_idx == other
    assert found.score == pytest.approx(seen.ranking[2].score)


def test_a_threshold_moves_both_cuts_and_does_not_run_the_network(
    viewer: Viewer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("the network ran")

    monkeypatch.setattr(screen, "look", never)
    monkeypatch.setattr(screen, "class_map", never)
    low, high = viewer.use_threshold(session, 0.05), viewer.use_threshold(session, 0.9)
    for key in ("fcam", "cam"):
        few, many = getattr(shown(high), key).full, getattr(shown(low), key).full
        assert few.mask.sum() < many.mask.sum()
        np.testing.assert_array_equal(few.mask, getattr(shown(session), key).full.at(0.9).mask)
    assert screen.details(low) != screen.details(high)
    assert [a.tobytes() for a in screen.pictures(low) if a] != [
        a.tobytes() for a in screen.pictures(high) if a
    ]
    back = viewer.use_threshold(high, None)
    assert back.cut == 0.4
    np.testing.assert_array_equal(shown(back).fcam.full.mask, shown(session).fcam.full.mask)


def test_all_boxes_follow_the_rule(viewer: Viewer, session: Session) -> None:
    high = viewer.use_threshold(session, 0.8)
    every = viewer.use_rule(high, "all")
    cam = shown(every).cam.full
    np.testing.assert_array_equal(cam.boxes, cut(cam.cam, 0.8, "all")[1])
    assert len(shown(high).cam.full.boxes) == 1
    assert len(shown(every).cam.full.boxes) >= 1
    assert "boxes" in screen.details(every) or "1 box" in screen.details(every)


@pytest.mark.parametrize(
    "ways",
    [("flip",), ("refine",), ("grabcut",), ("zoom",), ("flip", "refine", "zoom"), ("coarse", "refine")],
)
@pytest.mark.parametrize("rule", ["largest", "all"])
def test_better_maps_are_those_of_predict_with_the_same_options(
    viewer: Viewer, session: Session, model: str, photo: Path, ways: tuple[str, ...], rule: BoxRule
) -> None:
    other = shown(session).seen.ranking[1].class_idx
    changed = viewer.use_rule(viewer.use_ways(viewer.use_class(session, other), ways), rule)
    expected = Localizer(model, boxes=rule, **dict.fromkeys(ways, True))(photo)  # type: ignore[arg-type]
    np.testing.assert_allclose(shown(changed).fcam.full.cam, expected.cam, atol=1e-6)
    np.testing.assert_array_equal(shown(changed).fcam.full.boxes, expected.boxes)
    assert shown(changed).class_idx == other, "the CAM on screen stays that of the chosen class"
    plain = viewer.use_ways(changed, ())
    np.testing.assert_allclose(shown(plain).fcam.full.cam, shown(session).fcam.full.cam, atol=1e-6)
    if "flip" in ways:
        assert not np.allclose(shown(plain).fcam.full.cam, expected.cam, atol=1e-3)


def test_a_coarse_look_waits_for_one_that_decides(viewer: Viewer, session: Session) -> None:
    waiting = viewer.use_ways(session, ["coarse"])
    assert not waiting.problem
    np.testing.assert_array_equal(shown(waiting).fcam.full.cam, shown(session).fcam.full.cam)
    assert viewer.use_ways(session, ["coarse", "refine"]).chosen == Ways(coarse=True, refine=True)


@pytest.mark.parametrize("way", ["product", "fill"])
def test_f_cam_is_that_of_the_class_where_its_cam_has_a_part_in_it(
    viewer: Viewer, session: Session, model: str, photo: Path, way: str
) -> None:
    on = {"product": way == "product", "fill": way == "fill"}
    seen = viewer.use_ways(session, [way])
    first, second = (row.class_idx for row in shown(session).seen.ranking[:2])
    assert shown(seen).class_idx == first
    for index, now in ((first, seen), (second, viewer.use_class(seen, second))):
        expected = Localizer(model, **on)(photo, class_idx=index)
        np.testing.assert_allclose(shown(now).fcam.full.cam, expected.cam, atol=1e-6)
        assert shown(now).class_idx == shown(now).fcam.full.class_idx == index
        assert now.cut == (0.5 if way == "product" else 0.4), "the model names none for products"
        part = " of" if way == "product" else ", filled for"
        assert f"F-CAM{part} class &lt;{index}&gt;" in screen.titles(now)[2]
        seen = now
    mirrored = viewer.use_ways(seen, [way, "flip"])
    assert shown(mirrored).class_idx == second
    both = Localizer(model, **on, flip=True)(photo, class_idx=second)
    np.testing.assert_allclose(shown(mirrored).fcam.full.cam, both.cam, atol=1e-6)
    plain = viewer.use_ways(mirrored, [])
    assert screen.titles(plain)[2].endswith(">F-CAM</h2>")
    assert plain.cut == 0.4


def test_grabcut_is_offered_where_there_is_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dict(screen.ways_here()).keys() == set(screen.WAYS.values())
    monkeypatch.setattr(screen, "has_opencv", lambda: False)
    assert set(screen.WAYS) - {way for _, way in screen.ways_here()} == {"grabcut"}


def test_better_maps_are_saved_with_what_made_them(viewer: Viewer, session: Session, tmp_path: Path) -> None:
    path = viewer.save(viewer.use_ways(session, ["flip", "zoom"]), tmp_path)
    with zipfile.ZipFile(path) as packed:
        settings = json.loads(packed.read("predictions.json"))["settings"]
    assert (settings["flip"], settings["refine"], settings["zoom"]) == (True, False, True)


def test_the_cut_stays_for_the_next_photo_and_goes_with_the_model(
    viewer: Viewer, session: Session, photo: Path
) -> None:
    moved = viewer.use_threshold(session, 0.7)
    again = viewer.open(moved, photo, "again.png")
    assert shown(again).fcam.full.threshold == 0.7
    assert viewer.use_model(again, session.model).cut == 0.4
    assert shown(viewer.use_model(again, session.model)).seen.name == "again.png"


def test_method_and_class_change_the_cam_alone(viewer: Viewer, session: Session) -> None:
    other = viewer.use_class(viewer.use_method(session, "layercam"), shown(session).seen.ranking[1].class_idx)
    assert shown(other).fcam.full is shown(session).fcam.full or np.array_equal(
        shown(other).fcam.full.cam, shown(session).fcam.full.cam
    )
    assert not np.allclose(shown(other).cam.full.cam, shown(session).cam.full.cam)
    assert "LayerCAM of class &lt;" in screen.details(other)


def test_what_comes_from_files_and_models_is_escaped(viewer: Viewer, photo: Path) -> None:
    session = viewer.open(Session(model=viewer.models.names[0]), photo, "<img src=x>.png")
    page = screen.headline(session, viewer.models) + screen.details(session)
    assert "<img" not in page
    assert "class <" not in page
    broken = viewer.open(session, photo.parent / "notes.jpg", "<b>.jpg")
    assert "&lt;b&gt;.jpg cannot be shown" in screen.headline(broken, viewer.models)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("a letter"), "not an image of a known format"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.mkdir(), "folder"),
        (lambda path: Image.new("L", (1200, 1000)).save(path, "PNG"), "1200000 pixels"),
        (lambda path: path.write_bytes(jpeg()[:400]), "truncated"),
    ],
)
def test_files_that_cannot_be_shown_are_one_sentence_without_their_path(
    make, words: str, viewer: Viewer, session: Session, tmp_path: Path
) -> None:
    make(tmp_path / "x.jpg")
    after = viewer.open(session, tmp_path / "x.jpg", "holiday.jpg")
    assert after.shown is None
    assert words in after.problem
    assert "holiday.jpg" in after.problem
    assert str(tmp_path) not in after.problem
    assert screen.pictures(after) == (None, None, None)
    assert 'role="alert"' in screen.headline(after, viewer.models)
    for act in (lambda s: viewer.use_threshold(s, 0.3), lambda s: viewer.use_rule(s, "all")):
        assert act(after).shown is None
    assert viewer.use_method(viewer.use_model(after, session.model), "layercam").shown is None


def jpeg() -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((80, 60), 60).convert("RGB").save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize("mode", ["grey16", "cmyk", "turned", "clear"])
def test_photos_of_every_kind_are_shown(mode: str, viewer: Viewer, session: Session, tmp_path: Path) -> None:
    path, image = tmp_path / "photo", Image.effect_noise((64, 48), 50)
    if mode == "grey16":
        Image.fromarray(np.asarray(image).astype(np.uint16) * 200).save(path, "PNG")
    elif mode == "cmyk":
        image.convert("CMYK").save(path, "JPEG")
    elif mode == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        image.convert("RGB").save(path, "JPEG", exif=exif)
    else:
        image.convert("RGBA").save(path, "PNG")
    after = viewer.open(session, path, path.name)
    assert shown(after).fcam.full.size == ((48, 64) if mode == "turned" else (64, 48))


def test_large_photos_are_shown_small_and_counted_large(session: Session) -> None:
    prediction = shown(session).fcam.full
    small = view(prediction, longest=120)
    assert small.small.size == (120, 90)
    assert small.full is prediction
    np.testing.assert_allclose(small.small.boxes, prediction.boxes / 2, atol=0.5)
    moved = small.at(0.8, "all")
    np.testing.assert_array_equal(moved.full.mask, prediction.at(0.8).mask)
    assert moved.small.mask.mean() == pytest.approx(moved.full.mask.mean(), abs=0.02)
    assert moved.small.overlay().size == (120, 90)


def test_leafing_through_the_folder_goes_round(viewer: Viewer) -> None:
    session = Session(model=viewer.models.names[0])
    session, name = viewer.choose(session, None)
    assert name == "bird.png"
    session, name = viewer.choose(session, name, 1)
    assert name == "notes.jpg"
    assert "not an image" in session.problem
    session, name = viewer.choose(session, name, 1)
    assert name == "white.png"
    assert session.problem == ""
    assert viewer.choose(session, name, 1)[1] == "bird.png"
    assert viewer.choose(session, "bird.png", -1)[1] == "white.png"
    assert viewer.choose(session, "../secret.png")[1] == "bird.png", "only what was offered is opened"


def test_saved_files_are_those_of_predict(
    viewer: Viewer, session: Session, model: str, photo: Path, tmp_path: Path
) -> None:
    session = viewer.use_rule(viewer.use_threshold(session, 0.6), "all")
    path = viewer.save(session, tmp_path)
    assert path.name == "bird-fcam.zip"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with zipfile.ZipFile(path) as packed:
        packed.extractall(tmp_path / "out")
    whole = load_predictions(tmp_path / "out")
    (row,) = whole["predictions"]
    prediction = Localizer(model, 0.6, boxes="all")(photo)
    (named,) = name_outputs([Path("bird.png")])
    expected = save(prediction, named, tmp_path / "direct", OUTPUTS)
    assert row == json.loads(json.dumps(expected))
    for kind in ("masks", "heatmaps", "overlays"):
        ours, theirs = (
            Image.open(base / row["files"][kind]) for base in (tmp_path / "out", tmp_path / "direct")
        )
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert (tmp_path / "out" / row["files"]["panels"]).is_file()
    assert whole["settings"]["threshold"] == 0.6
    assert whole["settings"]["shown_cam_method"] == "cam"
    assert whole["classes"] == CLASSES


@pytest.mark.parametrize("name", ["\udcff.jpg", "é" * 120 + ".jpg"])
def test_any_name_of_a_file_can_be_shown_and_saved(
    viewer: Viewer, photo: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(photo, tmp_path / "in" / name)
    ((key, path),) = folder_photos(tmp_path / "in").items()
    assert path == tmp_path / "in" / name
    key.encode()  # the page is UTF-8
    session = viewer.open(Session(model=viewer.models.names[0]), path, key)
    saved = viewer.save(session, tmp_path)
    assert zipfile.is_zipfile(saved)


def test_photos_whose_names_look_alike_are_told_apart(photo: Path, tmp_path: Path) -> None:
    for name in ("\udcff.jpg", "\\udcff.jpg"):
        shutil.copy(photo, tmp_path / name)
    assert len(folder_photos(tmp_path)) == 2


def test_nothing_on_screen_cannot_be_saved(viewer: Viewer, tmp_path: Path) -> None:
    with pytest.raises(FcamError, match="nothing to save"):
        viewer.save(Session(), tmp_path)


def test_a_model_is_loaded_once_and_only_when_it_is_needed(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    from fcam.app import look as module

    class Counted(Localizer):
        def __init__(self, name: str, **options: object) -> None:
            loaded.append(name)
            super().__init__(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "Localizer", Counted)
    models = Models([model, model + "/", model])
    assert models.names == [model, model + "/"]
    models.check()
    assert loaded == [model]
    assert models[model] is models[model]
    assert models[model + "/"] is not models[model]
    assert loaded == [model, model + "/"]
    with pytest.raises(FcamError, match="no model 'other'"):
        _ = models["other"]


def test_an_untrained_decoder_is_pointed_out(photo: Path, tmp_path: Path) -> None:
    net = create_model("timm:test_resnet", 3, pretrained=False)
    net.metadata["decoder_trained"] = False
    net.save_pretrained(tmp_path / "m")
    models = Models([str(tmp_path / "m")])
    session = Viewer(models).open(Session(model=models.names[0]), photo, "bird.png")
    assert "never trained" in screen.headline(session, models)
    assert look(models[models.names[0]], Image.new("RGB", (40, 40)), "x", "m").ranking[0].label in (
        "0",
        "1",
        "2",
    )
