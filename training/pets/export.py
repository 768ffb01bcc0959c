"""Writes trained weights as the model that ships: config, float16 weights, preprocessing.

    python training/pets/export.py OUT/average.safetensors demo/src/whyformer_demo/models/pets

Photos are resized so that the short side has 128 pixels, and the middle 112 x 112 are read: the usual seven eighths.
"""

import argparse
import json
from pathlib import Path

from fold import breeds_of_fold, readable
from safetensors.torch import load_file, save_file
from student import IMAGE, hugging_face_config, hugging_face_weights
from views import MEAN, STD

RESIZED = 128
PREPROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": RESIZED},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": IMAGE, "width": IMAGE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": MEAN,
    "image_std": STD,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="average.safetensors, written by train.py")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    trained = load_file(arguments.weights)
    student = {k.removeprefix("student."): v.half() for k, v in trained.items() if k.startswith("student.")}
    save_file(hugging_face_weights(student), arguments.folder / "model.safetensors", metadata={"format": "pt"})
    config = hugging_face_config([readable(breed) for breed in breeds_of_fold()])
    (arguments.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (arguments.folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")


if __name__ == "__main__":
    main()
