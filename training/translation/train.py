"""Train the translator: python training/translation/train.py --out FOLDER

A minute on a GPU, four on one CPU thread; --config FILE for other settings than config.toml.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import T5Config, T5ForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Schedule, begin_training, device, learn_to_write, save_writer

from whyformer_papers.worlds import translation

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # a T5 begins to write with <pad>


def make_tokenizer() -> Tokenizer:
    """One token a word, </s> behind the last."""
    ids = {word: i for i, word in enumerate((PAD, END, UNKNOWN, *translation.VOCABULARY))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, ids[END])]
    )
    tokenizer.add_special_tokens([PAD, END, UNKNOWN])
    return tokenizer


def read_rows(tokenizer: Tokenizer, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """The ids of the sources, and those of their translations, [sentence token], padded."""
    pairs = translation.generate(count, 40_000_000 + seed, part="training")  # a seed that nobody would type
    sides = ([one.source for one in pairs], [one.text for one in pairs])
    rows = [[torch.tensor(found.ids) for found in tokenizer.encode_batch(side)] for side in sides]
    pad = tokenizer.token_to_id(PAD)
    source, wanted = (pad_sequence(side, batch_first=True, padding_value=pad) for side in rows)
    return source, wanted


def make_model(config: dict, tokenizer: Tokenizer) -> T5ForConditionalGeneration:
    pad, end = (tokenizer.token_to_id(name) for name in (PAD, END))
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=tokenizer.get_vocab_size(),
            d_model=config["width"],
            d_kv=config["width"] // config["heads"],
            d_ff=config["inner"],
            num_layers=config["blocks"],
            num_heads=config["heads"],
            relative_attention_num_buckets=16,
            relative_attention_max_distance=32,
            dropout_rate=0.0,
            decoder_start_token_id=pad,
            pad_token_id=pad,
            eos_token_id=end,
        )
    ).to(device())


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("config.toml"))
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    tokenizer = make_tokenizer()
    source, wanted = (rows.to(device()) for rows in read_rows(tokenizer, config["seed"], config["sentences"]))
    model, pad = make_model(config, tokenizer), tokenizer.token_to_id(PAD)

    def give(chosen: Tensor) -> dict[str, Tensor]:
        return {"input_ids": source[chosen], "attention_mask": (source[chosen] != pad).long()}

    learn_to_write(model, give, wanted, config, schedule, log)
    names = ["input_ids", "attention_mask"]
    tokens = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN, "model_input_names": names}
    save_writer(model, tokenizer, arguments.out, **tokens)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


if __name__ == "__main__":
    main()
