"""What the generators and loaders of demo data refuse."""

import json

import pytest

from whyformer.demo import shapes
from whyformer.errors import IncompleteModel, InputError
from whyformer_papers.jain_wallace_models import (
    SETTINGS_FILE,
    JainWallaceModel,
    load_jain_wallace,
    save_jain_wallace,
    wrap_jain_wallace,
)
from whyformer_papers.worlds import agreement


@pytest.mark.parametrize("count", [-1, 1.5, "3", None])
@pytest.mark.parametrize("world", [agreement, shapes])
def test_refuses_odd_numbers_of_examples(world, count):
    with pytest.raises(InputError, match="count must be >= 0, got") as refused:
        world.generate(count, 0)
    assert refused.value.code == "E_OPTION"


def test_refuses_odd_settings():
    with pytest.raises(InputError, match="seed must be >= 0, got -1"):
        shapes.generate(1, -1)
    with pytest.raises(InputError, match="objects must be between 1 and 3, got 'two'"):
        shapes.generate(1, 0, objects="two")
    with pytest.raises(InputError, match="attractors must be between 0 and 3, got nan"):
        agreement.generate(1, 0, attractors=float("nan"))
    with pytest.raises(InputError, match="part must be one of held-out, training, got 'test'"):
        agreement.generate(1, 0, part="test")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda facts: facts.pop("words"), "E_MODEL_WEIGHTS"),
        (lambda facts: facts.pop("labels"), "E_MODEL_WEIGHTS"),
        (lambda facts: facts["settings"].update(encoder="none"), "E_MODEL_WEIGHTS"),
        (lambda facts: facts["settings"].update(width="wide"), "E_MODEL_WEIGHTS"),
        (lambda facts: facts["settings"].update(width=10**9), "E_MODEL_TOO_LARGE"),
        (lambda facts: facts["settings"].update(vocabulary=10**9), "E_MODEL_TOO_LARGE"),
    ],
)
def test_refuses_a_damaged_jain_wallace_model(tmp_path, change, code):
    words = ["[PAD]", "[UNK]", "film"]
    save_jain_wallace(wrap_jain_wallace(JainWallaceModel(3, given=4, width=8), words, ("no", "yes")), tmp_path)
    assert load_jain_wallace(tmp_path).labels == ("no", "yes")
    facts = json.loads((tmp_path / SETTINGS_FILE).read_text())
    change(facts)
    (tmp_path / SETTINGS_FILE).write_text(json.dumps(facts))
    with pytest.raises(IncompleteModel) as refused:
        load_jain_wallace(tmp_path)
    assert refused.value.code == code
