"""What the page says in words and numbers, as HTML; whatever comes from files and models is escaped."""

from __future__ import annotations

from html import escape

from fcam.app.look import METHODS, Look
from fcam.predict.prediction import Prediction
from fcam.predict.ways import Ways

SHOWN_BOXES = 12

WELCOME = (
    '<div class="fcam-note"><b>Choose a photo.</b> The classifier names what it sees; its CAM shows what decided that, '
    "F-CAM shows the whole object at the photo's own resolution.</div>"
)


def problem(sentence: str) -> str:
    """A mistake, told where the result would be."""
    return f'<div class="fcam-note fcam-problem" id="problem" role="alert">{escape(sentence)}</div>'


def headline(seen: Look, untrained: bool = False) -> str:
    """Label, score and what was looked at."""
    best, (width, height) = seen.ranking[0], seen.prediction.size
    about = escape(f"{seen.name}, {width}×{height} pixels, seen by {seen.model}")
    title = f'<b id="label">{escape(best.label)}</b> <span id="score">{100 * best.score:.1f} %</span>'
    remark = "The decoder of this model was never trained: its F-CAM means nothing." if untrained else ""
    note = f'<div class="fcam-note fcam-problem">{remark}</div>' if remark else ""
    return f'<div class="fcam-headline"><div>{title}</div><small>{about}</small></div>{note}'


def titles(cam: Prediction, method: str, ways: Ways) -> tuple[str, str, str]:
    """What stands above the three pictures, and what the class of the second has to do with the third."""
    part = " of" if ways.product else ", filled for" if ways.fill else ""
    fcam = f"F-CAM{part} {cam.label}" if part else "F-CAM"
    names = ("Mask and boxes", f"{METHODS[method]} of {cam.label}", fcam)
    first, second, third = (f'<h2 class="fcam-title">{escape(name)}</h2>' for name in names)
    return first, second, third


def details(seen: Look, fcam: Prediction, cam: Prediction, method: str) -> str:
    """The most probable classes, and what was cut out of both maps."""
    maps = {"fcam": ("F-CAM", fcam), "cam": (f"{METHODS[method]} of {cam.label}", cam)}
    cells = [_cut(key, title, prediction) for key, (title, prediction) in maps.items()]
    return f'<div class="fcam-details">{_ranking(seen)}{"".join(cells)}</div>'


def _ranking(seen: Look) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th><td>{100 * row.score:.1f} %</td>'
        f'<td class="fcam-bar"><span style="width:{100 * row.score:.1f}%"></span></td></tr>'
        for row in seen.ranking
    )
    return (
        f'<section><h3>Most probable classes</h3><table id="ranking"><tbody>{rows}</tbody></table></section>'
    )


def _cut(key: str, title: str, prediction: Prediction) -> str:
    """Mask share and boxes of one map; `key` begins the ids."""
    share, boxes = 100 * float(prediction.mask.mean()), prediction.boxes.tolist()
    head = "".join(f'<th scope="col">{name}</th>' for name in ("x0", "y0", "x1", "y1", "width", "height"))
    rows = "".join(
        "<tr>" + "".join(f"<td>{value}</td>" for value in (*box, box[2] - box[0], box[3] - box[1])) + "</tr>"
        for box in boxes[:SHOWN_BOXES]
    )
    more = len(boxes) - SHOWN_BOXES
    rest = f"<p>and {more} more; the saved file has all</p>" if more > 0 else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{rest}" if boxes else ""
    count = "no box: the map is empty" if not boxes else "1 box" if len(boxes) == 1 else f"{len(boxes)} boxes"
    return (
        f'<section id="{key}-cut" data-boxes="{len(boxes)}"><h3>{escape(title)}</h3>'
        f'<p>mask <b id="{key}-share">{share:.1f} %</b> of the photo, {count}</p>{table}</section>'
    )
