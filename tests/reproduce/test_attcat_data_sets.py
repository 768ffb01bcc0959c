"""The command for each model and data set of AttCAT: tiny models in folders, and files in the layouts as published."""

import csv
import json
import math

import pytest
import transformers as hf
from tiny_text import WORDS, wordpiece_pairs
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer_papers.paper_tables import PAPER_TABLES

GOOD, BAD = "a good film , not bad at all , the film is good !", "a bad film , not good at all , the film is bad !"
GLUE_MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
DATA_SETS = {  # file, its lines, classes of a model for it
    "SST-2": ("dev.tsv", ["sentence\tlabel", f"{GOOD}\t1", f"{BAD}\t0"], 2),
    "QQP": (
        "dev.tsv",
        ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\tis the film good\tis a film not bad\t1"],
        2,
    ),
    "MNLI": (
        "dev_matched.tsv",
        [
            "\t".join([*GLUE_MNLI.split(), "sentence1", "sentence2", "label1", "gold_label"]),
            "\t".join(["0", "1", "1e", "fiction", "(", ")", "(", ")", "the film is good !", "a film is not bad", "x",
                       "entailment"]),
        ],
        3,
    ),
    "Amazon": ("test.jsonl", [json.dumps({"label": 1, "title": "a good film", "content": GOOD})], 2),
    "Yelp": ("test.jsonl", [json.dumps({"text": BAD, "label": 0})], 2),
    "SQuAD": (
        "validation.jsonl",
        [
            json.dumps(
                {"id": "1", "title": "film", "context": "the film is not good !", "question": "is the film bad",
                 "answers": {"text": ["not good", "good"], "answer_start": [12, 16]}}
            )
        ],
        0,
    ),
}  # fmt: skip
SIZES = dict(vocab_size=len(WORDS), max_position_embeddings=40, pad_token_id=0, initializer_range=0.3)
BERT = SIZES | dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
MODELS = {
    "bert": (hf.BertForSequenceClassification, hf.BertForQuestionAnswering, hf.BertConfig, BERT),
    "distilbert": (
        hf.DistilBertForSequenceClassification, hf.DistilBertForQuestionAnswering, hf.DistilBertConfig,
        SIZES | dict(dim=12, n_layers=2, n_heads=2, hidden_dim=16),
    ),
    "roberta": (hf.RobertaForSequenceClassification, hf.RobertaForQuestionAnswering, hf.RobertaConfig, BERT),
}  # fmt: skip
MNLI_LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}


def save_model(folder, kind: str, classes: int) -> None:
    """A tiny model of this kind with its tokenizer, as a checkpoint."""
    classifier, reader, config, sizes = MODELS[kind]
    labels = {"id2label": MNLI_LABELS if classes == 3 else dict(enumerate(("no", "yes")))} if classes else {}
    (classifier if classes else reader)(config(**sizes, **labels)).save_pretrained(folder)
    tokenizer = wordpiece_pairs() if kind == "bert" else wordpiece_pairs("[CLS] $A [SEP] [SEP] $B [SEP]")
    if kind != "bert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)


FASTEST = [("distilbert", "SQuAD"), ("roberta", "Yelp")]
EVERY = [(kind, data_set) for kind in MODELS for data_set in DATA_SETS]
CASES = [one if one in FASTEST else pytest.param(*one, marks=pytest.mark.slow) for one in EVERY]
PERTURBED = {"AOPC, deleted", "AOPC, padded", "log-odds, deleted", "log-odds, padded", "AOPC, signed", "tau"}
ANSWERS = {"answer tokens in the top 20", "share of them in the top 5"}


@pytest.mark.parametrize(("kind", "data_set"), CASES)
def test_the_command(tmp_path, kind, data_set):
    name, lines, classes = DATA_SETS[data_set]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    save_model(tmp_path / "model", kind, classes)
    command = ["reproduce", "attcat", str(tmp_path / name), "-M", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    with (tmp_path / "out" / "attcat.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == set(PAPER_TABLES["attcat"].methods)
    measured = {row["column"] for row in rows if row["method"] == "AttCAT" and math.isfinite(float(row["measured"]))}
    assert measured >= PERTURBED if classes else measured == ANSWERS
    found = [float(row["measured"]) for row in rows if row["column"] == "answer tokens in the top 20"]
    assert all(value == 2 for value in found)  # not, good: a text of fewer than 20 tokens
