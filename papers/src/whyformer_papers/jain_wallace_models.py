r"""The models of Jain & Wallace: one encoder, one attention, one layer for the answer.

$$ h = \mathrm{Enc}(e_1 \dots e_n), \qquad \hat\alpha = \mathrm{softmax}(\phi(h)), \qquad
\hat y = W \sum_t \hat\alpha_t h_t $$

with $\phi(h_t) = v \cdot \tanh(U h_t)$ (additive) or $\phi(h_t) = h_t \cdot q / \sqrt d$ (dot). The encoder is a
BiLSTM, a CNN with kernels 1, 3, 5 and 7, or "average": a linear layer and tanh applied to each token separately.
Jain & Wallace, Attention is not Explanation, NAACL 2019, section 3. arXiv:1902.10186

For question answering and inference, attention over the text depends on the question, encoded as a vector q:

$$ \phi(h_t, q) = v \cdot \tanh(U h_t + V q) \quad\text{or}\quad h_t \cdot q / \sqrt d, \qquad
\hat y = W \tanh(A \textstyle\sum_t \hat\alpha_t h_t + B q) $$

q is the pair of final states of a BiLSTM, the largest value of each channel of a CNN, or the mean of an "average"
encoder. Text and question are one input sequence, a pair of texts; attention covers the text only.

    model = load_jain_wallace("models/sst2-bilstm-additive-0")   written by training/jain_wallace/train.py
    why.audit(model, sentences)
    model = open_reader("babi-1")                                ships: a BiLSTM with additive attention
    why.audit(model, [(example.pair, example.answer) for example in generate_reading("babi-1", 100)])

Differences from the paper: a classifier has two logits and a softmax, theirs one logit and a sigmoid (the same
function); word vectors are learned with the rest unless training is given some (theirs were pretrained), and text and
question share them; sequences have no start and end tokens (theirs did, and excluded them from attention); answers are
not restricted to the entities of the text (theirs were, for CNN). `attention="uniform"` is the frozen baseline of
Wiegreffe & Pinter, EMNLP 2019.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whyformer._model import Model
from whyformer._model.loading import READER_FILE, check_device
from whyformer._plain.json_value import JsonValue
from whyformer.errors import IncompleteModel, InputError, ModelNotFound
from whyformer_papers.worlds.reading import READING_TASKS, find_reading_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ENCODERS = ("bilstm", "cnn", "average")
ATTENTIONS = ("additive", "dot", "uniform")
PADDING, UNKNOWN, SEPARATOR = "[PAD]", "[UNK]", "[SEP]"
READERS = Path(__file__).parent / "models" / "readers"
PUNCTUATION = re.compile(r"\W")
MAX_WIDTH = 4096
SETTINGS_FILE, WEIGHTS_FILE = READER_FILE, "model.safetensors"


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
            return self.run_lstm(x, mask)
        if self.kind == "cnn":
            channels = (x * mask[..., None]).transpose(1, 2)
            return torch.cat([convolution(channels) for convolution in self.convolutions], 1).transpose(1, 2).relu()
        return self.linear(x).tanh()

    def run_lstm(self, x: Tensor, mask: Tensor) -> Tensor:
        """The states of both directions. The second reads each text backwards, without its padding.

        The two directions are run one by one, which gives the same states as a packed sequence: on a CPU it is up to
        five times as fast. cuDNN has no backward outside training, so it is not used there.
        """
        lengths = mask.sum(-1).clamp(min=1)  # a text may lose its only word
        start = x.new_zeros(1, x.size(0), self.lstm.hidden_size)
        weights: list[Tensor] = list(self.lstm.parameters())
        uses_cudnn = self.training or not torch.is_grad_enabled()
        with torch.backends.cudnn.flags(enabled=uses_cudnn) if x.is_cuda else nullcontext():
            # Biases, 1 layer, no dropout, 1 direction, batch first.
            options = (True, 1, 0.0, self.training, False, True)
            forward = torch.lstm(x, (start, start), weights[:4], *options)[0]
            backward = torch.lstm(reverse_texts(x, lengths), (start, start), weights[4:], *options)[0]
        return torch.cat([forward, reverse_texts(backward, lengths)], -1) * mask[..., None]

    def summarise(self, x: Tensor, mask: Tensor) -> Tensor:
        """The whole sequence as one vector, [batch width]."""
        hidden = JainWallaceEncoder.forward(self, x, mask)
        if self.kind == "bilstm":  # the last state of each direction
            last = (mask.sum(-1) - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.size(-1))
            forward, backward = hidden.gather(1, last)[:, 0], hidden[:, 0]
            return torch.cat([forward.chunk(2, -1)[0], backward.chunk(2, -1)[1]], -1)
        if self.kind == "cnn":
            return hidden.masked_fill(~mask[..., None], 0).amax(1)  # no channel is negative
        return (hidden * mask[..., None]).sum(1) / mask.sum(-1, keepdim=True)


def reverse_texts(x: Tensor, lengths: Tensor) -> Tensor:
    """[batch token width] with the tokens of each text in reverse order; padding stays at the end."""
    positions = torch.arange(x.size(1), device=x.device)
    at = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    return x.gather(1, at[..., None].expand(-1, -1, x.size(2)))


class QuestionEncoder(JainWallaceEncoder):
    """The question, which follows the text in the sequence, as one vector [batch width]."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        start, length = mask.int().argmax(-1), mask.sum(-1)
        positions = torch.arange(int(length.max()), device=x.device)
        at = (start[:, None] + positions).clamp(max=x.size(1) - 1)
        words = x.gather(1, at[..., None].expand(-1, -1, x.size(2)))
        return self.summarise(words, positions < length[:, None])


class JainWallaceAttention(nn.Module):
    """One distribution over the tokens of a text, [batch 1 token]; given a question, [batch width], if there is one."""

    def __init__(self, kind: str, width: int, *, has_question: bool = False) -> None:
        super().__init__()
        self.kind = kind
        if kind == "additive":
            self.inner, self.outer = nn.Linear(width, width // 2), nn.Linear(width // 2, 1, bias=False)
            if has_question:
                self.question = nn.Linear(width, width // 2)
        elif kind == "dot" and not has_question:
            self.query = nn.Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, mask: Tensor, question: Tensor | None = None) -> Tensor:
        if self.kind == "additive":
            inner = self.inner(hidden)
            scores = self.outer((inner if question is None else inner + self.question(question)[:, None]).tanh())
        elif self.kind == "dot":
            scores = self.query(hidden) if question is None else hidden @ question[..., None]
            scores = scores / hidden.size(-1) ** 0.5
        else:
            scores = hidden[..., :1] * 0
        masked = float("-inf") if question is None else torch.finfo(scores.dtype).min
        return scores.transpose(1, 2).masked_fill(~mask[:, None], masked).softmax(-1)


class JainWallaceModel(nn.Module):
    """Encoder, attention, linear layer."""

    def __init__(
        self, vocabulary: int, *, encoder: str = "bilstm", attention: str = "additive",
        given: int = 300, width: int = 256, classes: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.settings = check_settings(
            vocabulary=vocabulary, encoder=encoder, attention=attention, given=given, width=width, classes=classes
        )
        self.embedding = nn.Embedding(vocabulary, given, padding_idx=0)
        self.encoder = JainWallaceEncoder(encoder, given, width)
        self.attention = JainWallaceAttention(attention, width)
        self.answer = nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
        hidden = self.encoder(self.embedding(input_ids), mask)
        return self.answer((self.attention(hidden, mask) @ hidden).squeeze(1))


class JainWallaceReader(nn.Module):
    """Encoders of text and question, attention over the text given the question, a layer that joins the two."""

    def __init__(
        self, vocabulary: int, *, encoder: str = "bilstm", attention: str = "additive",
        given: int = 50, width: int = 64, classes: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"given": given, "width": width, "classes": classes}
        self.settings = check_settings(
            reader=True, vocabulary=vocabulary, encoder=encoder, attention=attention, **sizes
        )
        self.embedding = nn.Embedding(vocabulary, given, padding_idx=0)
        self.encoder = JainWallaceEncoder(encoder, given, width)
        self.question = QuestionEncoder(encoder, given, width)
        self.attention = JainWallaceAttention(attention, width, has_question=True)
        self.of_text, self.of_question = nn.Linear(width, width // 2), nn.Linear(width, width // 2)
        self.answer = nn.Linear(width // 2, classes)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
        is_text, is_question = mask & (token_type_ids == 0), mask & (token_type_ids == 1)
        words = self.embedding(input_ids)
        hidden, question = self.encoder(words, is_text), self.question(words, is_question)
        context = (self.attention(hidden, is_text, question) @ hidden).squeeze(1)
        return self.answer((self.of_text(context) + self.of_question(question)).tanh())


def check_settings(**settings: int | str) -> dict[str, int | str]:
    """The settings as they are saved; an unknown encoder or attention is refused."""
    for name, known in (("encoder", ENCODERS), ("attention", ATTENTIONS)):
        if settings[name] not in known:
            raise InputError(f"There is no {name} {settings[name]!r}. Available: {', '.join(known)}.", code="E_OPTION")
    return settings


# --- words and files --------------------------------------------------------------------------------------------------


def build_vocabulary(texts: Iterable[str], *, least: int = 1, letters_only: bool = False) -> list[str]:
    """Padding, the unknown word, then every word that occurs at least `least` times, the most frequent first."""
    counts = Counter(word for text in texts for word in split_words(text, letters_only=letters_only))
    return [PADDING, UNKNOWN, *(word for word, count in counts.most_common() if count >= least)]


def split_words(text: str, *, letters_only: bool = False) -> list[str]:
    """The words that the tokenizer finds: lower case, split at spaces; letters_only: and at all punctuation."""
    return (PUNCTUATION.sub(" ", text) if letters_only else text).lower().split()


def build_tokenizer(
    vocabulary: list[str], *, letters_only: bool = False, takes_pairs: bool = False
) -> "PreTrainedTokenizerFast":
    """Splits at white space and lowercases; adds no special tokens, except one between the texts of a pair.

    letters_only: punctuation is removed, as Jain & Wallace did with SST.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    steps = [normalizers.Replace(Regex(PUNCTUATION.pattern), " ")] if letters_only else []
    words.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options: dict[str, str | list[str]] = {}
    if takes_pairs:
        separator = (SEPARATOR, vocabulary.index(SEPARATOR))
        words.post_processor = processors.TemplateProcessing(
            single=f"$A:0 {SEPARATOR}:1", pair=f"$A:0 {SEPARATOR}:1 $B:1", special_tokens=[separator]
        )
        options = {"sep_token": SEPARATOR, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PADDING, unk_token=UNKNOWN, **options)


def wrap_jain_wallace(
    module: JainWallaceModel | JainWallaceReader, vocabulary: list[str], labels: tuple[str, ...],
    name: str = "jain_wallace", *, letters_only: bool = False,
) -> Model:  # fmt: skip
    """The module with its tokenizer and labels, ready for `explain` and `audit`."""
    takes_pairs = isinstance(module, JainWallaceReader)
    tokenizer = build_tokenizer(vocabulary, letters_only=letters_only, takes_pairs=takes_pairs)
    return Model(module.eval(), name, "text", labels, tokenizer)


def save_jain_wallace(model: Model, folder: str | os.PathLike[str], **facts: JsonValue) -> None:
    """Write weights (float16), settings and vocabulary for `load_jain_wallace`. facts: the task, the seed ..."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    module: Any = model.module
    words = [word for word, _ in sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1])]
    letters_only = "Replace" in str(model.tokenizer.backend_tokenizer.normalizer)
    facts = {"settings": module.settings, "labels": model.labels, "letters_only": letters_only, **facts, "words": words}
    (folder / SETTINGS_FILE).write_text(json.dumps(facts, ensure_ascii=False) + "\n", "utf-8")
    save_file({name: t.detach().half().contiguous() for name, t in module.state_dict().items()}, folder / WEIGHTS_FILE)


def is_jain_wallace_folder(path: str | os.PathLike[str]) -> bool:
    """Whether `save_jain_wallace` wrote this folder."""
    return (Path(path) / SETTINGS_FILE).is_file()


def load_jain_wallace(folder: str | os.PathLike[str], device: str | None = None) -> Model:
    """Open a model written by `save_jain_wallace`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder, wanted = Path(folder), check_device(device)
    try:
        facts = read_jain_wallace_facts(folder)
        _check_sizes(folder, facts)
        settings = dict(facts["settings"])
        kind = JainWallaceReader if settings.pop("reader", False) else JainWallaceModel
        module = kind(**settings)
        weights = load_file(folder / WEIGHTS_FILE)
        module.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        module.to(wanted)
        letters_only = bool(facts.get("letters_only", False))
        return wrap_jain_wallace(module, facts["words"], tuple(facts["labels"]), folder.name, letters_only=letters_only)
    except ModelNotFound:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, InputError) as error:
        raise IncompleteModel(f"{folder} is not a saved Jain & Wallace model, or it is damaged: {error}.") from None


def read_jain_wallace_facts(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What was saved with the model: settings, labels, vocabulary, and the task and seed it was trained with."""
    file = Path(folder) / SETTINGS_FILE
    if not file.is_file():
        raise ModelNotFound(f"There is no {SETTINGS_FILE} in {folder}. Train a model: training/jain_wallace/train.py.")
    return json.loads(file.read_text("utf-8"))


def list_readers() -> list[str]:
    """The generated tasks of `worlds.reading` for which a trained reader ships."""
    return [task for task in READING_TASKS if is_jain_wallace_folder(READERS / task)]


def open_reader(task: str, device: str | None = None) -> Model:
    """The BiLSTM with additive attention that ships for a generated task of `worlds.reading`."""
    find_reading_task(task)
    if task not in list_readers():
        raise ModelNotFound(
            f"No reader for {task} ships. Available: {', '.join(list_readers())}. Train one: "
            f"python -m training.jain_wallace.train --task {task} --out FOLDER, and open it with load_jain_wallace."
        )
    return load_jain_wallace(READERS / task, device)


def _check_sizes(folder: Path, facts: dict[str, Any]) -> None:
    """Refuse sizes that would fill the memory, before anything is allocated."""
    settings = facts["settings"]
    sizes = [settings.get("given", 0), settings.get("width", 0), settings.get("classes", 0)]
    if max(sizes) > MAX_WIDTH or settings["vocabulary"] != len(facts["words"]):
        message = f"{folder}: {SETTINGS_FILE} has sizes above {MAX_WIDTH:,}, or a vocabulary that is not its words."
        raise IncompleteModel(message, code="E_MODEL_TOO_LARGE")
