"""The definitions written slowly, on tiny real models: one call of the model for each example and step, by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from combined_values import combine_values
from conftest import animal
from fake_probe import picture
from sklearn.metrics import average_precision_score
from tiny_text import bert, wordpiece

import whyformer as why
from whyformer._engine.record import record
from whyformer.metrics._registry import METRICS, choose_metric, measure

TEXTS = ["the film is not good at all !", "a bad film", "the film is good , not bad"]


@pytest.fixture(scope="module")
def pictures():
    """A ViT whose black is -1, three images and their maps."""
    from transformers import ViTImageProcessor

    it = animal("vit")
    processor = ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    model = why.open(it.module, processor=processor)
    encoded = model.encode(it.inputs)
    e = why.explain(model, encoded, "transformer_attribution")
    return it.module, it.inputs["pixel_values"], e, record(model, encoded, keep={"probe"})["probe"]


@pytest.mark.parametrize("name", ["positive_perturbation", "negative_perturbation"])
def test_perturbation(name, pictures):
    """As the authors' script does it: enlarge, scale, take the k highest pixels, black, normalise, classify."""
    module, pixels, e, probe = pictures
    label = torch.tensor([0, 1, 2])
    wanted = []
    for one, scores, truth in zip(pixels, e.scores, label, strict=True):
        enlarged = F.interpolate(scores.reshape(1, 1, 4, 4), size=(16, 16), mode="bilinear").flatten()
        enlarged = -enlarged if name.startswith("negative") else enlarged
        right = []
        for k in range(10):
            varied = one.clone().reshape(3, -1)
            varied[:, enlarged.topk(int(16 * 16 * k / 10)).indices] = -1
            with torch.no_grad():
                answer = module(pixel_values=varied.reshape(1, 3, 16, 16)).logits.argmax(-1).item()
            right.append(float(answer == truth.item()))
        wanted.append(right)
    found = measure(choose_metric(name), {"explanation": e, "probe": probe, "label": label})
    assert found.curve.tolist() == wanted
    areas = [100 * np.trapezoid(row, np.arange(10) / 10) for row in wanted]
    torch.testing.assert_close(found.value, torch.tensor(areas, dtype=torch.float64), rtol=0, atol=1e-9)
    mean_curve = np.mean(wanted, 0)  # the paper's figure: the area under the accuracy of the data set
    assert combine_values(METRICS[name], found.value) == pytest.approx(
        100 * np.trapezoid(mean_curve, np.arange(10) / 10)
    )


@pytest.fixture(scope="module")
def texts():
    model = why.open(bert(), tokenizer=wordpiece())
    encoded = model.encode(TEXTS)
    e = why.explain(model, encoded, "gradient_x_input")
    return model, encoded, e, record(model, encoded, keep={"probe"})["probe"]


def answers(model, ids, target):
    with torch.no_grad():
        return model.module(input_ids=torch.tensor([ids])).logits.softmax(-1)[0, target].item()


def by_rank(e, i, tokens):
    """Places of the tokens that count, the highest score first."""
    count = [n for n in range(len(tokens)) if not tokens.special[n] and not tokens.padding[n]]
    return sorted(count, key=lambda n: -e.scores[i, n].item())


@pytest.mark.parametrize("name", ["aopc", "comprehensiveness", "sufficiency", "log_odds"])
def test_tokens_deleted_or_masked_one_text_at_a_time(name, texts):
    model, encoded, e, probe = texts
    fractions, mask = (0.2, 0.5, 0.8), model.tokenizer.mask_token_id
    wanted = []
    for i, tokens in enumerate(e.tokens):
        length = len(tokens) - sum(tokens.padding)
        ids, target = encoded.inputs["input_ids"][i, :length].tolist(), e.targets[i].index
        order, before = by_rank(e, i, tokens), answers(model, ids, target)
        row = []
        for fraction in fractions:
            top = order[: max(1, int(fraction * len(order) + 0.5))]
            if name == "log_odds":
                after = answers(model, [mask if n in top else token for n, token in enumerate(ids)], target)
                row.append(np.log(after / before))
            else:
                gone = top if name != "sufficiency" else [n for n in order if n not in top]
                row.append(before - answers(model, [t for n, t in enumerate(ids) if n not in gone], target))
        wanted.append(row)
    found = measure(choose_metric(name, {"fractions": fractions}), {"explanation": e, "probe": probe})
    torch.testing.assert_close(found.curve, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.value, torch.tensor(wanted, dtype=torch.float64).mean(1), rtol=0, atol=1e-9)


def test_segmentation_over_a_data_set():
    """Pixel by pixel over ten images, with ignored ones: sums over the data set, then the ratio."""
    rng = np.random.default_rng(0)
    maps = [rng.random(16) for _ in range(10)]
    masks = [rng.choice([-1, 0, 1], size=(8, 8), p=[0.2, 0.5, 0.3]) for _ in range(10)]
    right = labelled = 0
    both, either = np.zeros(2), np.zeros(2)
    precisions = []
    for one, mask in zip(maps, masks, strict=True):
        enlarged = F.interpolate(torch.tensor(one).reshape(1, 1, 4, 4), size=(8, 8), mode="bilinear")[0, 0].numpy()
        enlarged = (enlarged - enlarged.min()) / (enlarged.max() - enlarged.min())
        scores, truths = [], []
        for value, truth in zip(enlarged.flatten(), mask.flatten(), strict=True):
            if truth < 0:
                continue
            guess = int(value > enlarged.mean())
            labelled += 1
            right += guess == truth
            for c in (0, 1):
                both[c] += guess == c and truth == c
                either[c] += guess == c or truth == c
            scores += [1 - value, value]
            truths += [truth == 0, truth == 1]
        precisions.append(average_precision_score(truths, scores))
    given = {"explanation": picture(np.stack(maps), 4, 4), "mask": masks}
    wanted = {
        "pixel_accuracy": right / labelled,
        "mean_iou": (both / either).mean(),
        "mean_average_precision": np.mean(precisions),
    }
    for name, slowly in wanted.items():
        found = measure(choose_metric(name), given)
        assert combine_values(METRICS[name], found.value, found.parts) == pytest.approx(slowly, abs=1e-9)
