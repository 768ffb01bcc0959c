"""The diagnostic model benefits from attention that knows which word decides."""

from dataclasses import replace

import torch

from whyformer._audit.checks.diagnostic import FOLDS, DiagnosticSample, DiagnosticSettings, make_folds, run_diagnostic

QUICK = DiagnosticSettings(epochs=10, width=8, batch=16)


def samples(count, told, features=False):
    """One word of eight gives the class, 1 or 2; the others are random. Attention is on that word if `told`."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        words = torch.randint(1, 3, (8,), generator=generator)
        place, label = int(torch.randint(8, (1,), generator=generator)), i % 2
        words[place] = 1 + label
        attention = torch.zeros(8)
        attention[place if told else (place + 3) % 8] = 1.0
        tokens = torch.nn.functional.one_hot(words, 3).float() if features else words
        made.append(DiagnosticSample(tokens, attention, label))
    return made


def share(flags):
    return sum(flags) / len(flags)


def test_informative_attention_helps():
    right = run_diagnostic(samples(60, told=True), classes=2, settings=QUICK)
    assert share(right["attention"]) == 1.0
    assert share(right["attention"]) > share(right["uniform"]) + 0.1


def test_uninformative_attention_does_not_help():
    right = run_diagnostic(samples(60, told=False), classes=2, settings=QUICK)
    assert share(right["attention"]) < 0.75


def test_features_and_training_examples_work():
    known = samples(60, told=True, features=True)
    right = run_diagnostic(known[:10], known[10:], classes=2, settings=QUICK)
    assert share(right["attention"]) == 1.0 and len(right["learned"]) == 10


def test_the_same_seed_gives_the_same():
    made, quick = samples(15, told=True), replace(QUICK, epochs=3)
    before = torch.get_rng_state()
    assert run_diagnostic(made, classes=2, settings=quick) == run_diagnostic(made, classes=2, settings=quick)
    assert torch.equal(torch.get_rng_state(), before)  # the global random state is unchanged


def test_every_example_is_held_out_once():
    parts = make_folds(13, seed=0)
    assert len(parts) == FOLDS and sorted(i for _, held in parts for i in held) == list(range(13))
    assert all(not set(learn) & set(held) for learn, held in parts)
