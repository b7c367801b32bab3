"""Saving what is on screen: the files and the list that `fcam predict` writes, for one photo, in a zip."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from fcam.app.look import Look
from fcam.errors import escaped
from fcam.files import write_bytes
from fcam.predict.command import PredictConfig, settings_of
from fcam.predict.output import Journal, Outputs, joined, name_outputs, save
from fcam.predict.prediction import Prediction

OUTPUTS = Outputs(overlays=True, masks=True, heatmaps=8, panels=True)


def write_zip(folder: Path, seen: Look, fcam: Prediction, cam: Prediction, method: str) -> Path:
    """Write overlay, mask, heat map, panel and `predictions.json` of one photo into a zip in `folder`; its path.

    `fcam` and `cam` as cut on screen, at the photo's own size. Raises `FcamError` when it cannot be written.
    """
    prediction = dataclasses.replace(fcam, baseline=cam.cam)
    (named,) = name_outputs([Path(escaped(seen.name))])
    settings = settings_of(PredictConfig((seen.name,), model=seen.model), seen.localizer)
    settings |= {"threshold": prediction.threshold, "boxes": prediction.box_rule, "panels": OUTPUTS.panels}
    settings |= {"shown_cam_method": method, "shown_cam_class": cam.label}
    with TemporaryDirectory(dir=folder) as inner:
        out = Path(inner)
        journal = Journal(out, settings, resume=False)
        journal.add(save(prediction, named, out, OUTPUTS))
        journal.close([named.path], {"classes": seen.localizer.classes, "interrupted": False})
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as packed:  # pictures are compressed already
            for file in sorted(path for path in out.rglob("*") if path.is_file()):
                packed.write(file, file.relative_to(out).as_posix())
    target = folder / (joined(Path(named.name).name, "-fcam") + ".zip")
    write_bytes(target, stream.getvalue())
    return target
