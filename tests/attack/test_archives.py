"""Mutated files of results: refused as damaged, or loaded and then fit to be read, shown and saved again."""

import contextlib
import json
import shutil
import traceback
from pathlib import Path
from random import Random

import pytest
import torch
from attack.found import Found
from attack.odd import SEED, SIZE, make_random
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save

import whyformer as why
from whyformer.show.terminal import Screen

FILES = int(1000 * SIZE)
ODD_JSON = [
    None, True, -1, 0, 1, 2**70, 1e308, -1e-320, "", "x", "\x1b[31m", "=1+1", [], {}, [[]], {"a": 1}, [None], "<b>",
    10**400, {"float": "inf"}, {"float": "nan"}, {"float": {}}, {"dtype": "float32", "shape": [1], "data": [1.0]},
    ["x"] * 3, [1.5], [[1], [2]], 2**63, -(2**63), {"float": "1"}, {"dtype": "float32", "shape": [1, 1], "data": [[1]]},
    {"dtype": "float64", "shape": [2**40], "data": []}, {"dtype": "float64", "shape": [0, 3], "data": []}, 0.5, 3, 100,
    {"dtype": "float32", "shape": [1], "data": [{"float": "nan"}]}, {"rows": 1, "columns": 1}, "\ud800", "x" * 5000,
]  # fmt: skip


STORED_AUDIT = Path(__file__).parents[1] / "audit" / "stored-audit.json"
LOADERS = {"compared": why.Comparison.load, "audit": why.Audit.load}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    return save_originals(tmp_path_factory.mktemp("archives"))


def save_originals(folder: Path) -> list[Path]:
    """Explanations of a text and an image, with all that can be in them, comparisons and an audit."""
    image = Image.effect_noise((40, 30), 50).convert("RGB")
    texts = ["a film", "not a good film at all"]
    explained = {
        "text": why.explain("demo/sentiment", texts, "rollout", per_layer=True),
        "versus": why.explain("demo/sentiment", texts[0], "attnlrp", target="positive", versus="negative", health=True),
        "ids": why.explain("demo/untrained-bert", torch.tensor([[1, 2, 3]]), "gradient_x_input"),
        "image": why.explain("demo/untrained-vit", [image], "attnlrp", health=True),
        "pixels": why.explain("demo/untrained-vit", [image, image], "saliency"),
    }
    compared = {
        "compared text": why.compare("demo/sentiment", texts, ["rollout", "chance"]),
        "compared image": why.compare("demo/untrained-vit", image, ["rollout", "grad_cam"]),
    }
    for name, made in explained.items():
        made.save(folder / f"{name}.json")
        made.save(folder / f"{name}.safetensors")
    for name, made in compared.items():
        made.save(folder / f"{name}.json")
    settings = dict(tests=["agreement", "replacement", "adversarial", "shape"], samples=2)
    why.audit("demo/sentiment", [(text, "positive") for text in texts], **settings).save(folder / "audit.json")
    shutil.copy(STORED_AUDIT, folder / "audit stored.json")
    return sorted(folder.iterdir())


def load_result(path, original):
    return LOADERS.get(original.name.split()[0].removesuffix(".json"), why.load)(path)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 3, 20])):
        place = random.randrange(len(data))
        match random.randrange(5):
            case 0:
                data[place] = random.randrange(256)
            case 1:
                del data[place : place + random.randrange(1, 200)]
            case 2:
                data[place:place] = random.randbytes(random.randrange(1, 50))
            case 3:
                data[place:place] = data[: random.randrange(1, 300)]
            case _:
                data[place] ^= 1 << random.randrange(8)
        if not data:
            return b""
    return bytes(data)


def mutate_value(value, random: Random, depth: int = 0):
    """Replace something, somewhere in a JSON value."""
    if depth and random.random() < 0.25:
        return random.choice(ODD_JSON)
    if isinstance(value, dict) and value:
        key = random.choice(list(value))
        match random.randrange(6):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {
                    **value,
                    random.choice(["extra", "pictures", "images", "kind", "version", "details"]): random.choice(
                        ODD_JSON
                    ),
                }
        return {**value, key: mutate_value(value[key], random, depth + 1)}
    if isinstance(value, list) and value:
        place = random.randrange(len(value))
        if random.random() < 0.2:
            return value[:place] + value[place + 1 :]
        return [mutate_value(v, random, depth + 1) if i == place else v for i, v in enumerate(value)]
    return random.choice(ODD_JSON)


def mutate_json(data: bytes, random: Random) -> bytes:
    held = json.loads(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        held = mutate_value(held, random)
    return json.dumps(held).encode()


ODD_TENSORS = [
    lambda t: t[:0],
    lambda t: t[None],
    lambda t: t.flatten(),
    lambda t: t.double() * float("nan"),
    lambda t: t.double() * 1e308,
    lambda t: t.double() / 0,
    lambda t: -t.double(),
    lambda t: t.long(),
    lambda t: t.bool(),
    lambda t: t.to(torch.float16),
    lambda t: torch.zeros_like(t),
    lambda t: torch.cat([t, t]),
    lambda t: t[..., :1],
    lambda t: t.mT if t.dim() > 1 else t,
    lambda t: torch.tensor(1.0),
    lambda t: torch.randint(0, 256, (50,)).byte(),
]


def mutate_safetensors(path: Path, random: Random) -> bytes:
    """A well-formed file with another tensor, other names of tensors or other facts."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()["whyformer"]
    name, kind = random.choice(sorted(tensors)), random.randrange(4)
    if kind == 0:
        facts = mutate_json(facts.encode(), random).decode()
    elif kind == 1:
        taken = tensors.pop(name)
        if random.random() < 0.7:
            tensors[random.choice(["names", "tokens", "details.x", "picture.0", "picture.9", "settings", "kind"])] = (
                taken
            )
    else:
        tensors[name] = random.choice(ODD_TENSORS)(tensors[name]).contiguous()
    return save(tensors, {"whyformer": facts})


def mutate_file(original: Path, random: Random) -> bytes:
    if original.suffix == ".json" and random.random() < 0.8:
        return mutate_json(original.read_bytes(), random)
    if original.suffix == ".safetensors" and random.random() < 0.6:
        return mutate_safetensors(original, random)
    return mutate_bytes(original.read_bytes(), random)


def use(loaded, folder, random: Random) -> None:
    """What a person does with a loaded result."""
    str(loaded), repr(loaded), loaded._repr_html_(), len(loaded)
    loaded.render(Screen(width=60, colours="truecolor"))
    often = [ending for ending in (".html", ".json", ".csv", ".svg", ".txt") if ending in loaded.formats]
    for ending in (*often, random.choice(sorted(loaded.formats.keys() - {".tex"}))):  # .tex is for texts only
        is_empty = not len(loaded) or isinstance(loaded, why.Audit)  # whose search may have found nothing
        with contextlib.suppress(*[why.WhyformerError] * is_empty):
            loaded.save(folder / f"again{ending}")
    if isinstance(loaded, why.Explanation):
        use_explanation(loaded)


def use_explanation(loaded) -> None:
    """Each of these works, or says clearly why this explanation does not have it."""
    for act in (
        lambda: loaded.top(3), lambda: loaded.words(), lambda: str(loaded.health), lambda: loaded.overlay(),
        lambda: loaded.draw_build_up().svg(), lambda: [str(one) for one in loaded], lambda: loaded.map(),
    ):  # fmt: skip
        with contextlib.suppress(why.WhyformerError, IndexError if not len(loaded) else why.WhyformerError):
            act()


def attack_archives(originals: list[Path], folder: Path, random: Random, count: int, found: Found) -> None:
    for number in range(count):
        original = random.choice(originals)
        path = folder / f"mutated{original.suffix}"
        path.write_bytes(mutate_file(original, random))
        with found.attempt(f"{original.name} {number}"):
            try:
                loaded = load_result(path, original)
                found.answered += 1
                use(loaded, folder, random)
            except why.WhyformerError as error:
                if error.code != "E_ARCHIVE":
                    found.raw.append(f"{original.name} {number}: the code {error.code}: {error}")
            except Exception as error:
                kept = folder / f"raw {number}{original.suffix}"
                kept.write_bytes(path.read_bytes())
                place = "".join(traceback.format_tb(error.__traceback__)[-1:]).strip().replace("\n", " ")[-160:]
                found.raw.append(f"{original.name}, {kept}: {type(error).__name__}: {str(error)[:160]} at {place}")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.filterwarnings("ignore")
def test_a_mutated_file_is_refused_or_can_be_used(originals, part, tmp_path):
    torch.manual_seed(SEED)
    found = Found()
    attack_archives(originals, tmp_path, make_random(f"archives {part}"), FILES // 4, found)
    assert not found.faults, f"seed {SEED}, {len(found.faults)} wrong\n" + "\n".join(found.faults[:30])
    assert found.answered > FILES // 100


@pytest.mark.slow
def test_the_originals_can_be_used(originals, tmp_path):
    """Otherwise the attack would only see errors."""
    for original in originals:
        result = load_result(original, original)
        use(result, tmp_path, make_random("originals"))
        assert len(result) > 0
