"""The web page: a handful of files, each at its own path, read once."""

from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, Response

FOLDER = Path(__file__).parent.parent / "web"
SCRIPTS = ("app", "api", "markdown", "settings", "store")
FILES = {
    "/": ("index.html", "text/html"),
    "/app.css": ("app.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
}  # path: (file, type)


def add_page(app: FastAPI) -> None:
    """Serve the page's files, and nothing else of their folder."""
    for path, (name, media) in FILES.items():
        app.add_api_route(path, _file((FOLDER / name).read_bytes(), media), include_in_schema=False)


def _file(content: bytes, media: str) -> Callable[[], Response]:
    def send() -> Response:
        return Response(content, media_type=f"{media}; charset=utf-8")

    return send
