"""How much longer a tokenizer can make a text is computed from its steps, before these run."""

import json
import math
from random import Random

import pytest
from tiny_text import bert, wordpiece
from tokenizers import Regex, normalizers

import whyformer as why
from whyformer._model.loading.tokenizer_growth import measure_growth
from whyformer.errors import InputError


def test_no_chain_of_steps_makes_a_text_longer_than_was_computed(capfd):
    random = Random(1)
    for _ in range(300):
        steps = [draw_step(random) for _ in range(random.randint(1, 3))]
        text = "".join(random.choices("ab é\n字", k=random.randint(1, 20)))
        growth = math.prod(measure_growth(json.loads(step.__getstate__())) for step in steps)
        try:
            made = normalizers.Sequence(steps).normalize_str(text)
        except BaseException as error:  # tokenizers itself fails on some of these, which is no Exception
            assert type(error).__name__ == "PanicException"  # noqa: PT017
            continue
        assert len(made.encode()) <= growth * (len(text.encode()) + 1), (steps, text)


def draw_step(random):
    content = "".join(random.choices("ab é字", k=random.randint(0, 6)))
    old = random.choice(["", "a", "ab", "é", Regex("a*"), Regex("."), Regex("b|")])
    kinds = [normalizers.Replace(old, content), normalizers.Prepend(content or "a"), normalizers.ByteLevel(),
             normalizers.BertNormalizer(lowercase=False), normalizers.Strip()]  # fmt: skip
    return random.choice(kinds)


def test_compiled_code_that_fails_on_a_text_is_an_error_of_ours(capfd):
    """It raises what is no Exception."""
    broken = wordpiece()
    broken.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex("b|"), "x"), normalizers.ByteLevel()]
    )
    with pytest.raises(InputError, match="The tokenizer of this model fails on") as caught:
        why.explain(why.open(bert(), tokenizer=broken), "a film", "rollout")
    assert caught.value.code == "E_MODEL_TOKENIZER"
