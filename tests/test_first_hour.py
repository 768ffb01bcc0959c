"""The typical mistakes of a first hour, each with the sentence it gets: true, in one line, and with what to do.

`…` in a sentence stands for any text: a long list of names, or what another library says.
"""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_text
import torch
import transformers as hf
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import whyformer as why
from whyformer import cli
from whyformer._model import loading
from whyformer.errors import WhyformerError


def matches(sentence: str, message: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, sentence.split("…"))), message) is not None


# --- models and inputs of one's own -----------------------------------------------------------------------------------


@cache
def open_text() -> why.Model:
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece(), labels=["negative", "neutral", "positive"])


@cache
def open_language() -> why.Model:
    tokenizer = tiny_text.byte_pairs()
    return why.open(tiny_text.gpt2(), tokenizer=tokenizer)


@cache
def open_image() -> why.Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = hf.ViTConfig(**sizes, image_size=16, patch_size=8, id2label={0: "cat", 1: "dog"})
    processor = hf.ViTImageProcessor(size={"height": 16, "width": 16})
    return why.open(hf.ViTForImageClassification(config).eval(), processor=processor)


class Averages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean(1))


def make_meta_model() -> nn.Module:
    with torch.device("meta"):
        return hf.BertForSequenceClassification(hf.BertConfig(num_hidden_layers=1))


def explain_text(text: Any = "the film", *arguments: Any, **options: Any) -> Any:
    return why.explain(open_text(), text, *arguments, **options)


def explain_image(image: Any = None, *arguments: Any, **options: Any) -> Any:
    return why.explain(open_image(), PHOTO if image is None else image, *arguments, **options)


def explain_ids(ids: Tensor, **more: Tensor) -> Any:
    return why.explain(open_text(), {"input_ids": ids, **more}, "rollout")


def judge_text(data: Any, methods: Any = ("rollout",), metrics: Any = ("comprehensiveness",)) -> Any:
    return why.judge(open_text(), data, list(methods), list(metrics))


PHOTO = Image.new("RGB", (20, 16), "red")
IDS = torch.arange(5, 9)[None]

# --- in Python --------------------------------------------------------------------------------------------------------

IN_PYTHON: dict[str, tuple[str, Callable[[], Any]]] = {
    # models
    "a folder that is not there": (
        "'/no/such/folder' is neither an existing model folder nor a valid model name.",
        lambda: why.open("/no/such/folder"),
    ),
    "a hub name while offline": (
        "'google/vit-base-patch16-224' is neither a local folder nor in the local cache, and downloading is disabled "
        "(HF_HUB_OFFLINE). Download it first, or pass a folder.",
        lambda: why.open("google/vit-base-patch16-224"),
    ),
    "a misspelt demo model": (
        "No demo model 'demo/sentimant'. Did you mean 'demo/sentiment'? Available: demo/agreement, …",
        lambda: why.open("demo/sentimant"),
    ),
    "no model": ("A model must be a folder, a name or an nn.Module, got None.", lambda: why.open(None)),
    "the class of a model": (
        "A model must be a folder, a name or an nn.Module, got the class BertModel. Pass an instance, such as "
        "BertModel.from_pretrained(...).",
        lambda: why.open(hf.BertModel),
    ),
    "the weights of a model": (
        "A model must be a folder, a name or an nn.Module, got dict. Load these weights into their module, and pass "
        "that.",
        lambda: why.open({"weight": torch.ones(2)}),
    ),
    "model and input swapped": (
        "The inputs are a model. The model comes first: explain(model, inputs).",
        lambda: why.explain("the film", open_text()),
    ),
    "a model on the meta device": (
        "BertForSequenceClassification has parameters on the meta device, which have no values. Load its weights.",
        lambda: why.explain(make_meta_model(), {"input_ids": IDS}),
    ),
    "a lazy model that has never run": (
        "1.weight of Sequential has no shape yet. Run the model once before opening it.",
        lambda: why.open(nn.Sequential(nn.Flatten(), nn.LazyLinear(2))),
    ),
    "a scripted model": (
        "TopLevelTracedModule is a scripted model, whose operations cannot be followed. Pass the nn.Module it was "
        "scripted from.",
        lambda: why.open(torch.jit.trace(Averages(), torch.ones(1, 3, 8))),
    ),
    "a model without attention": (
        "Averages ran without reaching attention: no softmax multiplied values and no fused attention was called. "
        "What this method reads from attention does not exist. Methods that work here: attnlrp, gradient_x_input, "
        "leave_one_out, rise.",
        lambda: why.explain(Averages().eval(), torch.ones(1, 3, 8), "rollout"),
    ),
    "a device for a module": (
        "An nn.Module is used unchanged: call module.to(...) before opening it instead of passing dtype or device.",
        lambda: why.open(Averages(), device="cpu"),
    ),
    "a device that is not there": (
        "The device 'gpu' is not available: … Leave it out to use the CPU.",
        lambda: why.open("demo/sentiment", device="gpu"),
    ),
    "no tokenizer": (
        "BertForSequenceClassification was opened without a tokenizer, so it needs tensors, got str. "
        'Pass open(module, tokenizer=...), or a dictionary such as {"input_ids": ...}.',
        lambda: why.explain(tiny_text.bert(), "the film"),
    ),
    "the name of a tokenizer": (
        "tokenizer must be a transformers tokenizer such as PreTrainedTokenizerFast, got str. Load it with "
        "AutoTokenizer.from_pretrained(...).",
        lambda: why.open(tiny_text.bert(), tokenizer="bert-base-uncased"),
    ),
    "the tokenizer of another model": (
        "BertForSequenceClassification has no token 6: its token ids are 0 to 5. The tokenizer probably belongs to "
        "another model.",
        lambda: why.explain(why.open(tiny_text.bert(words=6), tokenizer=tiny_text.wordpiece()), "film"),
    ),
    "too few labels": (
        "labels must have one name per class: got 1, but the model has 3 classes.",
        lambda: why.open(tiny_text.bert(), labels=["good"]),
    ),
    # methods and settings
    "a misspelt method": (
        "No method 'rolout'. Did you mean 'rollout'? Available: agcam, …",
        lambda: explain_text("the film", "rolout"),
    ),
    "an abbreviated method": (
        "No method 'ig'. Did you mean 'integrated_gradients'? Available: agcam, …",
        lambda: explain_text("the film", "ig"),
    ),
    "a part of the name of methods": (
        "No method 'shap'. Did you mean 'kernel_shap' or 'partition_shap'? Available: agcam, …",
        lambda: explain_text("the film", "shap"),
    ),
    "a list of methods": (
        "Got 2 methods where one is needed. Use compare() or judge() for several.",
        lambda: explain_text("the film", ["rollout", "attnlrp"]),
    ),
    "a setting of another method": (
        "rollout has no setting 'steps'. It belongs to bi_attribution, integrated_gradients. Settings of rollout: "
        "preset, start, …",
        lambda: explain_text("the film", "rollout", steps=3),
    ),
    "a misspelt argument": (
        "rollout has no setting 'taget'. Did you mean 'target'? Settings of rollout: preset, start, …",
        lambda: explain_text("the film", "rollout", taget=0),
    ),
    "a setting out of range": (
        "steps must be a whole number >= 1, got -1.",
        lambda: explain_text("the film", "integrated_gradients", steps=-1),
    ),
    "a layer that is not there": (
        "layer must be between -2 and 1 for this model, got 12. Negative numbers count from the output.",
        lambda: explain_text("the film", "raw_attention", layer=12),
    ),
    "a precision of 16 bits": (
        "precision must be one of 'float32', 'float64'; got 'float16'. …",
        lambda: explain_text("the film", "rollout", precision="float16"),
    ),
    # targets
    "a misspelt class": (
        "There is no class 'positve'. Did you mean 'positive'? Available: negative, neutral, positive.",
        lambda: explain_text(target="positve"),
    ),
    "a class that is not there": (
        "There is no class 3. Classes are 0 to 2: negative, neutral, positive.",
        lambda: explain_text(target=3),
    ),
    "a contrast with itself": (
        "target and versus are both 'positive'. Choose two different ones.",
        lambda: explain_text(target="positive", versus=2),
    ),
    "too many targets": (
        "target has 3 entries for 2 examples. Pass one for all, or one per example.",
        lambda: explain_text(["the film", "good"], target=[0, 1, 2]),
    ),
    "a token without its space": (
        "Target 'film' is not one token for this model: it is …. Pass \" film\", with a space before it.",
        lambda: why.explain(open_language(), "the", target="film"),
    ),
    "a word of several tokens": (
        "Target ' incomprehensible' is not one token for this model: it is …. Pass a single token.",
        lambda: why.explain(open_language(), "the", target=" incomprehensible"),
    ),
    "a token of a classifier": (
        "There is no class ' film'. Available: negative, neutral, positive.",
        lambda: explain_text(target=" film"),
    ),
    "an answer of a classifier": (
        "BertForSequenceClassification predicts classes, not a next token. Use a causal language model.",
        lambda: why.generate(open_text(), "the film"),
    ),
    # inputs
    "an image for a text model": (
        "Got an image, but BertForSequenceClassification takes texts. Use a model for images.",
        lambda: explain_text(PHOTO),
    ),
    "a text for an image model": (
        "Cannot read 'a photo of a cat': there is no such file. This model takes images; to explain a text, use a "
        "text model such as demo/sentiment.",
        lambda: explain_image("a photo of a cat"),
    ),
    "token ids for an image model": (
        "ViTForImageClassification has no input 'input_ids'. Its inputs are: pixel_values, …",
        lambda: explain_image({"input_ids": IDS}),
    ),
    "a URL": (
        "'https://example.org/cat.jpg' is a URL. Download the image, and pass the file.",
        lambda: explain_image("https://example.org/cat.jpg"),
    ),
    "a folder as image": (
        "Cannot read '/': not a regular file but a folder. Pass a list of its files.",
        lambda: explain_image("/"),
    ),
    "nothing": ("The text must be a string, got None.", lambda: explain_text(None)),
    "an empty text": ("The text is empty.", lambda: explain_text("")),
    "an empty list": ("The list of inputs is empty.", lambda: explain_text([])),
    "a list of lists of texts": (
        "Text 0 must be a string, got list. Pass one flat list of texts.",
        lambda: explain_text([["the film"], ["good"]]),
    ),
    "lists of token ids": (
        'Text 0 must be a string, got list. Pass token ids as {"input_ids": tensor}.',
        lambda: explain_text([[5, 6], [7]]),
    ),
    "a misspelt input": (
        "BertForSequenceClassification has no input 'input_id'. Did you mean 'input_ids'? Its inputs are: input_ids, …",
        lambda: explain_text({"input_id": IDS}),
    ),
    "ids as a list": (
        "Input 'input_ids' must be a tensor, got list. Call the tokenizer or processor with return_tensors=\"pt\".",
        lambda: explain_text({"input_ids": [[5, 6]]}),
    ),
    "a text that is too long": (
        "The text is 22 tokens long; BertForSequenceClassification accepts at most 16. Shorten it, or explain it in "
        "overlapping windows: explain(..., windows=True), --windows.",
        lambda: explain_text("film " * 20),
    ),
    "ids that are not in the vocabulary": (
        "BertForSequenceClassification has no token 999: its token ids are 0 to 19. These ids probably belong to "
        "another model.",
        lambda: explain_ids(torch.tensor([[5, 999]])),
    ),
    "ids as floats": (
        "input_ids must be integers, got float32. Pass int32 or int64.",
        lambda: explain_ids(torch.ones(1, 3)),
    ),
    "a mask of another length": (
        "attention_mask has the shape [1, 3], but the tokens [1, 4].",
        lambda: explain_ids(IDS, attention_mask=torch.ones(1, 3)),
    ),
    "bytes of an image as a tensor": (
        "pixel_values must be floating point, got uint8. Scale it as in training, or open the model with its processor "
        "and pass the image.",
        lambda: explain_image(torch.zeros(1, 3, 16, 16, dtype=torch.uint8)),
    ),
    "an image that is not normalised": (
        "The pixel values run from 0 to 255, as in an image that is not normalised; the processor of "
        "ViTForImageClassification gives values from … to …. Pass the image itself: a path, a Pillow image or an array "
        "[height, width, channel] of 0 to 255.",
        lambda: explain_image(torch.linspace(0, 255, 768).reshape(1, 3, 16, 16)),
    ),
    "channels last": (
        "pixel_values has 16 channels (shape [1, 16, 16, 3]); ViTForImageClassification needs 3. The channels seem to "
        "be the last axis: use permute(0, 3, 1, 2).",
        lambda: explain_image(torch.zeros(1, 16, 16, 3)),
    ),
    "an image of another size": (
        "The image has 20 x 20 pixels; ViTForImageClassification needs 16 x 16. Resize it.",
        lambda: explain_image(torch.zeros(1, 3, 20, 20)),
    ),
    "an array of 0 to 255 as floats": (
        "The image array contains values from 200 to 200; floating-point values must be between 0 and 1. Divide them "
        "by 255 if that is white.",
        lambda: explain_image(np.full((16, 16, 3), 200.0)),
    ),
    "a tensor with NaN": (
        "Input 'pixel_values' contains NaN or infinity.",
        lambda: explain_image(torch.full((1, 3, 16, 16), torch.nan)),
    ),
    # results
    "a negative k": ("k must be >= 0, got -1.", lambda: explain_text("the film", "rollout").top(-1)),
    "a map of a text": (
        "A text has no map. Use .scores and .tokens.",
        lambda: explain_text("the film", "rollout").map(),
    ),
    "an unknown format": (
        "Unknown file format: 'e.docx'. Supported suffixes: .safetensors, .json, .html, .png, …",
        lambda: explain_text("the film", "rollout").save("e.docx"),
    ),
    "a folder that is not there for a result": (
        "Cannot write /no/such/e.html: there is no folder '/no/such'. Make it.",
        lambda: explain_text("the film", "rollout").save("/no/such/e.html"),
    ),
    "a URL for a result": (
        "Cannot write s3://bucket/e.html: it is a URL. Write a file, then upload it.",
        lambda: explain_text("the film", "rollout").save("s3://bucket/e.html"),
    ),
    # judge
    "a method as a metric": (
        "'rollout' is a method, not a metric. Pass it as methods=, or with -m.",
        lambda: judge_text(["good"], metrics=["rollout"]),
    ),
    "a metric as a method": (
        "'deletion' is a metric, not a method. Pass it as metrics=, or with -k.",
        lambda: judge_text(["good"], methods=["deletion"]),
    ),
    "a metric for images": (
        "pointing_game is for images; BertForSequenceClassification takes texts. `whyformer metrics` lists others.",
        lambda: judge_text(["good"], metrics=["pointing_game"]),
    ),
    "a metric of labels without labels": (
        "positive_perturbation needs a label for each example, but the list has none. Name them with "
        "columns={'label': ...} or --column label=NAME, or measure positive_perturbation(against='prediction').",
        lambda: judge_text(["good"], metrics=["positive_perturbation"]),
    ),
    "a metric of rationales without rationales": (
        "token_f1 needs a rationale for each example, but the list has none. Name them with columns={'rationale': ...} "
        "or --column rationale=NAME.",
        lambda: judge_text(["good"], metrics=["token_f1"]),
    ),
    "labels that are no classes of the model": (
        "positive_perturbation needs the true class, but no label of the list (pos, neg) is one of the 3 classes of "
        "BertForSequenceClassification (negative, neutral, positive). Name the class of each label with classes={...} "
        "or --class LABEL=CLASS, or measure positive_perturbation(against='prediction').",
        lambda: judge_text([("good", "pos"), ("bad", "neg")], metrics=["positive_perturbation"]),
    ),
    "texts for an image model": (
        "the list contains texts, but ViTForImageClassification takes images. Choose another model with -M.",
        lambda: why.judge(open_image(), ["good", "bad"], ["rollout"]),
    ),
    "no data": ("There is no example in the list.", lambda: judge_text([])),
    "a data file that is not there": (
        "Cannot read 'nowhere.csv': there is no such file or folder.",
        lambda: judge_text("nowhere.csv"),
    ),
    "methods to compare twice": (
        "rollout is listed twice. List it once, or with different settings.",
        lambda: why.compare(open_text(), "the film", ["rollout", "rollout"]),
    ),
}


@pytest.mark.parametrize("mistake", IN_PYTHON)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_python(mistake, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sentence, make = IN_PYTHON[mistake]
    with pytest.raises(WhyformerError) as raised:
        make()
    message = str(raised.value)
    assert matches(sentence, message), message
    assert "\n" not in message and raised.value.code != "E_INTERNAL"


def test_a_misspelt_verb_of_the_library():
    with pytest.raises(AttributeError, match=r"^whyformer has no 'explane'\. Did you mean 'explain'\?$"):
        _ = why.explane


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "prepare"),
    [
        ("training", nn.Module.train),
        ("half", nn.Module.half),
        pytest.param("compiled", torch.compile, marks=pytest.mark.slow),
    ],
)
def test_no_mistakes(name, prepare):
    """A model in training mode, in half precision on the processor, or compiled: explained as it is in use."""
    module = prepare(tiny_text.bert().float())
    first, second = (why.explain(module, {"input_ids": IDS}, "gradient_x_input", target=0) for _ in range(2))
    assert torch.equal(first.scores, second.scores) and bool(first.scores.any())
    said = "The model computes in float16, and so do its attention and gradients; relevance is computed in float32."
    assert first.notes == ((said,) if name == "half" else ())


# --- on the command line ----------------------------------------------------------------------------------------------


def write_files(folder: Path) -> None:
    """What the commands below find."""
    PHOTO.save(folder / "cat.png")
    texts = {"fake.png": "hello", "reviews.csv": "text,label\na good film,positive\n", "odd.csv": "comment\ngood\n"}
    texts |= {"posts.json": '[{"text": "good"}]', "posts.txt": "good\nbad\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    for name in ("empty", "pickled", "remote", "quantised", "photos/n01440764", "photos/n01443537"):
        (folder / name).mkdir(parents=True)
    config: dict[str, Any] = {"model_type": "bert", "architectures": ["BertModel"]}
    (folder / "pickled" / "config.json").write_text(json.dumps(config))
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"\x80")
    (folder / "remote" / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "mine.Model"}}))
    (folder / "quantised" / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    for name in ("n01440764", "n01443537"):
        PHOTO.save(folder / "photos" / name / "a.png")


ON_COMMAND_LINE: dict[str, tuple[int, str]] = {
    "explian cat.png": (2, "[E_USAGE]: No such command 'explian'. Did you mean 'explain'? See whyformer --help."),
    "explain cat.png --metod rollout": (
        2,
        "[E_USAGE]: No such option: --metod (Possible options: --method, --model). See whyformer --help.",
    ),
    "explain cat.png -m": (2, "[E_USAGE]: Option '-m' requires an argument. See whyformer --help."),
    "judge": (2, "[E_USAGE]: Missing argument 'DATA'. See whyformer --help."),
    "explain dog.jpg": (3, "[E_IMG_READ]: Cannot read 'dog.jpg': there is no such file."),
    "explain fake.png": (3, "[E_IMG_FORMAT]: 'fake.png' is not a PNG, JPEG, WebP, BMP, GIF or TIFF image."),
    "explain s3://bucket/cat.png": (
        3,
        "[E_IMG_READ]: 's3://bucket/cat.png' is a URL. Download the image, and pass the file.",
    ),
    "explain 'a lovely film'": (
        3,
        "[E_IMG_READ]: Cannot read 'a lovely film': there is no such file. This model takes images; to explain a text, "
        "use a text model such as demo/sentiment.",
    ),
    "explain cat.png -M demo/sentiment": (
        3,
        "[E_TXT_TYPE]: 'cat.png' is the name of an image file, but demo/sentiment takes texts. Name a model for images "
        "with -M, such as demo/pets. To explain these words as a text, pass - and write them to standard input.",
    ),
    "explain reviw.txt -M demo/sentiment": (
        3,
        "[E_INPUT]: Cannot read 'reviw.txt': there is no such file. To explain these words as a text, pass - and write "
        "them to standard input.",
    ),
    "explain empty/ -M demo/sentiment": (
        3,
        "[E_INPUT]: The folder 'empty/' contains no file with the suffix .txt, .md.",
    ),
    "explain empty": (3, "[E_INPUT]: The folder 'empty' contains no file with the suffix .png, .jpg, …"),
    "explain '' -M demo/sentiment": (3, "[E_TXT_EMPTY]: The text is empty."),
    "explain cat.png -t Siamesse": (
        2,
        "[E_TARGET]: There is no class 'Siamesse'. Did you mean 'Siamese'? Available: Abyssinian, …",
    ),
    "explain cat.png -t 99": (2, "[E_TARGET]: There is no class 99. Classes are 0 to 36: Abyssinian, …"),
    "explain 'the keys' -M demo/decoder -t are": (
        2,
        "[E_TARGET]: Target 'are' is not one token for this model: it is 'a' + 're'. Pass \" are\", with a space "
        "before it.",
    ),
    "explain good -M demo/sentiment -s layer=3": (
        2,
        "[E_OPTION]: libragrad has no setting 'layer'. Did you mean 'layers'? Settings of libragrad: at, …",
    ),
    "explain cat.png -s start": (2, "[E_OPTION]: 'start' is not a setting. Write NAME=VALUE, such as -s start=1."),
    "explain cat.png -o map.docx": (2, "[E_OPTION]: Unknown file format: 'map.docx'. Supported suffixes: …"),
    "explain cat.png -o nowhere/map.html": (
        4,
        "[E_OUT_PATH]: Cannot write 'nowhere/map.html': there is no folder 'nowhere'. Make it.",
    ),
    "explain cat.png -o empty": (4, "[E_OUT_PATH]: Cannot write 'empty': it is a folder. Name a file in it."),
    "explain cat.png -o cat.png": (4, "[E_OUT_PATH]: -o cat.png would overwrite the input. Choose another name."),
    "explain cat.png -o s3://bucket/map.html": (
        4,
        "[E_OUT_PATH]: -o s3://bucket/map.html is a URL; results are written to this machine. Write a file, then "
        "upload it.",
    ),
    "explain good -M https://huggingface.co/distilbert/distilbert-base-uncased": (
        4,
        "[E_MODEL_NOT_FOUND]: 'https://huggingface.co/distilbert/distilbert-base-uncased' is a URL. Pass the name on "
        "the hub, 'distilbert/distilbert-base-uncased'.",
    ),
    "explain good -M pickled": (
        4,
        "[E_MODEL_PICKLE]: pickled has only pickle weights (pytorch_model.bin), which can run code when they are "
        "loaded. Convert them to safetensors.",
    ),
    "explain good -M pickled/pytorch_model.bin": (
        4,
        "[E_MODEL_PICKLE]: 'pickled/pytorch_model.bin' is a pickle file, which can run code when it is loaded. Save "
        "the model as safetensors, or load it yourself and open the nn.Module.",
    ),
    "explain good -M remote": (
        4,
        "[E_MODEL_PICKLE]: remote needs its own Python code (auto_map in config.json), which whyformer does not run. "
        "If you trust the code, load the model yourself and open the nn.Module.",
    ),
    "explain good -M quantised": (
        4,
        "[E_MODEL_UNSUPPORTED]: quantised is quantised (quantization_config in config.json). Open the full-precision "
        "model.",
    ),
    "explain good -M reviews.csv": (
        4,
        "[E_MODEL_NOT_FOUND]: 'reviews.csv' is a file. Pass the folder that contains config.json and the weights.",
    ),
    "explain good -M .": (
        4,
        "[E_MODEL_NOT_FOUND]: '.' is not a model folder: it has no config.json. Its folder 'pickled' has one.",
    ),
    "judge reviews.csv": (
        3,
        "[E_DATA]: reviews.csv contains texts, but demo/pets takes images. Choose another model with -M.",
    ),
    "judge cat.png": (3, "[E_DATA]: 'cat.png' is one image. Pass the folder it is in, or a list of images."),
    "judge s3://bucket/reviews.csv": (
        3,
        "[E_DATA]: 's3://bucket/reviews.csv' is a URL; data is read from this machine only. Download it first.",
    ),
    "judge posts.json -M demo/sentiment": (
        3,
        "[E_DATA]: Cannot tell the format of 'posts.json'. Of .json files, only HateXplain's dataset.json is read. "
        "Write one object per line, as .jsonl.",
    ),
    "judge posts.txt -M demo/sentiment": (
        3,
        "[E_DATA]: Cannot tell the format of 'posts.txt'. Of .txt files, only those of the Stanford Sentiment Treebank "
        "are read. Write a .csv with a column text, or pass - and one text per line on standard input.",
    ),
    "judge photos": (
        3,
        "[E_DATA]: positive_perturbation needs the true class, but no label of photos (n01440764, n01443537) is one of "
        "the 37 classes of demo/pets (Abyssinian, American Bulldog, American Pit Bull Terrier and 34 more). Name the "
        "class of each label with classes={...} or --class LABEL=CLASS, or measure "
        "positive_perturbation(against='prediction').",
    ),
    "judge reviews.csv -M demo/sentiment -k rollout": (
        2,
        "[E_METRIC]: 'rollout' is a method, not a metric. Pass it as methods=, or with -m.",
    ),
    "judge reviews.csv -M demo/sentiment -m deletion": (
        2,
        "[E_METHOD]: 'deletion' is a metric, not a method. Pass it as metrics=, or with -k.",
    ),
    "judge reviews.csv -M demo/sentiment --limit 0": (
        2,
        "[E_OPTION]: The number of examples must be >= 1, got 0.",
    ),
    "judge reviews.csv -M demo/sentiment -o report.html": (
        4,
        "[E_OUT_PATH]: -o must be a folder, but 'report.html' looks like a file. The folder will hold rows, tables and "
        "a report; name it, for instance, 'report'.",
    ),
    "generate good -M demo/sentiment": (
        3,
        "[E_INPUT]: demo/sentiment predicts classes, not a next token. Use a causal language model.",
    ),
    "bulk-summary empty": (3, "[E_DATA]: empty is not the folder of a bulk run: it has no plan.json."),
    "compare-runs empty empty": (3, "[E_DATA]: empty is not the folder of a bulk run: it has no plan.json."),
    "reproduce chefr": (
        2,
        "[E_OPTION]: There is no document or table 'chefr'. Did you mean 'chefer'? Available: chefer, …",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    write_files(folder)
    return folder


@cache
def open_demo(name: str) -> why.Model:
    return why.open(name)


def open_quickly(source: Any, *, device: str | None = None) -> why.Model:
    """Each demo model once; everything else as it is opened."""
    return open_demo(source) if source.startswith("demo/") else why.open(source, device=device)


@pytest.mark.parametrize("command", ON_COMMAND_LINE)
def test_on_the_command_line(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(loading, "open", open_quickly)
    before = sorted(folder.rglob("*"))
    status, sentence = ON_COMMAND_LINE[command]
    result = CliRunner().invoke(cli.app, shlex.split(command))
    assert matches(f"error{sentence}", result.stderr.removesuffix("\n")), result.stderr
    assert (result.exit_code, result.stdout) == (status, "")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("command", ["explian cat.png", "explain cat.png --metod rollout", "judge"])
def test_on_a_terminal(command, folder):
    """On a real terminal the line is the same, without colour codes and without a traceback."""
    own, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": "300", "TERM": "xterm-256color"}
    program = [sys.executable, "-m", "whyformer", *shlex.split(command)]
    done = subprocess.run(program, stdin=other, stdout=other, stderr=other, env=environment, cwd=folder, check=False)
    os.close(other)
    shown = os.read(own, 65536).decode()
    os.close(own)
    status, sentence = ON_COMMAND_LINE[command]
    assert done.returncode == status and matches(f"error{sentence}\r\n", shown), shown


def test_there_are_at_least_fifty():
    assert len(IN_PYTHON) + len(ON_COMMAND_LINE) >= 50
