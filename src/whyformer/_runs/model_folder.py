"""Where a run's model is, seen from the folder of the run, so that later commands can open it again.

Only for a model that was opened by an absolute path: plan.json has the name of its folder alone. It is no part of the
plan, so a run that was moved can be resumed.
"""

import os
from pathlib import Path

from whyformer._plain import archive

FOLDER_FILE = "model-folder.txt"


def write_model_folder(source: Path, run: Path) -> None:
    relative = Path(os.path.relpath(source, run.resolve())).as_posix()
    archive.write_file(run / FOLDER_FILE, f"{relative}\n".encode("utf-8", "surrogateescape"))


def read_model_folder(run: Path) -> Path | None:
    """The folder of the model, if the run has noted one."""
    try:
        text = (run / FOLDER_FILE).read_text("utf-8", "surrogateescape").strip()
    except OSError:
        return None
    return Path(os.path.normpath(run.resolve() / text)) if text else None
