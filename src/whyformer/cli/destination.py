"""Check where a result is to be saved, before anything runs."""

import glob
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from whyformer._plain.paths import IMAGE_SUFFIXES, find_url
from whyformer.cli.gathering import TEXT_SUFFIXES, is_folder_or_pattern
from whyformer.errors import OutputError

FILE_SUFFIXES = (".html", ".htm", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".pdf", ".svg", ".tex", ".safetensors")


def check_out_file(
    out: Path | None, inputs: list[str] | None, formats: Mapping[str, Callable[..., bytes] | None]
) -> None:
    """Refuse an unknown format, a file that cannot be written, and a file that is one of the inputs."""
    from whyformer._plain.archive import suffix_of

    if out is None:
        return
    refuse_url(out)
    try:
        if out.is_dir():
            raise OutputError(f"Cannot write {str(out)!r}: it is a folder. Name a file in it.")
        suffix_of(out, formats)
        if not out.parent.exists():
            raise OutputError(f"Cannot write {str(out)!r}: there is no folder {str(out.parent)!r}. Make it.")
        refuse_readonly(out, out.parent)
        if any(is_same_file(out, word) for word in inputs or []):
            raise OutputError(f"-o {out} would overwrite the input. Choose another name.")
    except (OSError, ValueError) as error:  # a name that is too long, or contains NUL
        raise make_path_error(out, error) from None


def check_out_folder(out: Path | None) -> None:
    """Refuse the name of a file, and a folder that cannot be made or written to."""
    if out is None:
        return
    refuse_url(out)
    try:
        if out.exists() and not out.is_dir():
            raise OutputError(f"-o must be a folder; {str(out)!r} is a file.")
        if not out.exists() and out.suffix.lower() in (*FILE_SUFFIXES, *IMAGE_SUFFIXES, *TEXT_SUFFIXES):
            raise OutputError(
                f"-o must be a folder, but {str(out)!r} looks like a file. The folder will hold rows, tables and a "
                f"report; name it, for instance, {str(out.with_suffix(''))!r}."
            )
        refuse_readonly(out, next(folder for folder in (out, *out.parents) if folder.exists()))
    except (OSError, ValueError) as error:
        raise make_path_error(out, error) from None


def refuse_url(out: Path) -> None:
    if (url := find_url(out)) is not None:
        raise OutputError(f"-o {url} is a URL; results are written to this machine. Write a file, then upload it.")


def refuse_readonly(out: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise OutputError(f"Cannot write {str(out)!r}: {str(folder)!r} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"Cannot write {str(out)!r}: no permission to write to {str(folder)!r}.")


def make_path_error(out: Path, error: OSError | ValueError) -> OutputError:
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(f"Cannot write {str(out)!r}: {reason.lower()}.")


def is_same_file(out: Path, word: str) -> bool:
    """Whether a word of the command line names this file: itself, its folder, or a pattern that it matches."""
    if not out.exists():
        return os.path.abspath(out) == os.path.abspath(word)
    if not is_folder_or_pattern(word):
        return os.path.exists(word) and os.path.samefile(out, word)
    if os.path.isdir(word):
        return os.path.samefile(out.parent, word) and out.suffix.lower() in (*IMAGE_SUFFIXES, *TEXT_SUFFIXES)
    return any(os.path.samefile(out, file) for file in glob.iglob(word, recursive=True))
