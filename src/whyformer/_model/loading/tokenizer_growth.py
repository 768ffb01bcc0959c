"""How much longer the steps of a tokenizer can make a text: five replacements of a letter by fifty make 300 million.

The steps come with a model and run in compiled code that ends the process when memory runs out, so they are multiplied
before they run. What a step of Unicode does (NFKC, lower case) has its own bound, and no second effect.
"""

import base64
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from whyformer._plain.json_value import Json
from whyformer.errors import UnsafeModel

MOST_GROWTH = 1000  # bytes from one byte; published tokenizers make up to 264
# Parts that grow what the one before has made, each with the name under which a sequence of its kind has its steps.
CHAINS = (
    {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"},
    {"post_processor": "processors"},
    {"decoder": "decoders"},
)
WIDEST = 4  # bytes of a character


def refuse_growing_tokenizer(steps: dict[str, Json], name: str) -> None:
    """Refuse the parts of a tokenizer.json by which a text, or what tokens spell, becomes far longer."""
    for parts in CHAINS:
        growth = prod(measure_growth(step) for part, key in parts.items() for step in list_steps(steps.get(part), key))
        if growth > MOST_GROWTH:
            raise UnsafeModel(
                f"The tokenizer in {name} can make a text {growth:,} times as long ({' and '.join(parts)} in "
                f"tokenizer.json), which would fill the memory; the limit is {MOST_GROWTH:,}. Use a tokenizer of a "
                "source that you trust.",
                code="E_MODEL_TOKENIZER",
            )


def read_parts(file: Path) -> dict[str, Json]:
    """The content of a tokenizer.json; nothing if it cannot be read, which loading it will say."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def find_parts(backend: Any) -> dict[str, Json]:
    """The same of a tokenizer that is loaded, perhaps from files of another kind."""
    parts = {part: getattr(backend, part, None) for chain in CHAINS for part in chain}
    return {part: json.loads(one.__getstate__()) for part, one in parts.items() if one is not None}


def list_steps(step: Any, key: str) -> Iterator[dict[str, Any]]:
    """The steps of a part, one after the other, however they are nested."""
    waiting = [step]
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            yield step
            inner = step.get(key)
            waiting += inner if isinstance(inner, list) else []


def measure_growth(step: dict[str, Any]) -> int:
    """How many bytes this step can make of one; of what is malformed 1, as it is not loaded either."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1, -(-count_bytes(new) // count_bytes(old)))
        case {"type": "Replace", "content": str(new)} | {"type": "Prepend", "prepend": str(new)}:
            return 1 + count_bytes(new)  # for a pattern that is found before every byte
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return measure_longest(table)
        case {"type": "BertNormalizer" | "ByteLevel"}:
            return 2
        case {"type": "Metaspace"}:
            return WIDEST
        case {"type": "TemplateProcessing", "special_tokens": dict(special)}:
            return max(1, *(measure_template(step.get(form), special) for form in ("single", "pair")))
    return 1


def measure_longest(encoded: str) -> int:
    """The longest text of a table: the size of its index in four bytes, the index, then texts that end with a zero."""
    try:
        table = base64.b64decode(encoded + "==")
    except ValueError:
        return 1
    return max(1, *map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))


def measure_template(template: Any, special: dict[str, Any]) -> int:
    """How many tokens a template makes of texts with one token each."""
    total = 0
    for piece in template if isinstance(template, list) else []:
        match piece:
            case {"SpecialToken": {"id": str(name)}} if isinstance(token := special.get(name), dict):
                total += len(token["ids"]) if isinstance(token.get("ids"), list) else 1
            case _:
                total += 1
    return total


def count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
