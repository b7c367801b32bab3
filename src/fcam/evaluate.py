"""Evaluation: a model and a split in, the WSOL benchmark's numbers out, CAM and F-CAM side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.utils.data import Subset

from fcam.data import EvalTransform, LocalizationDataset, open_dataset, splits
from fcam.data.workers import deaths_explained
from fcam.map_files import MapType, check_ids, write_maps
from fcam.model import FCAM
from fcam.precision import dtype_of
from fcam.predict.localizer import Localizer
from fcam.predict.ways import Ways
from fcam.processes import process_state
from fcam.scores import Scorecard
from fcam.split_maps import KINDS, MapBatch, MapOptions, looks_of, maps_of

FLOOR = "center"
"""Kind of map that stands below every table: what is reached without looking at the image."""
ONE_LOOK = Ways()


def evaluate_split(
    model: FCAM,
    dataset: LocalizationDataset,
    kinds: Sequence[str] = KINDS,
    options: MapOptions | None = None,
    save_maps: Path | None = None,
    map_type: MapType = "float16",
    title: str = "evaluate",
    saved: Sequence[str] | None = None,
) -> Scorecard:
    """Score every image of a split; under several processes each takes its share and the states are summed.

    Args:
        dataset: opened with `localization=True` and an `EvalTransform`.
        save_maps: folder for one `.npy` per image and kind, in wsolevaluation's layout.
        map_type: number format of these files; float32 scores exactly as the model does.
        saved: those of `kinds` that files are written of; None takes all.

    Returns:
        the scorecard of the whole split, the same on every process.
    """
    share = _share(dataset)
    batches = maps_of(model, Subset(dataset, share), kinds, options or MapOptions(), title)  # type: ignore[arg-type]
    card = Scorecard(dataset, kinds, device=next(model.parameters()).device)
    return _score(batches, card, save_maps, map_type, saved or kinds)


def _share(dataset: LocalizationDataset) -> range:
    """Places of the images that are this process's."""
    state = process_state()
    return range(state.process_index, len(dataset), state.num_processes)


@deaths_explained()
def _score(
    batches: Iterable[MapBatch],
    card: Scorecard,
    save_maps: Path | None,
    map_type: MapType,
    saved: Sequence[str],
) -> Scorecard:
    for items, maps, logits in batches:
        card.update(maps, logits, items)
        if save_maps is not None:
            write_maps(save_maps, {kind: maps[kind] for kind in saved}, items["image_id"], map_type)
    return card


def has_truth_for(metric: str, root: str) -> bool:
    """Whether `val` of a data set holds what `metric` needs: images at all, boxes, or masks."""
    if "val" not in splits(root):
        return False
    val = open_dataset(root, "val", localization=True)
    if metric == "top1":
        return len(val) > 0
    return val.has_masks if metric == "pxap" else val.has_boxes


def evaluate(
    model: FCAM,
    root: str,
    split: str = "test",
    size: int = 224,
    options: MapOptions | None = None,
    carry_from: str = "val",
    save_maps: Path | None = None,
    map_type: MapType = "float16",
    ways: Ways = ONE_LOOK,
) -> dict[str, Any]:
    """Score a split, and carry the best thresholds of another one over to it.

    Args:
        root: data set.
        split: split to report on.
        size: side that images are resized to.
        carry_from: split whose thresholds are carried over; they also become the model's own, for prediction.
        save_maps: as in `evaluate_split`, for `split` alone; `map_type` likewise.
        ways: better maps than one look gives, as one more row, cut for a further look where one look is best on `carry_from`.

    Returns:
        the content of `metrics.json`.

    Raises:
        FcamError: at once, when a map to be saved would lie outside `save_maps` by its image's id.
    """
    ways.check()  # before minutes of other looks
    options, known, folders = options or MapOptions(), splits(root), {split: save_maps}
    opened = {
        name: open_dataset(root, name, transform=EvalTransform(size), localization=True)
        for name in dict.fromkeys((carry_from, split))
        if name == split or name in known
    }
    if save_maps is not None:
        check_ids(opened[split].image_ids)  # before hours of evaluation
    cards = {
        name: evaluate_split(
            model,
            dataset,
            _kinds(model, ways.product or name == carry_from),
            options,
            folders.get(name),
            map_type,
            f"evaluate {name}",
            saved=_kinds(model, ways.product),
        )
        for name, dataset in opened.items()
    }
    report = _report(model, cards, split, carry_from)
    if not ways.product:
        report["maps"].pop("product", None)
    if ways.further:
        cards = _look_again(model, opened, size, options, ways, folders, map_type)
        report["maps"] |= _report(model, cards, split, carry_from)["maps"]
    report["maps"][FLOOR] = report["maps"].pop(FLOOR)  # below all others
    return report


def _kinds(model: FCAM, product: bool) -> tuple[str, ...]:
    """Kinds of map that one look gives; whoever is not shown the product needs its best cut on `val` for `fcam predict`."""
    if not model.metadata.get("decoder_trained", True):
        return KINDS[0], FLOOR
    return (*KINDS, "product", FLOOR) if product else (*KINDS, FLOOR)


def _report(model: FCAM, cards: Mapping[str, Scorecard], split: str, carry_from: str) -> dict[str, Any]:
    """What a pass over the splits says of `split`; thresholds that are carried become the model's own."""
    carried = cards.get(carry_from)
    if carried is not None:
        noted = model.metadata.get("thresholds")
        known = noted if isinstance(noted, dict) else {}  # whoever edited the card
        # Without boxes and masks there is none, and those from before stay.
        found = {kind: thresholds for kind, thresholds in carried.thresholds().items() if thresholds}
        model.metadata["thresholds"] = {**known, **found}
    return cards[split].report(split, carried if carry_from != split else None)


def _look_again(
    model: FCAM,
    opened: Mapping[str, LocalizationDataset],
    size: int,
    options: MapOptions,
    ways: Ways,
    folders: Mapping[str, Path | None],
    map_type: MapType,
) -> dict[str, Scorecard]:
    """Score splits looked at in other ways; a further look is taken where one look is cut best, by the model's own word."""
    device = next(model.parameters()).device
    localizer = Localizer(
        model,
        size=size,
        batch_size=options.batch_size,
        dtype=dtype_of(options.precision, device),
        cam_method=options.method,
        **asdict(ways),
    )
    return {
        name: _score(
            looks_of(localizer, dataset, _share(dataset), options, f"evaluate {name}, {ways.kind}"),
            Scorecard(dataset, (ways.kind,), device),
            folders.get(name),
            map_type,
            (ways.kind,),
        )
        for name, dataset in opened.items()
    }
