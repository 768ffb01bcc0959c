"""Models of other libraries, in an environment of their own: `make test-others`. Elsewhere they are not collected."""

import importlib.util

import torch

HAS_LIBRARIES = all(importlib.util.find_spec(name) for name in ("timm", "open_clip", "peft", "sentence_transformers"))
collect_ignore_glob = [] if HAS_LIBRARIES else ["test_models.py", "test_places.py", "test_names.py"]


def import_torchvision() -> None:
    """Import torchvision, also one whose compiled operations do not load beside this torch.

    The wheels on PyPI are compiled for torch with CUDA. Beside torch for the processor their library fails to load, and
    the import fails where it describes two operations that were not registered (of object detection; no transformer
    calls them). Declaring the two lets the Python code be imported.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        import sys

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operation in ("nms", "qnms"):
            DECLARED.define(f"{operation}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401


if HAS_LIBRARIES:
    DECLARED = torch.library.Library("torchvision", "FRAGMENT")
    import_torchvision()
