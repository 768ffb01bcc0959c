r"""The models of Jain & Wallace: one encoder, one attention, one linear layer.

$$ h = \mathrm{Enc}(e_1 \dots e_n), \qquad \hat\alpha = \mathrm{softmax}(\phi(h)), \qquad
\hat y = W \sum_t \hat\alpha_t h_t $$

with $\phi(h_t) = v \cdot \tanh(U h_t)$ (additive) or $\phi(h_t) = h_t \cdot q / \sqrt d$ (dot). The encoder is a
BiLSTM, a CNN with kernels 1, 3, 5 and 7, or "average": a linear layer and tanh applied to each token separately.
Jain & Wallace, Attention is not Explanation, NAACL 2019, section 3. arXiv:1902.10186

    model = load_jain_wallace("models/bilstm-additive-0")   written by training/jain_wallace/train.py
    why.audit(model, sentences)

Differences from the paper: the output has two logits and a softmax, theirs one logit and a sigmoid (the same
function); word vectors are learned with the rest (theirs were pretrained); sentences have no start and end tokens
(theirs did, and excluded them from attention). `attention="uniform"` is the frozen baseline of Wiegreffe & Pinter,
EMNLP 2019.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from whyformer._model.model import Model
from whyformer.errors import IncompleteModel, InputError, ModelNotFound

ENCODERS = ("bilstm", "cnn", "average")
ATTENTIONS = ("additive", "dot", "uniform")
PADDING, UNKNOWN = "[PAD]", "[UNK]"
WORD_PATTERN = re.compile(r"\S+")
MAX_WIDTH = 4096
SETTINGS_FILE, WEIGHTS_FILE = "original.json", "model.safetensors"


class JainWallaceEncoder(nn.Module):
    """Word vectors in, [batch token width] out. Padding does not influence any token."""

    def __init__(self, kind: str, given: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "bilstm":
            self.lstm = nn.LSTM(given, width // 2, batch_first=True, bidirectional=True)
        elif kind == "cnn":
            self.convolutions = nn.ModuleList(
                nn.Conv1d(given, width // 4, size, padding=size // 2) for size in (1, 3, 5, 7)
            )
        else:
            self.linear = nn.Linear(given, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "bilstm":
            packed = pack_padded_sequence(x, mask.sum(-1).cpu(), batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.size(1))[0]
        if self.kind == "cnn":
            channels = (x * mask[..., None]).transpose(1, 2)
            return torch.cat([convolution(channels) for convolution in self.convolutions], 1).transpose(1, 2).relu()
        return self.linear(x).tanh()


class JainWallaceAttention(nn.Module):
    """One distribution over the tokens, [batch 1 token]."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "additive":
            self.inner, self.outer = nn.Linear(width, width // 2), nn.Linear(width // 2, 1, bias=False)
        elif kind == "dot":
            self.query = nn.Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "additive":
            scores = self.outer(self.inner(hidden).tanh())
        elif self.kind == "dot":
            scores = self.query(hidden) / hidden.size(-1) ** 0.5
        else:
            scores = hidden[..., :1] * 0
        return scores.transpose(1, 2).masked_fill(~mask[:, None], float("-inf")).softmax(-1)


class JainWallaceModel(nn.Module):
    """Encoder, attention, linear layer."""

    def __init__(
        self, vocabulary: int, *, encoder: str = "bilstm", attention: str = "additive",
        given: int = 300, width: int = 256, classes: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value, known in (("encoder", encoder, ENCODERS), ("attention", attention, ATTENTIONS)):
            if value not in known:
                raise InputError(f"There is no {name} {value!r}. Available: {', '.join(known)}.", code="E_OPTION")
        self.settings: dict[str, Any] = {
            "vocabulary": vocabulary, "encoder": encoder, "attention": attention,
            "given": given, "width": width, "classes": classes,
        }  # fmt: skip
        self.embedding = nn.Embedding(vocabulary, given, padding_idx=0)
        self.encoder = JainWallaceEncoder(encoder, given, width)
        self.attention = JainWallaceAttention(attention, width)
        self.answer = nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
        hidden = self.encoder(self.embedding(input_ids), mask)
        return self.answer((self.attention(hidden, mask) @ hidden).squeeze(1))


# --- words and files --------------------------------------------------------------------------------------------------


def build_vocabulary(texts: Iterable[str], *, least: int = 1) -> list[str]:
    """Padding, the unknown word, then every word that occurs at least `least` times, the most frequent first."""
    counts = Counter(word for text in texts for word in WORD_PATTERN.findall(text.lower()))
    return [PADDING, UNKNOWN, *(word for word, count in counts.most_common() if count >= least)]


def build_tokenizer(vocabulary: list[str]) -> Any:
    """Splits at white space and lowercases; adds no special tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PADDING, unk_token=UNKNOWN)


def wrap_jain_wallace(
    module: JainWallaceModel, vocabulary: list[str], labels: tuple[str, ...], name: str = "jain_wallace"
) -> Model:
    """The module with its tokenizer and labels, ready for `explain` and `audit`."""
    return Model(module.eval(), name, "text", labels, build_tokenizer(vocabulary))


def save_jain_wallace(model: Model, folder: str | os.PathLike[str]) -> None:
    """Write weights (float16), settings and vocabulary for `load_jain_wallace`."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    module: Any = model.module
    words = [word for word, _ in sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1])]
    facts = {"settings": module.settings, "labels": model.labels, "words": words}
    (folder / SETTINGS_FILE).write_text(json.dumps(facts, ensure_ascii=False) + "\n", "utf-8")
    save_file({name: t.detach().half().contiguous() for name, t in module.state_dict().items()}, folder / WEIGHTS_FILE)


def load_jain_wallace(folder: str | os.PathLike[str]) -> Model:
    """Open a model written by `save_jain_wallace`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    if not (folder / SETTINGS_FILE).is_file():
        raise ModelNotFound(f"There is no {SETTINGS_FILE} in {folder}. Train a model: training/jain_wallace/train.py.")
    try:
        facts = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))
        _check_sizes(folder, facts)
        module = JainWallaceModel(**facts["settings"])
        weights = load_file(folder / WEIGHTS_FILE)
        module.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return wrap_jain_wallace(module, facts["words"], tuple(facts["labels"]), folder.name)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, InputError) as error:
        raise IncompleteModel(f"{folder} is not a saved Jain & Wallace model, or it is damaged: {error}.") from None


def _check_sizes(folder: Path, facts: dict[str, Any]) -> None:
    """Refuse sizes that would fill the memory, before anything is allocated."""
    settings = facts["settings"]
    sizes = [settings.get("given", 0), settings.get("width", 0), settings.get("classes", 0)]
    if max(sizes) > MAX_WIDTH or settings["vocabulary"] != len(facts["words"]):
        message = f"{folder}: {SETTINGS_FILE} has sizes above {MAX_WIDTH:,}, or a vocabulary that is not its words."
        raise IncompleteModel(message, code="E_MODEL_TOO_LARGE")
