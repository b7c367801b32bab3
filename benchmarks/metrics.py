"""Time the metrics beside a straightforward per-threshold OpenCV evaluation, in one run, on the same maps.

    python benchmarks/metrics.py                 # all of it, about three minutes on two cores
    python benchmarks/metrics.py --maps eval.npz # on your own maps: an array `score_maps` (N, 224, 224)

Two peers search contours with OpenCV once per threshold. "loop" then overlaps each threshold's boxes with the
true ones in NumPy. "evaluator" does what the official evaluator does after the search: it joins the boxes of
all thresholds, overlaps them at once, and for each threshold takes the row maxima of the whole table anew and
Python's `max` of the slice, so its cost grows with thresholds times contours. All three must agree exactly.

Two peers count pixels for PxAP, one image at a time. "histograms" is given the map in double precision and the
finished mask, picks the scores of background and object and calls `np.histogram` for each. "evaluator" does what
the official evaluator does with an image: it checks the map, decodes the object's and the ignored region's PNG
(here of the map's size, from memory), resizes, thresholds and joins them, and then does the same. Ours is given
the map in single precision and the finished mask in batches, and checks both.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch

from fcam.metrics import MaxBoxAcc, MaxBoxAccV2, PxAP, best_iou, threshold_grid

SIZE = 224
TAUS = threshold_grid(1000)
EDGES = np.concatenate([TAUS, [1.0, 2.0, 3.0]])
KINDS = ("CAM-like", "sharp")


def make_maps(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Maps (count, 224, 224) float32 in [0, 1]: up-sampled 14x14 blobs, or those broken up by fine noise."""
    rng = np.random.default_rng(seed)
    maps = np.empty((count, SIZE, SIZE), np.float32)
    for i in range(count):
        coarse = cv2.GaussianBlur(rng.random((14, 14)).astype(np.float32) ** 2, (0, 0), 1.5)
        map = cv2.resize(coarse, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        if kind == "sharp":
            noise = cv2.GaussianBlur(rng.random((SIZE, SIZE)).astype(np.float32), (0, 0), 1.5)
            map = (map - map.min()) / np.ptp(map) + 0.8 * (noise - noise.mean()) / noise.std() * 0.25
        maps[i] = ((map - map.min()) / np.ptp(map)).clip(0, 1)
    return maps


def make_boxes(count: int, seed: int = 1) -> list[torch.Tensor]:
    """One to three true boxes for each map."""
    rng = np.random.default_rng(seed)
    sets = (np.sort(rng.integers(0, SIZE, (rng.integers(1, 4), 2, 2)), axis=1) for _ in range(count))
    return [torch.from_numpy(corners.reshape(-1, 4)) for corners in sets]


def contour_boxes(map: np.ndarray, contours: str) -> list[np.ndarray]:
    """The boxes (n, 4) of every threshold, one contour search each."""
    levels = (map.astype(np.float64) * 255).astype(np.uint8)
    height, width = levels.shape
    out = []
    for tau in TAUS:
        _, binary = cv2.threshold(levels, int(tau * levels.max()), 255, cv2.THRESH_BINARY)
        found = cv2.findContours(binary, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[-2]
        if contours == "largest" and found:
            found = [max(found, key=cv2.contourArea)]
        rectangles = [cv2.boundingRect(contour) for contour in found]
        boxes = [(x, y, min(x + w, width - 1), min(y + h, height - 1)) for x, y, w, h in rectangles]
        out.append(np.asarray(boxes or [(0, 0, 0, 0)]))
    return out


def overlap_table(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inclusive overlap (n, m) of boxes (n, 4) and (m, 4)."""
    a, b = a[:, None], b[None]
    lower, upper = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    intersection = np.maximum(upper - lower + 1, 0).prod(-1)
    areas = (a[..., 2:] - a[..., :2] + 1).prod(-1) + (b[..., 2:] - b[..., :2] + 1).prod(-1)
    return intersection / (areas - intersection)


def loop(map: np.ndarray, truth: np.ndarray, contours: str) -> np.ndarray:
    """Best overlap at every threshold, each threshold by itself."""
    return np.array([overlap_table(boxes, truth).max() for boxes in contour_boxes(map, contours)])


def evaluator(map: np.ndarray, truth: np.ndarray, contours: str) -> np.ndarray:
    """Best overlap at every threshold in the official evaluator's order of work."""
    per_threshold = contour_boxes(map, contours)
    table = overlap_table(np.concatenate(per_threshold), truth)
    out, first = [], 0
    for boxes in per_threshold:
        out.append(max(table.max(1)[first : first + len(boxes)]))
        first += len(boxes)
    return np.array(out)


def timed(work: Callable[[], object]) -> tuple[np.ndarray, object]:
    """Return wall time and processor time of all threads of one call, in seconds, and its result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return np.array([time.perf_counter() - wall, time.process_time() - cpu]), result


def in_turns(work: dict[str, Callable[[], object]], repeat: int) -> dict[str, tuple[np.ndarray, object]]:
    """Call each in turns; return the least wall and processor time of each, and its result."""
    calls = {name: [timed(call)] for name, call in work.items()}
    for _ in range(repeat - 1):
        for name, call in work.items():
            calls[name].append(timed(call))
    return {name: (np.min([t for t, _ in turns], axis=0), turns[0][1]) for name, turns in calls.items()}


def report(label: str, times: dict[str, list[np.ndarray]]) -> None:
    """Print means per map and how many times longer each peer takes, by wall clock and by processor time."""
    means = {name: np.mean(found, axis=0) for name, found in times.items()}
    own = means.pop("fcam")
    print(f"{label:22} fcam {1e3 * own[0]:8.3f} ms (cpu {1e3 * own[1]:.3f})")
    for name, (wall, cpu) in means.items():
        ratio = f"{wall / own[0]:6.1f}x by wall clock, {cpu / own[1]:6.1f}x by processor time"
        print(f"{'':22} {name:16} {1e3 * wall:8.2f} ms  {ratio}", flush=True)


def box_metrics(name: str, maps: np.ndarray, boxes: list[torch.Tensor], peers: int, repeat: int) -> None:
    """Time both box metrics on all maps in turns with both peers on some; stop if any overlap differs."""
    tensor = torch.from_numpy(maps)
    for kind in (MaxBoxAcc, MaxBoxAccV2):
        contours = kind().contours
        found = best_iou(tensor, boxes, TAUS, contours)
        times: dict[str, list[np.ndarray]] = {"fcam": [], "loop": [], "evaluator": []}
        for i in np.linspace(0, len(maps) - 1, peers).astype(int):
            work: dict[str, Callable[[], object]] = {"fcam": lambda k=kind: k().update(tensor, boxes)}
            for peer in (loop, evaluator):
                work[peer.__name__] = partial(peer, maps[i], boxes[i].numpy(), contours)
            for peer, (least, result) in in_turns(work, repeat).items():
                times[peer].append(least / len(maps) if peer == "fcam" else least)
                if peer != "fcam" and not np.array_equal(result, found[i]):  # pyright: ignore[reportArgumentType]
                    raise SystemExit(f"map {i} of {name}: the overlaps differ")
        report(f"{name} {kind.__name__}", times)


def make_masks(maps: np.ndarray) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Masks (B, H, W) of 1, 0 and 255 for some ignored pixels; and as PNG files, object and ignored region."""
    rng = np.random.default_rng(2)
    masks, files = np.empty(maps.shape, np.uint8), []
    for i, map in enumerate(maps):
        regions = map > rng.uniform(0.4, 0.8), np.roll(map, SIZE // 2, axis=rng.integers(2)) > 0.9
        masks[i] = np.where(regions[0], 1, np.where(regions[1], 255, 0))
        files.append(tuple(cv2.imencode(".png", region * np.uint8(255))[1] for region in regions))
    return masks, files


def histograms(map: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Histograms (2, 1002) of the scores of one map over background and object."""
    return np.stack([np.histogram(map[mask == label], EDGES)[0] for label in (0, 1)])


def pixel_evaluator(map: np.ndarray, files: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The same from PNG files in memory, with the checks of the official evaluator."""
    if np.isnan(map).any() or (map < 0).any() or (map > 1).any():
        raise ValueError("scores outside [0, 1]")
    grey = [np.asarray(cv2.imdecode(file, cv2.IMREAD_GRAYSCALE)) for file in files]
    truth, ignored = (cv2.resize(g, (SIZE, SIZE), interpolation=cv2.INTER_NEAREST) > 127 for g in grey)
    mask = truth.astype(np.uint8)
    mask[ignored & ~truth] = 255
    return histograms(map, mask)


def pixel_metric(name: str, maps: np.ndarray, repeat: int) -> None:
    """Time PxAP on all maps in turns with both peers on the same; stop if any histogram differs."""
    masks, files = make_masks(maps)
    batch = torch.from_numpy(maps), torch.from_numpy(masks)
    # The official evaluator only takes double precision; converting is not counted as its work.
    wide = maps.astype(np.float64)
    metric = PxAP()
    metric.update(*batch)
    work = {
        "fcam": lambda: PxAP().update(*batch),
        "histograms": lambda: sum(histograms(*pair) for pair in zip(wide, masks, strict=True)),
        "evaluator": lambda: sum(pixel_evaluator(*pair) for pair in zip(wide, files, strict=True)),
    }
    found = in_turns(work, 5 * repeat)
    for peer in ("histograms", "evaluator"):
        if not np.array_equal(found[peer][1], metric.total):  # pyright: ignore[reportArgumentType]
            raise SystemExit(f"the histograms of {name} maps differ")
    report(f"{name} PxAP", {peer: [least / len(maps)] for peer, (least, _) in found.items()})


def whole_split(count: int = 5794, batch: int = 64) -> None:
    """Print the time of a CUB-sized evaluation, maps made beforehand, and the size of the state."""
    maps, boxes = torch.from_numpy(make_maps("CAM-like", 256)), make_boxes(256)
    for kind in (MaxBoxAcc, MaxBoxAccV2):
        metric = kind()

        def evaluate(metric: MaxBoxAcc = metric) -> None:
            for first in range(0, count, batch):
                rows = [i % 256 for i in range(first, min(first + batch, count))]
                metric.update(maps[rows], [boxes[i] for i in rows])
            metric.compute()

        (wall, cpu), _ = timed(evaluate)
        size = metric.total.numel() * metric.total.element_size()
        print(
            f"{count} maps  {kind.__name__:12} {wall:6.1f} s (cpu {cpu:.1f}), state {size / 1e3:.0f} kB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the metrics beside per-threshold OpenCV.")
    parser.add_argument("--maps", type=Path, help=".npz with score_maps (N, 224, 224) float in [0, 1]")
    parser.add_argument("--count", type=int, default=64, help="maps of each kind")
    parser.add_argument("--peers", type=int, default=8, help="maps the slow peers evaluate")
    parser.add_argument("--repeat", type=int, default=2, help="turns on each, of which the quickest counts")
    parser.add_argument("--no-split", action="store_true", help="leave out the CUB-sized evaluation")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    print(f"{len(os.sched_getaffinity(0))} cores, OpenCV {cv2.__version__}, 1000 thresholds, per map")
    if options.maps:
        with np.load(options.maps) as file:
            groups = {"given": file["score_maps"].astype(np.float32)}
    else:
        groups = {kind: make_maps(kind, options.count) for kind in KINDS}
    for name, maps in groups.items():
        box_metrics(name, maps, make_boxes(len(maps)), options.peers, options.repeat)
        pixel_metric(name, maps, options.repeat)
    if not options.no_split:
        whole_split()


if __name__ == "__main__":
    main()
