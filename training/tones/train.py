"""Train the listener: python training/tones/train.py --out FOLDER

Three minutes on a GPU; --config FILE for other settings than config.toml.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import WhisperConfig, WhisperForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Schedule, begin_training, device, learn_to_write, save_writer

from whyformer_papers.worlds import tones

PAD, END, UNKNOWN, START = "<pad>", "</s>", "<unk>", "<s>"


def make_tokenizer() -> Tokenizer:
    """One token a word."""
    ids = {word: i for i, word in enumerate((PAD, END, UNKNOWN, START, *tones.PITCHES))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([PAD, END, UNKNOWN, START])
    return tokenizer


def read_rows(tokenizer: Tokenizer, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Sounds [sound band step], and the ids of their words with the end, [sound token], padded."""
    tunes = tones.generate(count, 50_000_000 + seed, part="training")  # a seed that nobody would type
    sounds = torch.from_numpy(np.stack([tune.features for tune in tunes]))
    rows = [torch.tensor(tokenizer.encode(f"{tune.text} {END}").ids) for tune in tunes]
    return sounds, pad_sequence(rows, batch_first=True, padding_value=tokenizer.token_to_id(PAD))


def make_model(config: dict, tokenizer: Tokenizer) -> WhisperForConditionalGeneration:
    pad, end, start = (tokenizer.token_to_id(name) for name in (PAD, END, START))
    sizes = {
        f"{part}_{name}": config[key]
        for part in ("encoder", "decoder")
        for name, key in (("layers", "blocks"), ("attention_heads", "heads"), ("ffn_dim", "inner"))
    }
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=tokenizer.get_vocab_size(),
            num_mel_bins=tones.BANDS,
            d_model=config["width"],
            max_source_positions=tones.FRAMES,
            max_target_positions=16,
            decoder_start_token_id=start,
            bos_token_id=start,
            pad_token_id=pad,
            eos_token_id=end,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            **sizes,
        )
    ).to(device())


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("config.toml"))
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    tokenizer = make_tokenizer()
    sounds, wanted = (rows.to(device()) for rows in read_rows(tokenizer, config["seed"], config["sounds"]))
    model = make_model(config, tokenizer)
    learn_to_write(model, lambda chosen: {"input_features": sounds[chosen]}, wanted, config, schedule, log)
    tokens = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN, "bos_token": START}
    save_writer(model, tokenizer, arguments.out, **tokens)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
