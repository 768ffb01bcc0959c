"""Mutated files of results: refused as damaged, or loaded and then fit to be read, shown and saved again."""

import json
from random import Random

import pytest
from attack.odd import SEED, make_random

import whyformer as why

FILES = 1000
ODD_JSON = [
    None, True, -1, 0, 1, 2**70, 1e308, -1e-320, "", "x", "\x1b[31m", "=1+1", [], {}, [[]], {"a": 1}, [None], "<b>",
    10**400, {"float": "inf"}, {"float": "nan"}, {"float": {}}, {"dtype": "float32", "shape": [1], "data": [1.0]},
    ["x"] * 3, [1.5], [[1], [2]],
]  # fmt: skip


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    text = why.explain("demo/untrained-bert", ["a film", "not a good film at all"], "gradient_x_input")
    from PIL import Image

    image = why.explain("demo/untrained-vit", [Image.new("RGB", (40, 30), "red")], "attnlrp", health=True)
    compared = why.compare("demo/untrained-bert", "a film", ["rollout", "chance"])
    paths = []
    for name, made in (("text", text), ("image", image)):
        for ending in (".json", ".safetensors"):
            paths.append(folder / f"{name}{ending}")
            made.save(paths[-1])
    compared.save(folder / "compared.json")
    return [*paths, folder / "compared.json"]


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


def use(loaded, folder) -> None:
    """What a person does with a loaded result."""
    str(loaded), repr(loaded), loaded._repr_html_(), len(loaded)
    for ending in (".html", ".json", ".csv", ".svg", ".txt"):
        loaded.save(folder / f"again{ending}")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_mutated_file_is_refused_or_can_be_used(originals, part, tmp_path):
    random, raw, loaded_files = make_random(f"archives {part}"), [], 0
    for number in range(FILES // 4):
        original = random.choice(originals)
        path = tmp_path / f"mutated{original.suffix}"
        if original.suffix == ".json" and random.random() < 0.7:
            held = json.loads(original.read_text())
            for _ in range(random.choice([1, 1, 2, 4])):
                held = mutate_value(held, random)
            path.write_text(json.dumps(held))
        else:
            path.write_bytes(mutate_bytes(original.read_bytes(), random))
        load = why.Comparison.load if "compared" in original.name else why.load
        try:
            loaded = load(path)
            loaded_files += 1
            use(loaded, tmp_path)
        except why.WhyformerError:
            continue
        except Exception as error:
            kept = tmp_path / f"raw {part} {number}{original.suffix}"
            kept.write_bytes(path.read_bytes())
            raw.append(f"{kept.name}: {type(error).__name__}: {str(error)[:160]}")
    assert not raw, f"seed {SEED}, {len(raw)} raw\n" + "\n".join(raw[:30])
    assert loaded_files > 0
