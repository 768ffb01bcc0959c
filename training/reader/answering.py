"""A reader that is asked: whether each token of an answer, and the end after it, is the most likely one."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from whyformer.demo import reader

FORMS = ("text", "chat", "documents")


class Answering:
    """The model, and how it is asked."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(self, asked: reader.AskedPassages, form: str) -> tuple[list[int], list[int]]:
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
    def mark(self, questions: Sequence[reader.AskedPassages], form: str = "text") -> list[bool]:
        """Whether each answer is right."""
        right = []
        for asked in questions:
            prompt, answer = self.encode(asked, form)
            logits = self.model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            right.append(logits.argmax(-1).tolist() == answer)
        return right


def report(what: str, right: Sequence[bool]) -> None:
    print(f"{what}: {sum(right)} of {len(right)} right, {100 * sum(right) / max(1, len(right)):.1f} %", flush=True)
