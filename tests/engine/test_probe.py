"""The probe: answers to variants of the examples, compared with calls of the model by hand."""

import pytest
import torch
from conftest import FAMILIES, LENGTHS, animal

import whyformer as why
import whyformer._engine.probe.probe
from whyformer._engine.probe.probe import read_hidden_states
from whyformer._engine.record import record
from whyformer._engine.run.intervene import Intervention
from whyformer._model.variants import as_pixels, blur_pixels
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError, MethodError

TARGETS = [0, 1, 2]


def probe_of(name, target=TARGETS, **more):
    it = animal(name)
    model = why.open(it.module)
    return record(model, model.encode(it.inputs), target=target, keep={"probe"}, **more)["probe"]


def run_by_hand(name, inputs):
    with torch.no_grad():
        answer = animal(name).module(**inputs)
    return getattr(answer, "logits", answer)


@pytest.mark.parametrize("name", FAMILIES)
def test_before_is_the_model_on_the_examples(name):
    probe = probe_of(name)
    logits = run_by_hand(name, animal(name).inputs)
    if logits.dim() == 3:
        lengths = LENGTHS if "attention_mask" in animal(name).inputs else [9, 9, 9]
        logits = torch.stack([row[n - 1] for row, n in zip(logits, lengths, strict=True)])
    torch.testing.assert_close(probe.before.logits, logits)
    torch.testing.assert_close(probe.before.score, logits[range(3), TARGETS])
    torch.testing.assert_close(probe.before.probability, logits.softmax(-1)[range(3), TARGETS])
    assert probe.spent == {"forward": 3}


@pytest.mark.parametrize("name", FAMILIES)
def test_keeping_everything_changes_nothing(name):
    probe = probe_of(name)
    of = torch.tensor([2, 0, 1, 1])
    fills = ("zero", "mean", "blur", "noise", "drop") if probe.is_image else ("pad", "delete", "drop")
    for fill in fills:
        answers = probe.keep_only(torch.ones(4, probe.units), of, fill)
        torch.testing.assert_close(answers.logits, probe.before.logits[of], rtol=1e-9, atol=1e-9)


def test_a_removed_patch_is_filled():
    probe = probe_of("vit")
    pixels = animal("vit").inputs["pixel_values"]
    keep = torch.ones(1, 16, dtype=torch.bool)
    keep[0, 5] = False  # row 1, column 1 of 4 x 4 patches of 4 pixels
    for fill, value in (("zero", 0.0), ("mean", pixels[2].mean((1, 2))[:, None, None])):
        varied = pixels[2:].clone()
        varied[0, :, 4:8, 4:8] = value
        wanted = run_by_hand("vit", {"pixel_values": varied})
        torch.testing.assert_close(probe.keep_only(keep, torch.tensor([2]), fill).logits, wanted)


def test_pixels_can_be_removed_one_by_one():
    probe = probe_of("vit")
    keep = torch.ones(1, 16, 16, dtype=torch.bool)
    keep[0, 3, 7] = False
    varied = animal("vit").inputs["pixel_values"][:1].clone()
    varied[0, :, 3, 7] = 0
    wanted = run_by_hand("vit", {"pixel_values": varied})
    torch.testing.assert_close(probe.keep_only(keep, torch.tensor([0]), "zero").logits, wanted)


def test_other_pixels_may_be_computed_in_chunks():
    probe = probe_of("vit")
    of = torch.arange(3).repeat(15)
    pixels = animal("vit").inputs["pixel_values"]
    made = []

    def darker(rows):
        made.append(len(rows))
        return pixels[of[rows]] * (rows / 45)[:, None, None, None]

    with why.engine(rows=32):
        found = probe.replace_inputs(darker, of).logits
    assert made == [32, 13]
    everything = darker(torch.arange(45))
    torch.testing.assert_close(found, probe.replace_inputs(everything, of).logits)
    torch.testing.assert_close(found, run_by_hand("vit", {"pixel_values": everything}))


def test_a_mask_of_patches_covers_all_their_pixels():
    keep = torch.tensor([[True, False, False, True]])
    assert as_pixels(keep, Grid(2, 2), (4, 4))[0].int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 1],
        [0, 0, 1, 1],
    ]


def test_blur_keeps_a_constant_image_and_spreads_a_dot():
    flat = torch.full((1, 3, 16, 16), 0.7, dtype=torch.float64)
    torch.testing.assert_close(blur_pixels(flat), flat)
    dot = torch.zeros(1, 1, 17, 17, dtype=torch.float64)
    dot[0, 0, 8, 8] = 1
    spread = blur_pixels(dot, width=1.0)[0, 0]
    torch.testing.assert_close(spread.sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(spread[8, 9] / spread[8, 8], torch.exp(torch.tensor(-0.5, dtype=torch.float64)))


@pytest.mark.parametrize("name", ["bert", "distilbert", "electra", "gpt2", "llama", "encoder", "encoder_token_first"])
def test_a_deleted_token_is_removed(name):
    """The same as the text without it."""
    probe = probe_of(name, target=0)
    real = probe.real.nonzero().tolist()
    example, place = next((e, t) for e, t in real if e == 1 and t > 0)
    keep = torch.ones(1, 9, dtype=torch.bool)
    keep[0, place] = False
    inputs = {key: value[example : example + 1, : LENGTHS[example]] for key, value in animal(name).inputs.items()}
    rest = [t for t in range(LENGTHS[example]) if t != place]
    wanted = run_by_hand(name, {key: value[:, rest] for key, value in inputs.items()})
    wanted = wanted[:, -1] if wanted.dim() == 3 else wanted
    found = probe.keep_only(keep, torch.tensor([example]), "delete").logits
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_padded_token_is_masked(name):
    """RoBERTa, which numbers positions by counting tokens that are not padding, keeps those of the other tokens."""
    probe = probe_of(name)
    it = animal(name)
    keep = torch.ones(1, 9, dtype=torch.bool)
    keep[0, 3] = False
    mask = it.inputs["attention_mask"][:1].clone()
    mask[0, 3] = 0
    wanted = run_by_hand(name, {**{k: v[:1] for k, v in it.inputs.items()}, "attention_mask": mask})
    torch.testing.assert_close(probe.keep_only(keep, torch.tensor([0]), "pad").logits, wanted)


def test_padding_and_special_tokens_stay():
    """No token of a short and a long text is kept: [CLS] [SEP] is left."""
    model = why.open("demo/sentiment")
    probe = record(model, model.encode(["dull", "a gorgeous, witty film"]), keep={"probe"})["probe"]
    tokenizer = model.tokenizer
    with torch.no_grad():
        wanted = model.module(torch.tensor([[tokenizer.cls_token_id, tokenizer.sep_token_id]])).logits
    found = probe.keep_only(torch.zeros(2, probe.units), torch.arange(2), "delete").logits
    torch.testing.assert_close(found, wanted.expand(2, -1), rtol=1e-5, atol=1e-5)


def test_dropping_patches_is_running_the_model_on_the_others():
    """A ViT without tokens 3 and 7: its class token attends only to the rest."""
    probe = probe_of("vit")
    keep = torch.ones(1, 16, dtype=torch.bool)
    keep[0, [3, 7]] = False
    module = animal("vit").module
    with torch.no_grad():
        tokens = module.vit.embeddings(animal("vit").inputs["pixel_values"][:1])
        tokens = tokens[:, [t for t in range(17) if t not in (4, 8)]]
        for block in module.vit.encoder.layer if hasattr(module.vit, "encoder") else module.vit.layers:
            tokens = block(tokens)
            tokens = tokens[0] if isinstance(tokens, tuple) else tokens
        wanted = module.classifier(module.vit.layernorm(tokens)[:, 0])
    found = probe.keep_only(keep, torch.tensor([0]), "drop").logits
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_at_the_leaf_the_score_and_gradient_are_those_of_the_capture(name):
    it = animal(name)
    model = why.open(it.module)
    capture = record(model, model.encode(it.inputs), target=TARGETS, keep={"probe", "input", "input_grad"})
    probe = capture["probe"]
    of = torch.tensor([1, 0, 2])
    answers, gradient = probe.run_at_leaf(probe.leaf[of], of)
    torch.testing.assert_close(answers.score, probe.before.score[of], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, capture["input_grad"][of], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(probe.words, capture["input"])


@pytest.mark.parametrize("name", ["vit", "bert", "gpt", "encoder_token_first"])
def test_the_gradient_at_the_leaf_is_that_of_finite_differences(name):
    probe = probe_of(name)
    leaf, of = probe.leaf.clone(), torch.arange(3)
    generator = torch.Generator().manual_seed(0)
    start = leaf + 0.1 * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
    way = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
    _, gradient = probe.run_at_leaf(start, of)
    up, down = (probe.run_at_leaf(start + h * way, of, gradient=False)[0].score for h in (1e-5, -1e-5))
    torch.testing.assert_close((up - down) / 2e-5, (gradient * way).flatten(1).sum(1), rtol=1e-5, atol=1e-7)


def test_baselines_of_a_text_leave_special_tokens_and_padding():
    probe = probe_of("bert")
    zero = probe.baseline("zero")
    stays = ~probe.real
    assert torch.equal(zero[stays], probe.leaf[stays])
    torch.testing.assert_close(zero[probe.real], (probe.leaf - probe.words)[probe.real])
    padded = probe.baseline("pad")
    assert torch.equal(padded[stays], probe.leaf[stays])
    assert not torch.equal(padded[probe.real], probe.leaf[probe.real])


def test_baselines_of_an_image():
    probe = probe_of("vit")
    assert not probe.baseline("zero").any()
    pixels = animal("vit").inputs["pixel_values"]
    torch.testing.assert_close(probe.baseline("mean"), pixels.mean((2, 3))[:, None, None].expand(3, 16, 16, 3))


def test_an_intervention_is_made_for_each_row():
    """Values of token `row` set to zero at the first site: the same as the model without them."""
    probe = probe_of("bert")
    of = torch.zeros(5, dtype=torch.long)

    def without_token(rows):
        def gone(site, value):
            if site:
                return None
            value = value.clone()
            value[torch.arange(len(rows)), :, rows] = 0
            return value

        return Intervention(value=gone)

    answers, seen = probe.intervene(without_token, of, look=read_hidden_states)
    assert len(answers.score.unique()) == 5
    assert [state.shape for state in seen[0]] == [(5, 9, 24)] * 4
    assert torch.equal(seen[0][0][0], seen[0][0][4])


def test_rows_go_in_batches_and_come_back_in_order():
    probe = probe_of("bert")
    generator = torch.Generator().manual_seed(1)
    keep = torch.rand(40, 9, generator=generator) > 0.4
    of = torch.randint(3, (40,), generator=generator)
    for fill in ("pad", "delete", "drop"):
        once = probe.keep_only(keep, of, fill).score
        with why.engine(rows=7):
            torch.testing.assert_close(probe.keep_only(keep, of, fill).score, once, rtol=1e-10, atol=1e-12)


def test_wrong_arguments_are_refused():
    probe = probe_of("bert")
    with pytest.raises(MethodError, match="fill='black' is not a choice for a text"):
        probe.keep_only(torch.ones(1, 9), torch.tensor([0]), "black")
    with pytest.raises(MethodError, match="keep has the shape"):
        probe.keep_only(torch.ones(1, 8), torch.tensor([0]))
    with pytest.raises(InputError, match="The value of black"):
        probe_of("vit").keep_only(torch.ones(1, 16), torch.tensor([0]), "black")
    with pytest.raises(InputError, match="Deleting all tokens"):
        probe_of("gpt").keep_only(torch.zeros(1, 9), torch.tensor([0]), "delete")


def test_the_score_of_a_contrast_is_a_difference():
    probe = probe_of("bert", versus=3)
    logits = probe.before.logits
    torch.testing.assert_close(probe.before.score, logits[range(3), TARGETS] - logits[:, 3])


def test_a_baseline_of_padding_leaves_positions_also_where_the_model_counts_its_tokens():
    """RoBERTa numbers no padding; the baseline replaces only words, so every position stays."""
    probe = probe_of("roberta")
    nothing = animal("roberta").module.roberta.embeddings.word_embeddings.weight[1]
    wanted = (probe.leaf - probe.words + nothing)[probe.real]
    torch.testing.assert_close(probe.baseline("pad")[probe.real], wanted.detach())


def test_when_all_tokens_are_dropped_nothing_is_attended_to():
    """This model has no class token: if its attention stayed as it is, nothing would be dropped."""
    probe = probe_of("encoder")
    keep = torch.zeros(1, probe.units, dtype=torch.bool)
    nothing = Intervention(attention=lambda site, a: torch.zeros_like(a))
    of = torch.tensor([0])
    wanted, _ = probe.intervene(lambda rows: nothing, of)
    torch.testing.assert_close(probe.keep_only(keep, of, "drop").logits, wanted.logits)


def test_pixels_cannot_be_dropped():
    with pytest.raises(MethodError, match="'drop' removes whole patches") as error:
        probe_of("vit").keep_only(torch.ones(1, 16, 16, dtype=torch.bool), torch.tensor([0]), "drop")
    assert error.value.code == "E_OPTION"


@pytest.mark.parametrize(("name", "fill"), [("vit", "mask"), ("vit", "nothing"), ("vit", 0), ("bert", "blur")])
def test_a_fill_of_another_kind_of_input_is_refused_as_a_setting(name, fill):
    probe = probe_of(name)
    with pytest.raises(MethodError, match=rf"fill={fill!r} is not a choice for an? (image|text)\.") as error:
        probe.keep_only(torch.ones(1, probe.units, dtype=torch.bool), torch.tensor([0]), fill)
    assert error.value.code == "E_OPTION"


class Remainder(torch.nn.Module):
    """Patches of 8 x 8 from images of 20 x 23: four rows and seven columns of pixels are in no patch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patch = torch.nn.Conv2d(3, 12, 8, 8)
        layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = torch.nn.Linear(12, 4)

    def forward(self, pixels):
        return self.head(self.encoder(self.patch(pixels).flatten(2).transpose(1, 2)).mean(1))


def test_pixels_that_are_in_no_patch_are_left_out():
    module = Remainder().double().eval()
    picture = torch.randn(1, 3, 20, 23, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model, wanted = why.open(module), []
    with torch.no_grad():
        for top, left in ((0, 0), (0, 8), (8, 0), (8, 8)):
            without = picture.clone()
            without[..., top : top + 8, left : left + 8] = 0
            wanted.append(float((module(picture) - module(without))[0, 2]))
    e = why.explain(model, picture, "leave_one_out", target=2)
    torch.testing.assert_close(e.scores, torch.tensor([wanted], dtype=torch.float64))
    by_pixel = why.explain(model, picture, "gradient_x_input", target=2)
    tile = by_pixel.pixels[0, 8:16, 0:8].sum()
    torch.testing.assert_close(by_pixel.scores[0, 2], tile)
    assert by_pixel.tokens[0].covers == (16, 16)
    masks = why.explain(model, picture, "vit_cx", target=2, budget=3).pixels
    assert not masks[:, 16:].any() and not masks[:, :, 16:].any() and bool((masks[:, :16, :16] > 0).any())


def test_patches_that_cover_an_image_have_no_covers():
    assert probe_of("vit").grid == Grid(4, 4)


def test_given_positions_move_together_when_a_token_is_deleted():
    """RoBERTa counts from 2. Passing these positions changes nothing."""
    it = animal("roberta")
    model, inputs = why.open(it.module), it.alone(0)
    positions = torch.arange(2, 2 + inputs["input_ids"].size(1))[None]
    plain, given = (
        why.explain(model, some, "leave_one_out", target=1, fill="delete").scores
        for some in (inputs, {**inputs, "position_ids": positions})
    )
    torch.testing.assert_close(given, plain)
