"""Draw docs/images/photos.jpg: photos the shipped model never learned from, CAM and F-CAM in the ways of the README.

    python benchmarks/readme_panel.py

The photos come with scikit-image and may be shown: cat (CC0), coffee (CC0), rocket and astronaut (NASA, public domain).
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from skimage import data

import fcam
from fcam import files, panels

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "photos.jpg"
NAMES = ("cat", "coffee", "rocket", "astronaut")
HEIGHT = 200


def main() -> None:
    """One row per photo."""
    localizer = fcam.Localizer(with_cam=True, fill=True, coarse=True, refine=True, grabcut=True, zoom=True)
    rows, captions = [], []
    for name in NAMES:
        found = localizer(Image.fromarray(getattr(data, name)()))
        rows.append(panels.side_by_side(found.photo, found.baseline, found.cam, found.mask, found.boxes))
        captions.append(found.caption)
        print(f"{name}: {found.caption}, boxes {found.boxes.tolist()}, mask {found.mask.mean():.2f}")
    picture = panels.panel(rows, panels.ROW_TITLES, captions, HEIGHT)
    files.write_image(OUT, picture, quality=88)


if __name__ == "__main__":
    main()
