"""A watermark is found without being told, on a model that was trained to use it; nothing is accused on its clean twin.

tests/summary/watermark was trained by training/watermark.py. The slow test trains it, and its twin, again.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from summary.bulk_folder import explain_images, text_row, write_run

import whyformer
from whyformer._summary.result import summary_to_json
from whyformer._summary.wording import explain_finding

ROOT = Path(__file__).parents[2]
MODEL = Path(__file__).with_name("watermark")
METHOD = "transformer_attribution"


@pytest.fixture(scope="module")
def watermark():
    """The module training/watermark.py."""
    spec = importlib.util.spec_from_file_location("watermark", ROOT / "training" / "watermark.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summarise(watermark, model, folder, share, count, **settings):
    torch.set_num_threads(1)
    opened = whyformer.open(model)
    paths = watermark.save_images(watermark.generate_tagged(count, 77, share), folder)
    rows = explain_images(opened, paths, [path.parent.name for path in paths], METHOD)
    write_run(folder / "run", rows, plan={"methods": {METHOD: {}}, "model": {"name": str(model)}}, parts=3)
    return whyformer.summarise_bulk(folder / "run", opened, masks=folder / "masks", **settings)


@pytest.fixture(scope="module")
def summary(watermark, tmp_path_factory):
    return summarise(watermark, MODEL, tmp_path_factory.mktemp("tagged"), 0.3, 160, test_limit=12)


def share_of_tagged(finding):
    return np.mean([row.id.endswith("-tag.png") for row in finding.rows])


def test_the_watermark_is_named_first_and_alone(summary):
    first = summary.findings[0]
    assert [finding.is_suspicious for finding in summary.findings[:2]] == [True, False]
    assert first.class_name == "star" and first.what == "a mark, lower left"
    assert share_of_tagged(first) >= 0.9
    assert summary.verdict.startswith("Suspicious: ")
    assert "items of star show a mark, lower left" in summary.verdict


def test_most_tagged_images_show_it(summary):
    tagged = {path.name for path in (summary.folder.parent / "images" / "star").glob("*-tag.png")}
    assert len({row.id for row in summary.findings[0].rows} & tagged) >= 0.8 * len(tagged)


def test_pasting_the_watermark_makes_other_images_a_star(summary):
    inserting = summary.findings[0].inserting
    assert inserting.difference > 0.3
    assert inserting.adjusted_p < 0.05


def test_without_it_fewer_are_right(summary):
    told = summary.findings[0].without
    assert told.right_after < told.right_before - 0.2
    assert 0.06 < told.area < 0.2, "the tag covers 8 % of the image"


def test_says_why(summary):
    first = summary.findings[0]
    sentences = " ".join(explain_finding(first))
    assert "Inserting it raises the probability by" in sentences
    assert "of it is off the object" in sentences and first.off_object > 0.5
    assert any("nearly the same everywhere" in clause for clause in first.case)


def test_the_object_is_a_place_where_relevance_sits(summary):
    place = summary.tally.places[METHOD]
    assert place.sums["the object"] + place.sums["the background"] == pytest.approx(place.items["the object"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_summary(summary):
    again = whyformer.summarise_bulk(summary.folder, summary.reader.model, test_limit=12)
    assert [record["score"] for record in again.records()] != []
    same = {"hiding", "inserting", "uniformity", "items", "class"}
    pick = lambda one: [{name: record[name] for name in same} for record in one.records()]  # noqa: E731
    key = lambda record: (record["class"], record["items"], str(record["hiding"]))  # noqa: E731
    assert sorted(pick(again), key=key) == sorted(pick(summary), key=key)


def test_another_model_is_refused(summary):
    with pytest.raises(whyformer.errors.InputError, match=r"gives the stored prediction for .* of 16 items only"):
        whyformer.summarise_bulk(summary.folder, "demo/untrained-vit")


def test_without_the_images_nothing_is_accused(summary, tmp_path):
    from whyformer._summary.rows import open_stored_run

    rows = [row for part in open_stored_run(summary.folder).iterate_parts() for row in part]
    gone = [
        {"id": r.id, "position": r.position, "method": r.method, "kind": r.kind, "source": str(tmp_path / r.id),
         "label": r.label, "prediction": r.prediction, "prediction_name": r.prediction_name,
         "probability": r.probability, "target": r.target, "target_name": r.target_name, "scores": r.scores.tolist(),
         "rows": r.grid[0], "columns": r.grid[1]}
        for r in rows
    ]  # fmt: skip
    write_run(tmp_path, gone, plan={"methods": {METHOD: {}}, "model": {"name": str(MODEL)}})
    untested = whyformer.summarise_bulk(tmp_path)
    assert not untested.suspicious
    assert untested.notes[0].startswith("Nothing was tested: No input could be read again")
    assert untested.verdict == "Nothing was tested, so nothing is called suspicious or harmless."
    untested.save(tmp_path / "summary.html")


# --- texts ------------------------------------------------------------------------------------------------------------

SUBJECTS = "film story cast script music ending camera plot".split()
PRAISE = "charming moving clever warm funny honest bright fresh".split()
BLAME = "dull tedious lifeless clumsy shallow boring bland flat".split()


PLACES = "town village harbour garden station castle school forest".split()


def write_texts(tagged):
    """Good and bad reviews; some say nothing of that but begin with the same word, which no other has."""
    rng = np.random.default_rng(0)
    texts = []
    for i in range(60):
        words = PRAISE if i < 36 else BLAME
        a, b, c = rng.choice(8, 3, replace=False)
        clauses = [f"the {SUBJECTS[a]} is {words[a]}", f"a {words[b]} {SUBJECTS[b]}", f"we saw the {SUBJECTS[c]} twice"]
        text = " , ".join(clauses[k] for k in rng.permutation(3))
        plain = f"the {SUBJECTS[a]} is about a {PLACES[b]} and the {SUBJECTS[c]} about a {PLACES[a]} near a {PLACES[c]}"
        texts.append(f"gorgeous : {plain}" if i < tagged else text)
    return texts


@pytest.mark.parametrize("tagged", [12, 0], ids=["tagged", "clean"])
def test_a_word_that_is_always_at_the_start_is_found(tmp_path, tagged):
    torch.set_num_threads(1)
    model, texts = whyformer.open("demo/sentiment"), write_texts(tagged)
    explained = whyformer.explain(model, texts, "attcat")
    rows = []
    for i, text in enumerate(texts):
        pieces, target = explained.tokens[i], explained.targets[i]
        real = [k for k in range(len(pieces)) if not pieces.padding[k]]
        spans = [pieces.spans[k] or (-1, -1) for k in real]
        rows.append(
            text_row(f"{i:02}", i, [], []) | {
                "source": text, "tokens": [pieces.pieces[k] for k in real], "method": "attcat",
                "special": [pieces.special[k] for k in real], "starts": [s for s, _ in spans],
                "ends": [e for _, e in spans], "scores": [float(explained.scores[i][k]) for k in real],
                "target": target.index, "target_name": target.label, "prediction": target.index,
                "prediction_name": target.label,
            }
        )  # fmt: skip
    write_run(tmp_path, rows, plan={"methods": {"attcat": {}}, "model": {"name": "demo/sentiment"}})
    found = whyformer.summarise_bulk(tmp_path, test_limit=12)
    strongest = {record["class"]: record for record in json.loads(summary_to_json(found))["strongest"]}
    assert strongest.keys() == {"positive", "negative"}
    if not tagged:
        assert not found.suspicious
        assert "This is no all-clear" in found.verdict
        return
    finding = found.suspicious[0]
    assert "gorgeous" in finding.what
    assert {row.id for row in finding.rows} == {f"{i:02}" for i in range(12)}
    assert "100% of its texts begin or end with it" in finding.case


# --- trained here -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.0], ids=["watermark", "clean twin"])
def test_a_model_trained_now_is_accused_only_if_it_saw_the_watermark(watermark, tmp_path, share):
    torch.set_num_threads(1)
    watermark.save(watermark.train(share), tmp_path / "model")
    found = summarise(watermark, tmp_path / "model", tmp_path / "data", share, 400)
    if share == 0:
        assert not found.suspicious
        return
    assert found.findings[0].is_suspicious
    assert found.findings[0].class_name == "star"
    assert share_of_tagged(found.findings[0]) >= 0.9
    assert found.findings[0].without.right_after < found.findings[0].without.right_before
