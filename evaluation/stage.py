"""Prepare the data of the evaluations: python evaluation/stage.py --data DATA [pets] [movies] [hatexplain] [sst2]

DATA has the folders oxford_pets, eraser_movies, hatexplain, sst2, minilm-l6-sst2 and bert-tiny-toxicity. What the
evaluations need is copied to evaluation/data, which git ignores: the held-out photos of training/pets/fold.txt with
their trimaps, the test documents of ERASER movies, the test posts of HateXplain, the development sentences of SST-2,
and the models that are not bundled. Then: python evaluation/run.py NAME
"""

import argparse
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
FOLD = HERE.parent / "training" / "pets" / "fold.txt"


def stage_pets(data: Path, out: Path) -> None:
    held_out = [line.split()[0] for line in FOLD.read_text().splitlines() if line.endswith(" held-out")]
    for folder, archive, suffix in (("images", "images.zip", "jpg"), ("masks", "trimaps.zip", "png")):
        with zipfile.ZipFile(data / "oxford_pets" / archive) as packed:
            for name in held_out:
                class_folder = out / folder / name.rsplit("_", 1)[0]
                class_folder.mkdir(parents=True, exist_ok=True)
                (class_folder / f"{name}.{suffix}").write_bytes(packed.read(f"{name}.{suffix}"))


def stage_movies(data: Path, out: Path) -> None:
    with tarfile.open(data / "eraser_movies" / "movies.tar.gz") as packed:
        rows = read_member(packed, "movies/test.jsonl").decode().splitlines()
        names = {piece["docid"] for row in rows for group in json.loads(row)["evidences"] for piece in group}
        (out / "movies" / "docs").mkdir(parents=True)
        (out / "movies" / "test.jsonl").write_text("\n".join(rows) + "\n")
        for name in sorted(names):
            (out / "movies" / "docs" / name).write_bytes(read_member(packed, f"movies/docs/{name}"))
    stage_model(data, "minilm-l6-sst2")


def stage_model(data: Path, name: str) -> None:
    shutil.copytree(data / name, HERE / "data" / "models" / name, dirs_exist_ok=True)


def read_member(packed: tarfile.TarFile, name: str) -> bytes:
    file = packed.extractfile(name)
    assert file is not None
    return file.read()


def stage_hatexplain(data: Path, out: Path) -> None:
    shutil.copy(data / "hatexplain" / "test.jsonl.gz", out / "test.jsonl.gz")
    stage_model(data, "bert-tiny-toxicity")


def stage_sst2(data: Path, out: Path) -> None:
    shutil.copy(data / "sst2" / "dev.tsv", out / "dev.tsv")
    stage_model(data, "minilm-l6-sst2")


STAGES = {"pets": stage_pets, "movies": stage_movies, "hatexplain": stage_hatexplain, "sst2": stage_sst2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("names", nargs="*", default=list(STAGES))
    arguments = parser.parse_args()
    for name in arguments.names:
        out = HERE / "data" / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        STAGES[name](arguments.data, out)
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
        print(f"{out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
