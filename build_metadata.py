"""The addresses in the metadata of a build: those of the repository that builds it.

A workflow knows its repository (GITHUB_SERVER_URL, GITHUB_REPOSITORY): links and images of the README then lead to the
files of this version there, so that they work wherever the page is shown. A build elsewhere claims no address.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r'(?<=src=")(?!https?:)|(?<=!\]\()(?!https?:)')
LINK = re.compile(r"(?<=\]\()(?!https?:|#)")


def find_repository() -> str | None:
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else None


def lead_to(repository: str, version: str, text: str) -> str:
    """A page of Markdown with its relative links and images leading to the files of this version."""
    with_images = IMAGE.sub(f"{repository}/raw/v{version}/", text)
    return LINK.sub(f"{repository}/blob/v{version}/", with_images)


def list_urls(repository: str) -> dict[str, str]:
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class Addresses(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text, repository = Path(self.root, "README.md").read_text("utf-8"), find_repository()
        if repository is not None:
            text = lead_to(repository, metadata["version"], text)
            metadata["urls"] = list_urls(repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
