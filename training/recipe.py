"""What these training scripts do the same way: read a config, follow a schedule, keep a log, save in half precision."""

import argparse
import json
import math
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
)

IGNORED = -100  # what the loss does not count
DECODERS = {  # by shape: the configuration, the model, and what else it is given
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "neox": (GPTNeoXConfig, GPTNeoXForCausalLM, {"rotary_pct": 0.5}),
    "qwen": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
}


def read_config(file: Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    return tomllib.loads(file.read_text("utf-8"))


def begin_training(
    about: str | None, config: Path | None, **paths: str
) -> tuple[argparse.Namespace, dict[str, Any], "Log"]:
    """The arguments every script takes, its settings, and a log that begins with them; the seed is set.

    `config` are the settings unless others are given; without it they must be. `paths` are further optional
    arguments, each with its help.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the model is written")
    parser.add_argument("--config", type=Path, default=config, required=config is None, help="the settings")
    for name, explained in paths.items():
        parser.add_argument(f"--{name}", type=Path, help=explained)
    arguments = parser.parse_args()
    settings = read_config(arguments.config)
    log = Log(arguments.out / "training.jsonl")
    log.write(config=settings, torch=torch.__version__, device=str(device()))
    torch.manual_seed(settings["seed"])
    return arguments, settings, log


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Schedule:
    """Warm-up and cosine decay over `steps`; ends early, with the rate at zero, when `seconds` are over."""

    def __init__(self, peak: float, warmup: int, steps: int, seconds: float) -> None:
        self.peak, self.warmup, self.steps, self.seconds = peak, warmup, steps, seconds
        self.start, self.step = time.monotonic(), 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def progress(self) -> float:
        return max(self.step / self.steps, self.elapsed / self.seconds)

    @property
    def rate(self) -> float:
        return (
            self.peak
            * min(1.0, (self.step + 1) / self.warmup)
            * 0.5
            * (1 + math.cos(math.pi * min(1.0, self.progress)))
        )

    def advance(self, optimizer: torch.optim.Optimizer) -> bool:
        """Set the rate of the next step; False when there is none."""
        if self.progress >= 1:
            return False
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # where recorded steps read it
                group["lr"].fill_(self.rate)
            else:
                group["lr"] = self.rate
        self.step += 1
        return True


class Average:
    """A slowly moving average of the weights: what is saved in the end."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.names = decay, [name for name, _ in module.named_parameters()]
        self.now = [p.detach() for p in module.parameters()]
        self.mean = [p.detach().clone() for p in module.parameters()]
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 10))
        torch._foreach_lerp_(self.mean, self.now, 1 - decay)

    def load_into(self, module: nn.Module) -> None:
        missing = module.load_state_dict(dict(zip(self.names, self.mean, strict=True)), strict=False)
        assert not missing.unexpected_keys


def adamw(
    module: nn.Module, weight_decay: float, betas: tuple[float, float] = (0.9, 0.98), *, recorded: bool = False
) -> torch.optim.AdamW:
    """AdamW that lets biases, norms and embeddings of one dimension be.

    recorded: its steps can be part of a CUDA graph.
    """
    decayed = [p for p in module.parameters() if p.dim() > 1]
    others = [p for p in module.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    rate = torch.tensor(0.0, device=device()) if recorded else 0.0
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=device().type == "cuda", capturable=recorded)


def take_step(loss: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average) -> None:
    """One step down, with the gradient clipped at norm 1."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    average.update()


def learn_to_write(
    model: PreTrainedModel,
    give: Callable[[Tensor], Mapping[str, Tensor]],
    wanted: Tensor,
    config: Mapping[str, Any],
    schedule: Schedule,
    log: "Log",
) -> None:
    """Teach an encoder and decoder to write the ids `wanted` [example token]; the average of its weights is kept.

    give: what the encoder gets for these examples. What the decoder has written so far is always right.
    """
    log.write(examples=len(wanted), weights=sum(p.numel() for p in model.parameters()), seconds=schedule.elapsed)
    optimizer, average = adamw(model, config["weight_decay"]), Average(model, config["average"])
    start = torch.full_like(wanted[:, :1], model.config.decoder_start_token_id)
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(wanted), (config["batch"],), device=device())
        right = wanted[chosen]
        written = torch.cat([start[chosen], right[:, :-1]], 1)
        logits = model(**give(chosen), decoder_input_ids=written, use_cache=False).logits
        right = right.masked_fill(right == model.config.pad_token_id, IGNORED)
        loss = cross_entropy(logits.float().flatten(0, 1), right.flatten(), ignore_index=IGNORED)
        take_step(loss, model, optimizer, average)
        if schedule.step % 200 == 0:
            share = (logits.argmax(-1) == right)[right != IGNORED].float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, rate=schedule.rate, loss=loss, tokens=share)
    average.load_into(model)


def make_bert_config(
    config: Mapping[str, Any], vocabulary: int, *, segments: int, labels: Sequence[str] = ()
) -> BertConfig:
    """A BERT of the width, blocks and heads of this config."""
    named = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=config["width"],
        num_hidden_layers=config["blocks"],
        num_attention_heads=config["heads"],
        intermediate_size=4 * config["width"],
        max_position_embeddings=config["longest"],
        hidden_dropout_prob=config.get("dropout", 0.0),
        attention_probs_dropout_prob=config.get("dropout", 0.0),
        type_vocab_size=segments,
        **(named if labels else {}),
    )


def make_vit_config(config: Mapping[str, Any], size: int, labels: Sequence[str], *, dropout: float = 0.0) -> ViTConfig:
    """A ViT of the width, blocks, heads and patches of this config."""
    return ViTConfig(
        image_size=size,
        patch_size=config["patch"],
        hidden_size=config["width"],
        num_hidden_layers=config["blocks"],
        num_attention_heads=config["heads"],
        intermediate_size=config.get("inner", 4 * config["width"]),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
    )


def make_decoder(config: Mapping[str, Any], shape: str, vocabulary: int, **tokens: int | None) -> PreTrainedModel:
    """A language model of the width, blocks and heads of this config, in one of DECODERS.

    theta: the base of the rotary positions. The larger it is, the more channels compare what, not where.
    initial: the spread of the weights at first, by default 0.02.
    """
    make_config, make_model, own = DECODERS[shape]
    if "theta" in config:
        own = {**own, "rope_parameters": {"rope_type": "default", "rope_theta": config["theta"]}}
    if "initial" in config:
        own = {**own, "initializer_range": config["initial"]}
    return make_model(
        make_config(
            vocab_size=vocabulary,
            hidden_size=config["width"],
            intermediate_size=config["inner"],
            num_hidden_layers=config["blocks"],
            num_attention_heads=config["heads"],
            num_key_value_heads=config.get("key_heads", config["heads"]),
            max_position_embeddings=config["positions"],
            tie_word_embeddings=True,
            **tokens,
            **own,
        )
    ).to(device())


class Log:
    """One JSON object a line, in a file and on the screen."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file.open("w", encoding="utf-8")

    def write(self, **entry: Any) -> None:
        line = json.dumps({key: _plain(value) for key, value in entry.items()})
        print(line, file=self.file, flush=True)
        print(line, flush=True)


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, Tensor) else value
    return round(value, 5) if isinstance(value, float) else value


def save(model: Any, folder: Path) -> None:
    """Weights in float16; the config says float32, so that wherever they are opened they count in single precision."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: p.detach().to(torch.float16) for name, p in model.named_parameters()}  # tied weights come once
    model.config.dtype = torch.float16
    model.save_pretrained(folder, state_dict=half)
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def save_tokenizer(tokenizer: Any, folder: Path, **settings: Any) -> None:
    """A `tokenizers` tokenizer, with the settings transformers wants beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


def save_writer(model: Any, tokenizer: Any, folder: Path, **tokens: Any) -> None:
    """An encoder and decoder with its tokenizer; what to generate is not its business."""
    save(model, folder)
    save_tokenizer(tokenizer, folder, **tokens)
    (folder / "generation_config.json").unlink(missing_ok=True)


def save_decoder(model: Any, tokenizer: Any, folder: Path, longest: int, **settings: Any) -> None:
    """A language model of `longest` tokens and its tokenizer; what to generate is not its business."""
    save(model, folder)
    names = ["input_ids", "attention_mask"]
    save_tokenizer(tokenizer, folder, model_max_length=longest, model_input_names=names, **settings)
    (folder / "generation_config.json").unlink(missing_ok=True)


def save_processor(settings: Mapping[str, Any], folder: Path) -> None:
    """How images become pixels, as transformers wants it beside the weights."""
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
