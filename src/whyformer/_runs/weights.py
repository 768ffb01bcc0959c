"""A hash of a model's weights, so that a run is never resumed with another model."""

import hashlib

import torch

from whyformer._model import Model


def hash_weights(module: torch.nn.Module) -> str:
    """SHA-256 of every parameter and buffer: name, dtype, shape and all bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def describe_planned_model(model: Model) -> dict[str, str | int | None]:
    """The model as a plan names it."""
    return {
        "name": model.name,
        "class": type(model.module).__name__,
        "weights": hash_weights(model.module),
        "dtype": str(model.dtype),
        "device": model.device.type,
        "readout": model.readout,
    }
