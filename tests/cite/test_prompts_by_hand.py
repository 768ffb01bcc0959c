"""What cite says of seventy prompts is what a person said of them beforehand (prompts_by_hand.py), in at least 95 %."""

import pytest
from cite.prompts_by_hand import PASSAGES, PROMPTS

import whyformer as why


@pytest.fixture(scope="module")
def findings():
    """Of each prompt, what differs; an error is not caught."""
    model, found = why.open("demo/reader"), []
    for letters, question, answer, expected in PROMPTS:
        text = "\n\n".join(PASSAGES[one] for one in letters)
        cited = why.cite(model, f"{text}\n\nQuestion: {question}\nAnswer:", answer=f" {answer}", by="passage")
        found.append(((letters, question, answer), list(compare(cited.claim, letters, expected))))
    return found


def compare(claim, letters, expected):
    names = {f"passage {n}": letter for n, letter in enumerate(letters, 1)}
    for letter, case in expected.get("case", {}).items():
        own = claim.find_case(f"passage {letters.index(letter) + 1}")
        if own != case:
            yield f"{letter}: {own}, a person: {case} ({claim})"
    if "marks" in expected and (own := [one.finding for one in claim.marks]) != expected["marks"]:
        yield f"marks {own}, a person: {expected['marks']} ({claim})"
    own = [(one.finding, names.get(one.source)) for one in claim.quotations]
    if "quotations" in expected and own != expected["quotations"]:
        yield f"quotations {own}, a person: {expected['quotations']}"


def test_seventy_prompts_are_read_as_a_person_reads_them(findings):
    assert len(findings) == 70
    differing = [(prompt, problems) for prompt, problems in findings if problems]
    assert len(differing) <= 3, differing
