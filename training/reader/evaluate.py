"""The numbers of the reader's card: python training/reader/evaluate.py

Held-out questions of seed 0: the fact that answers was in no training passage. An answer is right if every token of it,
and the end after it, is the most likely one, which is the same as decoding greedily and comparing. By the number of
passages, with and without another passage that states the same relation, and in the three forms of a prompt.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rows import has_rival
from transformers import AutoTokenizer, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from whyformer.demo import reader

MODEL = Path(__file__).parents[2] / "src" / "whyformer" / "demo" / "models" / "reader"
SEED, COUNT, FORM_COUNT = 0, 1000, 300
FORMS = ("text", "chat", "documents")


class Answering:
    """The model, and how it is asked."""

    def __init__(self, folder: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(self, asked: reader.PassageQuestion, form: str) -> tuple[list[int], list[int]]:
        """The tokens of the prompt and of the answer."""
        answer = self.tokenizer.encode(f" {asked.answer}{self.tokenizer.eos_token}", add_special_tokens=False)
        if form == "text":
            return self.tokenizer.encode(asked.text), answer
        documents = [{"text": passage.text} for passage in asked.passages] if form == "documents" else None
        messages = asked.messages
        if documents:
            messages = [messages[0], {"role": "user", "content": asked.question}]
        text = self.tokenizer.apply_chat_template(
            messages, documents=documents, add_generation_prompt=True, tokenize=False
        )
        return self.tokenizer.encode(text, add_special_tokens=False), answer

    @torch.inference_mode()
    def mark(self, questions: Sequence[reader.PassageQuestion], form: str = "text") -> list[bool]:
        """Whether each answer is right."""
        right = []
        for asked in questions:
            prompt, answer = self.encode(asked, form)
            logits = self.model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            right.append(logits.argmax(-1).tolist() == answer)
        return right


def report(what: str, right: Sequence[bool]) -> None:
    print(f"{what}: {sum(right)} of {len(right)} right, {100 * sum(right) / max(1, len(right)):.1f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    answering = Answering(arguments.model)
    questions = reader.generate(arguments.count, SEED)
    right = answering.mark(questions)
    report("4 to 10 passages", right)
    for passages in range(4, reader.MOST + 1):
        report(
            f"{passages} passages",
            [one for one, asked in zip(right, questions, strict=True) if len(asked.passages) == passages],
        )
    for rivalled in (True, False):
        own = [one for one, asked in zip(right, questions, strict=True) if has_rival(asked) == rivalled]
        report(f"{'another' if rivalled else 'no other'} passage states the same relation", own)
    for form in FORMS[1:]:
        report(f"as {form}", answering.mark(questions[:FORM_COUNT], form))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
