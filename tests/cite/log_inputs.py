"""A log of questions that demo/reader can answer, and thirty kinds of records that cannot be cited."""

import json
from pathlib import Path

from whyformer.demo import reader

OK = {"prompt": "the film is good.\n\nit is bad.\n\nis it good?", "answer": " good"}
CHAT = [{"role": "user", "content": "What does the Aurora carry?"}]
DOCUMENTS = ["The Aurora carries tea.", "The Orion carries salt."]
MALFORMED = {
    "no JSON": b"{'prompt': 'x'}",
    "cut off": json.dumps(OK).encode()[:-20],
    "two values": json.dumps(OK).encode() * 2,
    "not UTF-8": b'{"prompt": "caf\xe9", "answer": " x"}',
    "nested too deeply": b'{"prompt": ' + b"[" * 100_000,
    "a number of 5,000 digits": b'{"prompt": ' + b"1" * 5_000 + b"}",
    "a number": b"17",
    "a text": b'"What?"',
    "null": b"null",
    "an empty list": b"[]",
    "an empty object": b"{}",
    "no prompt": {"answer": " tea"},
    "no answer": {"prompt": OK["prompt"]},
    "an empty answer": {**OK, "answer": ""},
    "an answer that is a number": {**OK, "answer": 7},
    "a prompt that is a number": {**OK, "prompt": 7},
    "an empty prompt": {**OK, "prompt": ""},
    "two prompts": {**OK, "prompt": ["a", "b"]},
    "messages that are a text": {"messages": "What?", "answer": " tea"},
    "no messages": {"messages": [], "answer": " tea"},
    "a message without a role": {"messages": [{"content": "What?"}], "answer": " tea"},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "answer": " tea"},
    "a request that is a list": {"request": [1], "response": "tea"},
    "a response that is a number": {"request": OK, "response": 5},
    "a choice that is a text": {"messages": CHAT, "choices": ["tea"]},
    "a refusal": {"messages": CHAT, "documents": DOCUMENTS, "choices": [{"message": {"content": None, "refusal": "no"}}]},  # noqa: E501
    "documents that are a text": {**OK, "documents": "The Aurora"},
    "a document without a text": {**OK, "documents": [{"title": "Ships"}, "the film is good."]},
    "one source": {"prompt": "the film is good.\n\nis it good?", "answer": " good"},
    "token ids that the model has not": {"prompt_token_ids": [1, 2, 10**9], "token_ids": [3]},
    "half a surrogate": b'{"prompt": "a \\ud800 b.\\n\\nc d.\\n\\ne?", "answer": " x"}',
    "a prompt that is too long": {**OK, "prompt": "the film is good. " * 2_000},
}  # fmt: skip


def make_record(number: int, asked: reader.PassageQuestion) -> dict:
    """A question with its documents, in one of three forms."""
    documents = [
        {"id": f"doc-{sum(map(ord, one.text)) % 400}", "text": one.text, "metadata": {"place": place}}
        for place, one in enumerate(asked.passages)
    ]
    question = f"Question: {asked.question}\nAnswer:"
    answer = f" {asked.answer}"
    if number % 3 == 0:
        return {"id": f"q{number}", "prompt": question, "documents": documents, "answer": answer}
    chat = {"messages": [{"role": "user", "content": asked.question}], "documents": documents}
    said = {"choices": [{"message": {"role": "assistant", "content": answer}}]}
    return {"id": f"q{number}", "request": chat, "response": said} if number % 3 == 1 else {**chat, "answer": answer}


def write_log(path: Path, count: int, malformed: int = 0, seed: int = 11) -> Path:
    """`count` lines, of which so many are malformed, evenly spread."""
    bad = list(MALFORMED.values())
    every = count // malformed if malformed else count + 1
    asked = iter(reader.generate(count - malformed, seed=seed))
    with path.open("wb") as file:
        for number in range(count):
            if malformed and number % every == every - 1 and number // every < malformed:
                one = bad[(number // every) % len(bad)]
                line = one if isinstance(one, bytes) else json.dumps(one).encode()
            else:
                line = json.dumps(make_record(number, next(asked))).encode()
            file.write(line + b"\n")
    return path
