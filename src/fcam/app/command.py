"""`fcam app`: its arguments, and the life of its server."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tyro.conf import UseAppendAction

from fcam import shipped
from fcam.app.look import Models
from fcam.data.find import find_images
from fcam.data.images import MAX_PIXELS
from fcam.errors import FcamError, escaped

DEFAULT_MODELS: tuple[str, ...] = (shipped.DEFAULT,)
OLDEST_GRADIO = 6
LARGEST_UPLOAD = "1gb"
SESSIONS = 50
"""Browser tabs whose photo is remembered; each holds one photo and its maps."""


@dataclass(frozen=True)
class AppConfig:
    """Look at photos in the browser: CAM and F-CAM side by side, with a threshold that mask and boxes follow.

    The page is served to this machine only, unless --host says otherwise, and asks no other host for anything.
    Ctrl-C ends it.
    """

    model: UseAppendAction[tuple[str, ...]] = ()
    """A run's folder, a model's folder, a Hugging Face repo id, or lite0, which comes with the package (the default);
    give it several times to choose between models on the page."""
    photos: Path | None = None
    """Folder whose photos (searched recursively) can be chosen on the page."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets every machine in the network use the page, without a password."""
    port: int = 7860
    """Port to listen on."""
    open: bool = False
    """Open the page in the browser."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; default: the GPU where there is one."""
    classifier: str = ""
    """module.path:factory that builds the classifier, for a model made from your own code."""
    max_megapixels: float = MAX_PIXELS / 1e6
    """Larger photos are refused before they are decoded."""


def run_app(config: AppConfig) -> int:
    """Serve the page until Ctrl-C, which ends in KeyboardInterrupt as in every verb.

    Raises `FcamError` before anything is served: no gradio, no such model or folder, a port in use.
    """
    check_gradio()
    if not 0 < config.max_megapixels < math.inf:
        raise FcamError(f"--max-megapixels is {config.max_megapixels}; take a number above 0")
    photos = folder_photos(config.photos)
    check_address(config.host, config.port)
    models = Models(
        config.model or DEFAULT_MODELS,
        device=config.device,
        classifier=config.classifier,
        max_pixels=round(config.max_megapixels * 1e6),
    )
    models.check()
    with TemporaryDirectory(prefix="fcam-app-") as folder, _environment(config.host, folder), _terminated():
        return _serve(config, models, photos, Path(folder, "saved"))


def check_gradio() -> None:
    """Raise `FcamError` when the extra is not installed, or too old."""
    if find_spec("gradio") is None:
        raise FcamError('fcam app needs gradio, which is not installed; pip install "fcam[app]"')
    found = version("gradio")
    if int(found.split(".")[0]) < OLDEST_GRADIO:
        raise FcamError(
            f"fcam app needs gradio {OLDEST_GRADIO} or newer, {found} is installed; pip install -U gradio"
        )


def folder_photos(folder: Path | None) -> dict[str, Path]:
    """Return the photos below a folder by their path in it, which the page can show; raises `FcamError` when there is none."""
    if folder is None:
        return {}
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise FcamError(f"--photos {folder} {what}; name a folder of photos")
    found, problems = find_images(folder)
    if not found:
        raise FcamError(f"--photos {folder}: {problems[0].reason if problems else 'the folder is empty'}")
    names = [escaped(path.relative_to(folder).as_posix()) for path in found]
    used = Counter(names)
    return {
        name if used[name] == 1 else f"{name} ({number})": path
        for number, (name, path) in enumerate(zip(names, found, strict=True), 1)
    }


def check_address(host: str, port: int) -> None:
    """Raise `FcamError` when nothing can listen on this address."""
    if not 1 <= port <= 65535:
        raise FcamError(f"--port is {port}, but ports are 1 to 65535; 7860 is usual")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if (
                os.name == "posix"
            ):  # a port that was given back a moment ago is free; elsewhere this takes used ones
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FcamError(
            f"cannot listen on {host} port {port}: {reason.lower()}; choose another --port or --host"
        ) from error


def _serve(config: AppConfig, models: Models, photos: dict[str, Path], folder: Path) -> int:
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from fcam.app.offline import OwnHostOnly, allowed_hosts
    from fcam.app.page import build, looks
    from fcam.app.viewer import Viewer

    folder.mkdir()
    source = str(config.photos.name or config.photos) if config.photos else ""
    page = build(Viewer(models, photos), folder, source)
    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts(config.host)),
        Middleware(OwnHostOnly),
    ]
    try:
        _, url, _ = page.launch(
            server_name=config.host,
            server_port=config.port,
            inbrowser=config.open,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            max_file_size=LARGEST_UPLOAD,
            state_session_capacity=SESSIONS,
            app_kwargs={"middleware": guards, "docs_url": None, "redoc_url": None, "openapi_url": None},
            footer_links=[],
            **looks(),
        )
        print(f"fcam app: {url} (Ctrl-C ends it)", flush=True)
        threading.Event().wait()
    except OSError as error:  # somebody else took the port since it was looked at
        raise FcamError(f"cannot listen on {config.host} port {config.port}: {error}") from error
    finally:
        page.close(verbose=False)
    return 0


@contextmanager
def _environment(host: str, folder: str) -> Iterator[None]:
    """Tell gradio where temporary files go, to be silent, and to reach its own server without a proxy."""
    local = ",".join(
        filter(None, (os.environ.get("no_proxy"), os.environ.get("NO_PROXY"), "localhost", host))
    )
    wanted = {
        "GRADIO_TEMP_DIR": os.path.join(folder, "shown"),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": local,
        "no_proxy": local,
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM end the server as orderly as Ctrl-C, with its own exit code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
