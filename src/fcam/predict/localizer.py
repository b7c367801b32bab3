"""From a photo to its label, map, mask and boxes: `Localizer`, the friendly face of a trained model.

The network sees the photo resized to a square, as the benchmark does; its foreground map S² is resized once,
bilinearly, to the photo's own size, and mask and boxes are cut out of that. Asked to, it then looks at what it found once
more, closer.
"""

from __future__ import annotations

import copy
import operator
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, SupportsIndex, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fcam import shipped
from fcam.boxes import as_share
from fcam.cams.closed_form import CLOSED_FORMS
from fcam.data.images import MAX_PIXELS, open_image
from fcam.errors import FcamError
from fcam.folding import folded
from fcam.model import FCAM
from fcam.model_card import card_size, card_threshold
from fcam.precision import fast_dtype
from fcam.predict.closer import look_into, put_in, windows
from fcam.predict.network import Network, NetworkOutput, Seen
from fcam.predict.photo import Photo, as_image, is_one
from fcam.predict.prediction import BoxRule, Prediction, cut, to_size
from fcam.predict.ways import Ways

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
__all__ = ["Localizer", "NetworkOutput", "Photo", "Prediction", "as_image", "fast_dtype"]


class Localizer:
    """Photos in, predictions out: `Localizer("runs/birds")("photo.jpg").overlay()`.

    Args:
        model: an `FCAM`, or where one is stored: a run, a model's folder, a repo id; "lite0", which comes with the
            package, knows the ImageNet classes. An `FCAM` that is passed is put into eval mode and stays on its
            device unless `device` says otherwise.
        threshold: share of the map's maximum, [0, 1), at which mask and boxes are cut; None takes the one that the model's
            card holds for maps of this kind, which maximised MaxBoxAcc on `val`, or 0.5.
        size: side of the square the network sees; None takes the model's training size, or 224.
        batch_size: photos per forward pass; None takes 8 on a CPU, 32 on a GPU.
        dtype: torch.float32 or torch.bfloat16 (autocast); None takes `fast_dtype`. Maps are always float32.
        device: None keeps a given model where it is, and puts a loaded one on the GPU where there is one.
        boxes: "largest" gives at most one box per photo, "all" one per connected component.
        keep_aspect: let the network see the photo's shape, with the same number of pixels as the square and
            sides that are multiples of 32, instead of the square it was trained on.
        flip: also show the network the mirrored photo and take the mean of both maps and of both logits, for twice the work.
        refine: let pixels of one colour agree on whether they are object, `fcam.refine.refine`, for sharper masks.
        grabcut: cut the object out anew along the photo's edges, `fcam.grabcut.grabcut`; needs the extra "grabcut".
        zoom: look a second time at what the first look has found, cut out of the photo with a margin: better maps of
            objects that are small in the photo, for up to twice the work (more where `boxes` is "all").
        product: multiply the map by the CAM of the predicted class, or of `class_idx`: √(S · C), a map of that class. It has
            its own threshold in the model's card.
        coarse: also look at the photo at half the side, which shows objects whole, and let `product`, `fill`, `refine` or
            `grabcut` decide about what only that look finds, for a quarter more work.
        fill: raise the map where that CAM is strong, S^(1 - 0.8 C): gaps in an object that the decoder does not know close.
        with_cam: also return the classifier's own CAM of the predicted class, as `Prediction.baseline`.
        cam_method: closed-form method of that CAM; None takes the one the model learned from, or "cam".
        max_pixels: photos above this are refused before they are decoded; None for no limit.
        classifier: what `FCAM.from_pretrained` needs to load a model made from somebody's own code.
    """

    def __init__(
        self,
        model: FCAM | str | os.PathLike[str] = shipped.DEFAULT,
        threshold: float | None = None,
        size: int | None = None,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        *,
        boxes: BoxRule = "largest",
        keep_aspect: bool = False,
        flip: bool = False,
        refine: bool = False,
        grabcut: bool = False,
        zoom: bool = False,
        product: bool = False,
        fill: bool = False,
        coarse: bool = False,
        with_cam: bool = False,
        cam_method: str | None = None,
        max_pixels: int | None = MAX_PIXELS,
        classifier: nn.Module | str | None = None,
    ) -> None:
        loaded = isinstance(model, str | os.PathLike)
        if not loaded and not hasattr(model, "metadata"):  # whatever does what an FCAM model does
            raise FcamError(
                f"a Localizer needs a saved model's folder or an FCAM model, got {type(model).__name__}; "
                "fcam.attach puts a decoder on a classifier"
            )
        self.model = (
            FCAM.from_pretrained(os.fspath(model), classifier)
            if isinstance(model, str | os.PathLike)
            else model
        )
        if loaded and device is None and torch.cuda.is_available():
            device = "cuda"
        if device is not None:
            _move(self.model, device)
        # pyright knows no overload for it; torch lays convolution weights out as the kernels want them
        cast(Any, self.model).to(memory_format=torch.channels_last)
        self.model.eval()
        card = self.model.metadata
        if card.get("decoder_trained") is False:
            warnings.warn("the decoder of this model was never trained: its maps mean nothing", stacklevel=2)
        self.device = next(self.model.parameters()).device
        self.dtype = fast_dtype(self.device) if dtype is None else dtype
        self.classes = self.model.classes
        self.ways = Ways(
            product=product, fill=fill, coarse=coarse, flip=flip, refine=refine, grabcut=grabcut, zoom=zoom
        )
        self._asked = None if threshold is None else as_share(threshold)
        self.first_cut, self.threshold = self._cuts()
        self.size = card_size(card, model if loaded else "the model") if size is None else size
        self.batch_size = (32 if self.device.type == "cuda" else 8) if batch_size is None else batch_size
        self.box_rule: BoxRule = boxes
        self.keep_aspect, self.with_cam, self.max_pixels = keep_aspect, with_cam, max_pixels
        self.cam_method = cam_method or str(card.get("method", "cam"))
        self._check()
        self.size, self.batch_size = int(self.size), int(self.batch_size)
        # A model that was passed may be trained on; only one that nobody else holds is fixed for good.
        module = self._folded() if loaded else self.model
        variant = str(card.get("variant", "published"))
        self.network = Network(self.model, module, self.device, self.dtype, self.cam_method, variant)

    def _cuts(self) -> tuple[float, float]:
        """Where a map is cut for a further look, and where in the end: where it was asked for, or where the card says."""
        if self._asked is not None:
            return self._asked, self._asked
        card = self.model.metadata
        first = card_threshold(card, self.ways.base)
        return first, card_threshold(card, self.ways.kind, first)

    def _folded(self) -> nn.Module:
        example = torch.zeros(1, 3, self.size, self.size, device=self.device)
        return folded(self.model, example.contiguous(memory_format=torch.channels_last))

    def _check(self) -> None:
        if not isinstance(self.size, Integral) or self.size < 32:
            raise FcamError(
                f"size is {self.size}, but it is the side of a square in whole pixels, at least 32; 224 is usual"
            )
        if not isinstance(self.batch_size, Integral) or self.batch_size < 1:
            raise FcamError(f"batch_size is {self.batch_size}; take 1 or more")
        if self.max_pixels is not None and not (isinstance(self.max_pixels, Real) and self.max_pixels >= 1):
            raise FcamError(f"max_pixels is {self.max_pixels!r}; take 1 or more, or None for no limit")
        if self.dtype not in DTYPES:
            raise FcamError(f"dtype is {self.dtype!r}; take torch.float32 or torch.bfloat16")
        if (self.with_cam or self.ways.of_class) and self.cam_method not in CLOSED_FORMS:
            raise FcamError(f"cam_method is {self.cam_method!r}; take one of {', '.join(CLOSED_FORMS)}")
        self.ways.check()
        if self.box_rule not in ("largest", "all"):
            raise FcamError(f"boxes is {self.box_rule!r}; take 'largest' or 'all'")

    def _class(self, class_idx: SupportsIndex) -> int:
        """The number of a class of this model, given as any integer, an array's or tensor's included."""
        count = self.model.classifier.num_classes
        try:
            index = -1 if isinstance(class_idx, bool) else operator.index(class_idx)
        except TypeError:
            index = -1
        if not 0 <= index < count:
            raise FcamError(f"class_idx is {class_idx!r}, but this model's classes are 0 to {count - 1}")
        return index

    @overload
    def __call__(self, photos: Photo, class_idx: SupportsIndex | None = None) -> Prediction: ...
    @overload
    def __call__(
        self, photos: Iterable[Photo], class_idx: SupportsIndex | None = None
    ) -> list[Prediction]: ...
    def __call__(
        self, photos: Photo | Iterable[Photo], class_idx: SupportsIndex | None = None
    ) -> Prediction | list[Prediction]:
        """Localize one photo, or several: a `Prediction`, or a list of them in the order of the photos.

        A photo is a path (turned upright by its EXIF tag), a PIL image, a uint8 array (H, W, 3), or a uint8
        tensor (3, H, W). Label, score, the classifier's own CAM and, with `product` or `fill`, the map are those of the most
        probable class, or of `class_idx`. Raises `FcamError` for a photo that cannot be used (`predict_files` skips those)
        and for a class that there is not.
        """
        if is_one(photos) or not isinstance(photos, Iterable):  # what is no photo is named by `open`
            return next(self.stream([cast(Photo, photos)], class_idx))
        return list(self.stream(cast(Iterable[Photo], photos), class_idx))

    def stream(self, photos: Iterable[Photo], class_idx: SupportsIndex | None = None) -> Iterator[Prediction]:
        """Localize photos one batch at a time, holding no more than a batch in memory; order is kept."""
        index = None if class_idx is None else self._class(class_idx)
        if is_one(photos) or not isinstance(photos, Iterable):
            raise FcamError(
                f"stream takes several photos, got one {type(photos).__name__}; pass a list of it"
            )
        batch: list[tuple[Image.Image, str | None, Tensor]] = []
        for photo in photos:
            image = self.open(photo)
            source = os.fspath(photo) if isinstance(photo, str | os.PathLike) else None
            pixels = self.prepare(image)
            if batch and (len(batch) == self.batch_size or batch[0][2].shape != pixels.shape):
                yield from self._run(batch, index)
                batch = []
            batch.append((image, source, pixels))
        if batch:
            yield from self._run(batch, index)

    def _run(
        self, batch: list[tuple[Image.Image, str | None, Tensor]], class_idx: int | None
    ) -> Iterator[Prediction]:
        images, sources, pixels = zip(*batch, strict=True)
        classes = None if class_idx is None else torch.full((len(batch),), class_idx)
        outputs = self.look(images, torch.stack(pixels), classes)
        for image, source, output in zip(images, sources, outputs, strict=True):
            yield self.finish(image, output, source)

    def open(self, photo: Photo) -> Image.Image:
        """Return a photo of any accepted kind as a PIL RGB image; raises `FcamError` with what is wrong."""
        if isinstance(photo, str | os.PathLike):
            return open_image(photo, exif=True, max_pixels=self.max_pixels)
        return as_image(photo)

    def prepare(self, photo: Image.Image) -> Tensor:
        """Resize an RGB photo to what the network sees: uint8 (3, h, w), Pillow's antialiased bilinear."""
        small = photo.resize(self.network_size(photo.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1)

    def network_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return (width, height) that the network sees of a photo of `size` (width, height)."""
        if not self.keep_aspect:
            return self.size, self.size
        shape = (size[0] / size[1]) ** 0.5
        # The long side is bounded, so that an extreme panorama costs no more than other photos.
        sides = (min(self.size * s, self.size * 4) for s in (shape, 1 / shape))
        width, height = (max(32, round(side / 32) * 32) for side in sides)
        return width, height

    def using(self, *, boxes: BoxRule, ways: Ways) -> Localizer:
        """Return a localizer that looks in other ways with the same network, and cuts where the model says for them."""
        other = copy.copy(self)
        other.box_rule, other.ways = boxes, ways
        other.first_cut, other.threshold = other._cuts()
        other._check()
        return other

    def see(self, images: Tensor, classes: Tensor | None = None) -> Seen:
        """Say what the network sees in a batch, uint8 (B, 3, h, w) as `prepare` makes them, without a closer look.

        `classes` (B,) are those whose CAM `product` and `fill` take; None takes the most probable ones.
        """
        return self.network.see(images, self.ways, self.first_cut, classes)

    @torch.inference_mode()
    def infer(self, images: Tensor, classes: Tensor | None = None) -> list[NetworkOutput]:
        """Say of each of the images what the network sees in it, of its most probable class or of `classes`; on the CPU."""
        logits, maps, top = self.see(images, classes)
        probable = self.model.classifier.probabilities(logits)
        index = probable.argmax(1) if classes is None else classes.to(self.device)
        scores = probable.gather(1, index[:, None])[:, 0]
        maps = maps.cpu()
        baselines: Tensor | list[None] = [None] * len(images)
        if self.with_cam:
            baselines = self.network.class_maps(images, top, index).cpu()
        return [
            NetworkOutput(one, score, maps[i], baselines[i])
            for i, (one, score) in enumerate(zip(index.tolist(), scores.tolist(), strict=True))
        ]

    def look(
        self, photos: Sequence[Image.Image], images: Tensor, classes: Tensor | None = None
    ) -> list[NetworkOutput]:
        """Run the network on RGB photos, with `zoom` on parts of them too; `images` (B, 3, h, w) come from `prepare`."""
        return self.look_closer(photos, self.infer(images, classes))

    def look_closer(
        self, photos: Sequence[Image.Image], outputs: Sequence[NetworkOutput]
    ) -> list[NetworkOutput]:
        """With `zoom`, add to each output what the network sees in windows around what it found; otherwise nothing."""
        if not self.ways.zoom:
            return list(outputs)
        places = [
            windows(output.map, photo.size, self.first_cut, self.box_rule)
            for photo, output in zip(photos, outputs, strict=True)
        ]
        classes = torch.tensor([output.class_idx for output in outputs])
        seen = look_into(
            photos,
            places,
            self.prepare,
            lambda batch, owners: self.see(batch, classes[owners]).maps.cpu(),
            self.batch_size,
        )
        return [output._replace(closer=closer) for output, closer in zip(outputs, seen, strict=True)]

    def map_of(self, size: tuple[int, int], output: NetworkOutput) -> NDArray[np.float32]:
        """Bring the map of the network's output, and what it saw closer, to a photo's size (width, height); (H, W)."""
        cam = to_size(output.map, size)
        return put_in(cam, output.closer, self.first_cut) if output.closer else cam

    def finish(self, photo: Image.Image, output: NetworkOutput, source: str | None = None) -> Prediction:
        """Bring the network's output to the photo's size and cut mask and boxes out of it.

        Raises `FcamError` when the network returned values that are not finite.
        """
        maps = (output.map, *(closer.map for closer in output.closer))
        if not (np.isfinite(output.score) and all(bool(map.isfinite().all()) for map in maps)):
            raise FcamError("the network's output is not finite; try dtype float32, or check the weights")
        cam = self.map_of(photo.size, output)
        mask, boxes = cut(cam, self.threshold, self.box_rule)
        return Prediction(
            label=self.classes[output.class_idx] if self.classes else str(output.class_idx),
            class_idx=output.class_idx,
            score=output.score,
            cam=cam,
            mask=mask,
            boxes=boxes,
            threshold=self.threshold,
            size=photo.size,
            photo=photo,
            box_rule=self.box_rule,
            baseline=None if output.baseline is None else to_size(output.baseline, photo.size),
            source=source,
        )


def _move(model: nn.Module, device: str | torch.device) -> None:
    try:
        model.to(device)
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # an unknown name, or no such device in this build or machine
        reason = str(error).partition("\n")[0]
        raise FcamError(f"device {device} cannot be used ({reason}); take cpu or cuda") from error
