"""Words that say more than a measurement can: in what people read only where it was tested or counted."""

import ast
import re
from pathlib import Path

import pytest

import whyformer
import whyformer_papers

SOURCE = Path(whyformer.__file__).parent
PAPERS = Path(whyformer_papers.__file__).parent
NO_SENTENCE = re.compile(r"\bNone\b(?! of| is| was)|'none'|:none|@container.*")  # values, policies and styles
STRONG = re.compile(r"\b(opposite|never|prove[sn]?|proofs?|none|always|impossible|guarantee[sd]?)\b", re.IGNORECASE)

# What may be said, and why it is known.
KNOWN = {
    # what a metric rewards, by its definition
    "a map that never changes is perfectly stable": "definition",
    "a method without random numbers is always repeatable": "definition",
    # tested, and said with the test
    "The evidence of none of ": "a permutation test of each class, with its level",
    " of evidence tested, none is suspicious. ": "says how many were tested, and that this clears no model",
    "some of them and better in none": "of the metrics that decide, each tested",
    # counted
    "; none found for ": "examples for which a search found nothing",
    ", though the search found none for ": "the same",
    "none found": "the same",
    "or it found none": "the same",
    ", none of them trained on": "examples kept out of training",
    "they show none of the evidence": "items, counted",
    "Documents never used": "documents of a log without a citation, counted",
    "None was left out": "sources, of a run without ablations",
    "no trained model need ever produce it": "a limit of the test",
    "a search that finds nothing does not prove": "a limit of the test",
    # what is missing
    "has none.": "the data",
    "none of the model's": "labels and classes",
    "so none is quoted": "published numbers",
    "so none are shown": "published numbers",
    "none, the paper has texts only": "the paper",
    "with none": "a column: without any source",
    "None is there": "a name",
    "is None (the predicted class)": "a value of an option",
    "by must have regions only, or none": "an option",
    "matrix, states, or none": "an option",
    "; pass weights=": "an option",
    " names none. Pass AnswerSpan": "an option",
    "does not prove": "a limit",
    "agreement is no proof": "a limit",
    # true of every input, by the code or a file that was read
    "tokens of the images are computed from whole images": "tokens of images are hidden together",
    "this tokenizer always reads as a special token": "the tokenizer's file",
    "which are never loaded": "pickled weights",
    # each was tried
    "None of the documents occurs in the prompt": "each was looked for",
    "None of these methods works here": "each was tried",
    "7 none does": "each was tried",
}
PATTERNS = (SOURCE / "_cite/answer_parts.py",)  # words that answers are searched for


def list_sentences(file: Path) -> list[str]:
    """The texts in a file that are neither docstrings nor types."""
    tree = ast.parse(file.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return [text for text in texts if isinstance(text, str) and " " in text and "| None" not in text]


def find_unknown(sentences: list[str]) -> list[str]:
    said = [text for text in sentences if STRONG.search(NO_SENTENCE.sub("", text))]
    return [text for text in said if not any(known in text for known in KNOWN)]


def list_page_texts(file: Path) -> list[str]:
    """The texts in a module of the page, without comments."""
    code = re.sub(r"^\s*(//|/?\*).*$", "", file.read_text(), flags=re.MULTILINE)
    return re.findall(r'"[^"\n]*"|`[^`]*`', code)


@pytest.mark.parametrize("folder", [SOURCE, PAPERS], ids=lambda folder: folder.name)
def test_strong_words_say_only_what_was_tested(folder):
    texts = {
        file: list_sentences(file) if file.suffix == ".py" else list_page_texts(file)
        for file in (*folder.rglob("*.py"), *folder.rglob("*.js"))
        if file not in PATTERNS and file.parent.name != "worlds"
    }
    found = {file.name: unknown for file, own in texts.items() if (unknown := find_unknown(own))}
    assert texts and not found, f"say what was measured, or why it is known (KNOWN): {found}"


def test_the_sentences_that_were_wrong_are_found(tmp_path):
    file = tmp_path / "wording.py"
    file.write_text(
        '"""Docs may say never."""\n'
        'a = f"its ranking is opposite to that by {0}"\n'
        'b = "which proves that attention is not needed"\n'
        "c = 'None of this model was tested'\n"
        'd = "tau -0.16, n = 16"\n'
    )
    assert len(find_unknown(list_sentences(file))) == 3
    page = tmp_path / "wording.js"
    page.write_text('// never\nreturn value > 0 ? "agrees" : "opposite";\n')
    assert find_unknown(list_page_texts(page)) == ['"opposite"']
