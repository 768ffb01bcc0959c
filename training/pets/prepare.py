"""Packs what training needs into one folder: every photo, squared, its breed and side of the fold, and the teacher.

    python training/pets/prepare.py --data DATA/oxford_pets --teacher DATA/tinyvit-5m-in22k/model.safetensors --out OUT

`--fold` also writes fold.txt anew: the held-out photos, every fifth in the order of the sorted names, and the training
photos that are left out because they show the same picture as a held-out one. The folder written holds photos of
others: it travels to the GPU and is never committed.
"""

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np
from fold import FOLD, breed_of, breeds_of_fold, read_fold
from PIL import Image

SAME_PICTURE = 0.95  # correlation of 16 x 16 grey thumbnails; above it by eye: the same photograph, cut-out or burst


def photos(data: Path) -> dict[str, Image.Image]:
    with zipfile.ZipFile(data / "images.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        return {name.removesuffix(".jpg"): Image.open(io.BytesIO(archive.read(name))).convert("RGB") for name in names}


def write_fold(pictures: dict[str, Image.Image]) -> None:
    names = sorted(pictures)
    held_out, training = names[::5], [name for index, name in enumerate(names) if index % 5]
    likeness = _thumbnails(pictures, held_out) @ _thumbnails(pictures, training).T
    copies = [training[index] for index in np.flatnonzero(likeness.max(0) > SAME_PICTURE)]
    lines = [
        "# Oxford-IIIT Pet: every fifth photo of the sorted names is held out; a training photo that shows the same",
        "# picture as a held-out one is a copy and not trained on. All other photos are the training fold.",
        *(f"{name} held-out" for name in held_out),
        *(f"{name} copy" for name in copies),
    ]
    FOLD.write_text("\n".join(lines) + "\n")


def _thumbnails(pictures: dict[str, Image.Image], names: list[str]) -> np.ndarray:
    grey = (pictures[name].convert("L").resize((16, 16), Image.Resampling.BOX) for name in names)
    small = np.stack([np.asarray(thumbnail, float).ravel() for thumbnail in grey])
    small -= small.mean(1, keepdims=True)
    return small / np.linalg.norm(small, axis=1, keepdims=True)


def pack(pictures: dict[str, Image.Image], out: Path, side: int, quality: int) -> None:
    held_out, copies = read_fold()
    names = sorted(set(pictures) - copies)
    breeds = breeds_of_fold()
    encoded = [_encoded(pictures[name], side, quality) for name in names]
    np.savez(
        out / "photos.npz",
        names=names,
        breeds=breeds,
        label=np.array([breeds.index(breed_of(name)) for name in names], dtype=np.int64),
        held_out=np.array([name in held_out for name in names]),
        ends=np.cumsum([len(photo) for photo in encoded]),
        photos=np.frombuffer(b"".join(encoded), dtype=np.uint8),
    )


def _encoded(picture: Image.Image, side: int, quality: int) -> bytes:
    buffer = io.BytesIO()
    picture.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "WEBP", quality=quality, method=4)
    return buffer.getvalue()


def pack_teacher(weights: Path, out: Path) -> None:
    from safetensors.torch import load_file, save_file

    halved = {k: v.half() if v.is_floating_point() else v for k, v in load_file(weights).items()}
    save_file({k: v for k, v in halved.items() if not k.startswith("head.fc")}, out / "teacher.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with images.zip")
    parser.add_argument("--teacher", type=Path, required=True, help="safetensors of timm's tiny_vit_5m_224")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side", type=int, default=144, help="pixels of the squared photos")
    parser.add_argument("--quality", type=int, default=86, help="of their WebP coding")
    parser.add_argument("--fold", action="store_true", help="write fold.txt anew")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    pictures = photos(arguments.data)
    if arguments.fold:
        write_fold(pictures)
    pack(pictures, arguments.out, arguments.side, arguments.quality)
    pack_teacher(arguments.teacher, arguments.out)


if __name__ == "__main__":
    main()
