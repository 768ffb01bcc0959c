"""The files of the page: listed at the start, served by name. No route takes a path."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from whyformer._page.problems import PageProblem

FOLDER = Path(__file__).with_name("static")
REPORT_CSS = Path(__file__).parents[1] / "show" / "report.css"  # the look that static pages share with this one
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page."""

    path: Path
    media_type: str


def list_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """By name; other kinds of files and folders are left out."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in TYPES)
    return {path.name: PageFile(path, TYPES[path.suffix]) for path in (*paths, REPORT_CSS)}


def serve_file(files: dict[str, PageFile], name: str, known: str | None) -> Response:
    """A file by its name; 304 if the browser has it already."""
    if name not in files:
        raise PageProblem("E_PAGE_ROUTE", "There is no such file.")
    content = files[name].path.read_bytes()
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "Cache-Control": "no-cache"}
    if known == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, files[name].media_type)
