"""Image ids as paths: which of them stay in the folder that they are taken from."""

from __future__ import annotations

from pathlib import PurePath, PureWindowsPath
from posixpath import normpath


def leads_out(image_id: str) -> bool:
    """Whether the id is absolute, as POSIX or Windows write it, or leaves its folder by `..`; links are not followed."""
    path = PureWindowsPath(image_id)  # it takes the slashes of every system
    # A drive without a root, `C:a.jpg`, is a drive on Windows alone, and elsewhere a name.
    return bool(path.root or PurePath(image_id).drive) or normpath(path.as_posix()).split("/")[0] == ".."
