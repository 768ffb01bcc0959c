"""The token that replaces tokens which are removed from a text."""

from whyformer._model import Model
from whyformer.errors import InputError


def find_fill_token(model: Model, fill: str) -> int:
    """The id of the token that replaces removed tokens."""
    if fill in ("pad", "pad_token"):
        return model.padding
    name = {"mask": "mask_token_id", "unknown": "unk_token_id"}[fill]
    token = getattr(model.tokenizer, name, None)
    if token is None:
        raise InputError(f'{model.name} has no token for fill={fill!r}. Use fill="pad" or "delete".')
    return int(token)
