"""Odd arguments of prompts, answers, citations, hops and targets as text: an error of ours, or a result."""

import traceback
from functools import cache, partial
from random import Random

import pytest
import torch
from attack.odd import ODD_VALUES, SEED, make_random
from odd_settings import ODD_SETTINGS
from tiny_prompts import PASSAGES, TEXT, chat_decoder, decoder, make_prompt

import whyformer as why
from whyformer import targets

CALLS = 60  # of each kind in the fast tests
MANY_CALLS = 1000
MESSAGES = [{"role": "system", "content": "be good."}, {"role": "user", "content": "a bad film?"}]
TARGET_PARTS = (
    *("group", "logp", "logodds", "token", "tokens", "entity", "answer", "answer-text", "answer-tokens", "choice"),
    *("answer-characters", "answer-sentences", "frame", "character", "value", "classes", "class", "representation"),
    *(":", "@", ",", "-", "=", "#", "*", "[", "]", '"', "0", "1e999", "9" * 30, "x", "mask", "/versus:", "/weights:"),
    *('["0",[[]]]', "[[[", "{}", "null", "\ud800", "\x00", "", " "),
)


@cache
def prompt():
    return make_prompt()


def odd(random: Random):
    """A value of any kind, or a list or dictionary of such."""
    values = [
        *ODD_VALUES,
        *ODD_SETTINGS.values(),
        2**70,
        -(2**70),
        [2**70],
        [[1]],
        [[]],
        {"a": [2**70]},
        set(),
        range(3),
    ]
    value = random.choice(values)
    kind = random.random()
    return [value] if kind < 0.1 else {"role": value} if kind < 0.15 else [value, 1] if kind < 0.2 else value


def call_cite(random: Random):
    name = random.choice(["by", "select", "within", "answer", "verify", "samples", "seed", "method", "prompt", "fill"])
    given = {"prompt": prompt(), "by": PASSAGES, "samples": 0, "verify": 1, name: odd(random)}
    return partial(why.cite, decoder(), given.pop("prompt"), **given)


def call_split(random: Random):
    value = odd(random)
    return partial(prompt().split, random.choice([value, [value, odd(random)], lambda text: value]))


def call_from_text(random: Random):
    given = {"text": TEXT, "answer": " good", "special": False}
    given[random.choice(list(given))] = odd(random)
    return partial(why.Prompt.from_text, decoder(), given.pop("text"), **given)


def call_from_messages(random: Random):
    messages = [dict(one) for one in MESSAGES]
    given = {"messages": messages, "answer": "good."}
    kind = random.choice(["messages", "answer", "tools", "documents", "content", "role", "tool_calls", "variable"])
    if kind in ("content", "role", "tool_calls"):
        messages[1][kind] = odd(random)
    else:
        given[kind] = odd(random)
    return partial(why.Prompt.from_messages, chat_decoder("documents"), given.pop("messages"), **given)


def call_from_tokens(random: Random):
    given = {"ids": list(prompt().ids), "answer_ids": [3], "text": None}
    given[random.choice(list(given))] = odd(random)
    return partial(why.Prompt.from_tokens, decoder(), given.pop("ids"), **given)


def call_from_log(random: Random):
    record = random.choice(
        [
            {"prompt_token_ids": list(prompt().ids), "token_ids": [3, 4], "logprobs": [-0.1, -0.2]},
            {"messages": MESSAGES, "choices": [{"message": {"content": "good."}, "logprobs": {"content": []}}]},
            {"prompt": TEXT, "text": " good"},
        ]
    )
    names = [*record, "token_ids", "logprobs", "choices", "outputs", "tools", "text", "message"]
    record = {**record, random.choice(names): odd(random)}
    return partial(why.Prompt.from_log, chat_decoder("documents"), random.choice([record, record, odd(random)]))


def call_check_answer(random: Random):
    given = {"prompt": prompt(), "logged": None, "tolerance": 0.1}
    given[random.choice(list(given))] = odd(random)
    return partial(why.check_answer, decoder(), given.pop("prompt"), **given)


def call_generate(random: Random):
    given = {"prompt": TEXT, "max_new_tokens": 1, "temperature": 0.0, "top_p": 1.0, "seed": 0}
    given[random.choice(list(given))] = odd(random)
    return partial(why.generate, decoder(), given.pop("prompt"), **given)


def call_trace(random: Random):
    name = random.choice(["by", "select", "hops", "answer", "target", "versus", "method", "prompt", "recipe"])
    given = {"prompt": prompt(), "hops": 1, name: odd(random)}
    return partial(why.trace_reasoning, decoder(), given.pop("prompt"), **given)


def call_diagnose(random: Random):
    given = {"methods": ["random"], "inputs": {"input_ids": torch.tensor([[1, 2, 3]])}, "target": None}
    name = random.choice(list(given))
    given[name] = odd(random)
    given["methods"] = ["random"] if given["methods"] is None else given["methods"]  # all of them take too long
    return partial(why.diagnose, decoder(), **given)


def call_parse(random: Random):
    text = "".join(random.choice(TARGET_PARTS) for _ in range(random.randint(1, 6)))
    return partial(targets.parse, random.choice([text, text, text, odd(random)]))


def call_answer(random: Random):
    given = {"select": None, "weights": None, "score": "logit", "versus": None, "unit": "token"}
    given[random.choice(list(given))] = odd(random)
    return partial(explain_answer, **given)


def explain_answer(**given):
    return why.explain(decoder(), prompt(), "attnlrp", target=targets.Answer(**given))


KINDS = {name.removeprefix("call_"): kind for name, kind in list(globals().items()) if name.startswith("call_")}


def attack(kind: str, count: int) -> list[str]:
    """What is raised that is not ours."""
    random, wrong = make_random(f"prompts {kind}"), []
    for n in range(count):
        call = KINDS[kind](random)
        try:
            call()
        except why.errors.WhyformerError as error:
            if error.code == "E_INTERNAL":
                wrong.append(f"{n}: {show(call)}: {error}")
        except Exception as error:
            wrong.append(
                f"{n}: {show(call)}: {type(error).__name__}: {error} ({traceback.extract_tb(error.__traceback__)[-1]})"
            )
    return wrong


def show(call) -> str:
    given = [*getattr(call, "args", ()), *getattr(call, "keywords", {}).items()]
    return " ".join(f"{one!r:.90}" for one in given if not isinstance(one, why.Model))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_odd_arguments_give_errors_of_ours(kind):
    found = attack(kind, CALLS if kind not in ("diagnose", "cite", "trace", "answer", "generate") else CALLS // 3)
    assert not found, f"seed {SEED}:\n" + "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_many_odd_arguments_give_errors_of_ours(kind):
    found = attack(kind, MANY_CALLS)
    assert not found, f"seed {SEED}:\n" + "\n".join(found)
