"""Situations, forty and some, and what the sentences above the numbers must and must not say in each.

Every situation makes a result as a person does, or plants the numbers from which a verdict is written, and returns the
text that a person reads. `must` and `must_not` are regular expressions, searched in that text with its white space
made single spaces. They were written before the verdicts were mended.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from audit.known import idle, sentences
from judge.planted_rows import many, plant_table
from summary.bulk_folder import text_row, write_run
from verdicts.at_hand import find, marked_posts, open_model, pronoun_sentences

import whyformer as why
from whyformer._audit.checks import DELETED
from whyformer._audit.report.verdict import write_audit_headline
from whyformer._judge.order import compare_pairs
from whyformer._judge.verdict import list_verdict
from whyformer._summary.finding import AnswerChange, Effect, Finding, Uniformity, judge_findings
from whyformer._summary.wording import write_finding_caption
from whyformer_papers.published_order import describe_orders

RECOMMENDS = "^On this data use"
NOTHING = "nothing to recommend"


@dataclass(frozen=True)
class Situation:
    make: Callable[[Path], str]
    must: Sequence[str] = ()
    must_not: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.make.__name__


SITUATIONS: list[Situation] = []


def situation(*must: str, never: Sequence[str] = ()) -> Callable:
    def add(make: Callable[[Path], str]) -> Callable[[Path], str]:
        SITUATIONS.append(Situation(make, must, never))
        return make

    return add


def find_faults(one: Situation, text: str) -> list[str]:
    """What is missing, and what should not be there."""
    flat = " ".join(text.split())
    missing = [f"does not say {pattern!r}" for pattern in one.must if not re.search(pattern, flat)]
    return missing + [f"says {pattern!r}" for pattern in one.must_not if re.search(pattern, flat)]


# --- one explanation: what the model says to nothing ------------------------------------------------------------------


@situation(r"% with every word hidden", r"% -> \d+ % with the \d highest words? hidden")
def redundant_words(tmp_path):
    """Two pronouns, either of which is enough: hiding them changes nothing, and the page says so."""
    model = open_model("xtremedistil-l6-h256-text-gender")
    return str(why.explain(model, "The doctor said she lost her book.", check=True))


class Constant(torch.nn.Module):
    """Reads its input and always gives the same answer."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(30, 4)

    def forward(self, input_ids, attention_mask=None):
        return 0.0 * self.words(input_ids).sum((1, 2))[:, None] + torch.tensor([[2.0, 0.0]])


class Length(Constant):
    """Answers from the number of tokens alone."""

    def forward(self, input_ids, attention_mask=None):
        longer = 0.0 * self.words(input_ids).sum((1, 2)) + float(input_ids.shape[1]) - 4
        return torch.stack([-longer, longer], 1)


@situation("hidden", r"same answer with every token hidden", never=["evidence for"])
def constant_model(tmp_path):
    return str(why.explain(why.open(Constant()), torch.arange(1, 7)[None], "gradient_x_input", check=True))


@situation("hidden", r"same answer with every token hidden", never=["evidence for"])
def model_that_answers_from_length(tmp_path):
    return str(why.explain(why.open(Length()), torch.arange(1, 9)[None], "gradient_x_input", check=True))


@situation(r"with every word hidden", never=[r"hardly|does not depend"])
def words_that_decide(tmp_path):
    return str(why.explain("demo/sentiment", "a gorgeous, witty, seductive film", check=True))


@situation(r"% with the \d+ highest patches hidden; \d+ % with every patch hidden", never=["evidence for"])
def an_image_with_its_highest_patches_hidden(tmp_path):
    return str(why.explain("demo/shapes", torch.rand(3, 96, 96), check=True))


@situation(r"sums? to", r"answer")
def scores_that_do_not_sum_to_the_answer(tmp_path):
    """LibraGrad adds one share of the answer for each block."""
    return str(why.explain("demo/sentiment", "a gorgeous, witty, seductive film", "libragrad"))


@situation(
    r"scores sum to \+[\d.]+ \(libragrad\); in other units \+[\d.]+ \(rollout\)", r"output for this answer is [\d.]+"
)
def scores_of_methods_with_other_units(tmp_path):
    compared = why.compare("demo/sentiment", "a gorgeous, witty, seductive film", ["libragrad", "rollout"])
    return str(compared) + compared.formats[".html"](compared).decode()


@situation(r"they sum to \+[\d.]+, [\d.]+ times [\d.]+, the output for this answer")
def scores_of_generated_tokens(tmp_path):
    written = why.explain_generation("demo/decoder", "the keys to the cabinet", max_new_tokens=1)
    return str(written)


@situation("same answer with every word hidden, so hiding cannot show", never=["do not decide"])
def the_same_answer_with_every_word_hidden(tmp_path):
    """Another pronoun would change the answer: that hiding says nothing does not mean that words decide nothing."""
    model = open_model("xtremedistil-l6-h256-text-gender")
    return str(why.explain(model, "The doctor said she lost her book.", check=True))


@situation(r"99 % -> \d %", "only keep it: the others alone lower it", never=["hiding cannot show"])
def words_that_keep_the_answer_that_nothing_gives_too(tmp_path):
    """Every word hidden: female. The two pronouns hidden: 'He' decides. So the pronouns do something."""
    model = open_model("xtremedistil-l6-h256-text-gender")
    return str(why.explain(model, "He said that she was very happy with her new job", check=True))


# --- judge ------------------------------------------------------------------------------------------------------------


def level(count=40, **means):
    """Values around these means, one seed for each method."""
    return {method: many(mean, count, seed=seed) for seed, (method, mean) in enumerate(means.items())}


def judged(tmp_path, metrics, **more) -> str:
    return " ".join(list_verdict(plant_table(tmp_path, metrics, **more)))


def headline(tmp_path, metrics, **more) -> str:
    return list_verdict(plant_table(tmp_path, metrics, **more))[0]


@situation(NOTHING, r"about [\d,]+ examples|is ahead of", never=[RECOMMENDS, "Use more examples"])
def noise(tmp_path):
    values = level(attnlrp=1.0, rollout=1.0, libragrad=1.0, chance=1.0, last_words=1.0)
    return judged(tmp_path, {"comprehensiveness": values}, kind="texts")


@situation(r"Where no method is better than the controls, \d % of tables recommend one", never=["2,900", "At most 5 %"])
def how_often_noise_is_recommended(tmp_path):
    return judged(tmp_path, {"comprehensiveness": level(attnlrp=2.0, chance=1.0, last_words=1.0)}, kind="texts")


@situation(NOTHING, r"token_f1.*decides nothing|informs", never=[RECOMMENDS])
def only_what_people_mark_tells_methods_apart(tmp_path):
    equal = level(saliency=1.0, attnlrp=1.0, chance=1.0, last_words=1.0)
    marked = level(saliency=2.0, attnlrp=1.0, chance=1.0, last_words=1.0)
    return judged(tmp_path, {"comprehensiveness": equal, "token_f1": marked}, kind="texts")


@situation(r"^On this data use attnlrp", never=["use saliency"])
def people_prefer_another_method(tmp_path):
    faithful = level(saliency=1.5, attnlrp=2.0, chance=1.0, last_words=1.0)
    marked = level(saliency=2.0, attnlrp=1.5, chance=1.0, last_words=1.0)
    return judged(tmp_path, {"comprehensiveness": faithful, "token_f1": marked}, kind="texts")


@situation(f"{RECOMMENDS} attnlrp", "worse than last_words in sufficiency")
def worse_than_a_control_in_another_metric(tmp_path):
    good = level(attnlrp=2.0, chance=1.0, last_words=1.0)
    bad = level(attnlrp=2.0, chance=3.0, last_words=1.0)  # lower is better
    return headline(tmp_path, {"comprehensiveness": good, "sufficiency": bad}, kind="texts")


@situation(RECOMMENDS, r"worse than legrad in (comprehensiveness|sufficiency)|worse than attnlrp in")
def worse_than_another_candidate_in_one_metric(tmp_path):
    first = level(attnlrp=3.0, legrad=2.0, chance=1.0)
    second = level(attnlrp=2.0, legrad=1.0, chance=3.0)  # lower is better
    return headline(tmp_path, {"comprehensiveness": first, "sufficiency": second})


@situation(NOTHING, "random_pixels", never=[RECOMMENDS])
def a_control_that_wins(tmp_path):
    values = level(attnlrp=1.0, rollout=3.0, chance=4.0, random_pixels=0.9, centre_blob=4.0)
    return judged(tmp_path, {"positive_perturbation": values}, kind="images")


@situation(RECOMMENDS, r"by up to \d", never=["it is the best"])
def two_equal_methods(tmp_path):
    values = level(attnlrp=2.0, libragrad=2.0, chance=1.0)
    return headline(tmp_path, {"comprehensiveness": values})


@situation(NOTHING, "at least 6 examples", never=[RECOMMENDS])
def one_example(tmp_path):
    values = {"attnlrp": [0.9], "rollout": [0.4], "chance": [0.1]}
    return judged(tmp_path, {"comprehensiveness": values})


@situation(NOTHING, "at least 6 examples", never=[RECOMMENDS])
def two_examples(tmp_path):
    values = {"attnlrp": [0.9, 0.8], "rollout": [0.4, 0.3], "chance": [0.1, 0.1]}
    return judged(tmp_path, {"comprehensiveness": values})


@situation(NOTHING, "every value is the same", never=[RECOMMENDS, r"examples would"])
def ties(tmp_path):
    values = {method: [0.5] * 40 for method in ("attnlrp", "rollout", "chance")}
    return judged(tmp_path, {"comprehensiveness": values})


@situation("right on 0 of 12", "wrong answers")
def all_wrong(tmp_path):
    """Every label is the class that the model did not choose."""
    texts = ["a good film", "a bad film", "not good", "a fine cast"] * 3
    data = [(f"{text} {i}", "negative") for i, text in enumerate(texts)]
    labels = [why.explain("demo/sentiment", text, "rollout").targets[0].label for text, _ in data]
    data = [
        (text, "negative" if label == "positive" else "positive") for (text, _), label in zip(data, labels, strict=True)
    ]
    made = why.judge("demo/sentiment", data, ["rollout", "libragrad"], ["comprehensiveness"], report=False)
    return " ".join(made.cautions)


@situation("ignores the class", never=["the best"])
def a_winner_that_ignores_the_class(tmp_path):
    values = level(rollout=9.0, libragrad=7.0, chance=4.0)
    return headline(tmp_path, {"mean_average_precision": values}, class_blind={"rollout", "chance"}, kind="images")


@situation(RECOMMENDS, r"randomised", r"two classes|another class")
def a_finalist_is_tested_for_class_and_weights(tmp_path):
    """demo/sentiment on planted sentences: the finalist's maps of another class and of random weights are compared."""
    good, bad = ["gorgeous", "witty", "superb", "charming"], ["awful", "boring", "dreadful", "clumsy"]
    frames = ["the plot is {} in every way", "a {} film from the first scene", "what a {} story it is"]
    texts = [frame.format(word) for frame in frames for word in (*good, *bad)]
    return why.judge("demo/sentiment", texts, ["libragrad", "rollout"], ["comprehensiveness"]).verdict


@situation(r"output", never=["the target's probability", "the probability"])
def judge_of_a_regression(tmp_path):
    made = why.judge(make_regression(), [f"the film is good {'a ' * i}" for i in range(8)], ["gradient_x_input"])
    return " ".join([made.verdict, *made.table.descriptions.values()])


def make_regression() -> why.Model:
    import tiny_text
    import transformers as hf

    torch.manual_seed(0)
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = hf.BertConfig(vocab_size=len(tiny_text.WORDS), **size, num_labels=1, problem_type="regression")
    return why.open(hf.BertForSequenceClassification(config).eval(), tokenizer=tiny_text.wordpiece())


class WithoutMask(Constant):
    """Sums its words; padding would be a word."""

    def forward(self, input_ids):
        return self.words(input_ids).sum(1)[:, :3]


@situation("comprehensiveness", never=["failed"])
def judge_of_a_model_that_takes_no_mask(tmp_path):
    torch.manual_seed(0)
    texts = [torch.arange(1, 4 + i) for i in range(6)]
    made = why.judge(why.open(WithoutMask()), texts, ["gradient_x_input"], ["comprehensiveness"], report=False)
    return " ".join([*made.sentences, *made.cautions])


QUICK_METHODS = ("attnlrp", "libragrad", "saliency", "gradient_x_input", "rollout", "attcat")


@situation("posts|On this data", never=[r"^On this data use saliency(?!.*worse)", "token_f1 and"])
def forty_posts_where_people_and_the_model_differ(tmp_path):
    """The fifth forty of HateXplain, on which saliency was recommended because of what people marked."""
    model = open_model("bert-tiny-toxicity")
    return why.judge(model, marked_posts(160, 40), QUICK_METHODS, target="toxic", report=False).verdict.split(". ")[0]


@situation("On this data", never=[r"^On this data use libragrad(?!.*worse)"])
def a_winner_that_loses_to_a_control_on_pronouns(tmp_path):
    model, texts = open_model("xtremedistil-l6-h256-text-gender"), pronoun_sentences(24)
    return why.judge(model, texts, QUICK_METHODS, report=False).verdict


# --- a default for images ---------------------------------------------------------------------------------------------


@situation(
    r"benchmarks/image_default\.py.*\| gamma_attribution \|.*\| libragrad \|",
    r"200 photos that were not used.* 100 photos",
)
def the_default_for_images_names_its_measurement(tmp_path):
    """A table of the measures that were written down first."""
    return (Path(__file__).parents[2] / "docs" / "judge-measured.md").read_text().split("### Images: how")[1]


# --- bulk-summary -----------------------------------------------------------------------------------------------------

LARGE = Effect(0.5, 0.0, 0.45, 0.55, 0.0001, 24)
ZERO = Effect(0.001, 0.0, 0.0005, 0.0015, 0.0001, 24)
FINDING = Finding(
    "cat", 0, "patches", "a mark in the centre", 40, uniformity=Uniformity(0.9, 0.85, 0.95, 0.7), inserting=LARGE,
    without=AnswerChange(24, 0.98, 0.98),
)  # fmt: skip


@situation(r"hardly|does not|no change", never=["falls from 0.98 to 0.98"])
def hiding_that_changes_nothing(tmp_path):
    return write_finding_caption(judge_findings([replace(FINDING, hiding=ZERO)])[0])


@situation(never=["p < 0.001", "suspicious"])
def an_effect_of_zero_with_a_small_p(tmp_path):
    from whyformer._summary.wording import format_effect

    (one,) = judge_findings([replace(FINDING, hiding=ZERO, inserting=ZERO)])
    return format_effect(one.hiding) + (" suspicious" if one.is_suspicious else "")


@situation("on the object|part of", never=["a mark"])
def a_part_of_the_thing(tmp_path):
    return write_finding_caption(judge_findings([replace(FINDING, off_object=0.05)])[0])


@situation("not tested", never=["falls from"])
def what_was_not_tested(tmp_path):
    return write_finding_caption(replace(FINDING, inserting=None, untested="too few items"))


@situation(r"model=", never=["too few items", "none is suspicious"])
def a_summary_without_the_model(tmp_path):
    """A bulk run of a model in memory: nothing can be tested, and the reason is said."""
    rows = [text_row(f"{i}", i, ["the", "film", "is", "good"], [0.1, 0.1, 0.1, 3.0], target=i % 2) for i in range(48)]
    folder = write_run(tmp_path, rows, plan={"methods": {"rollout": {}}, "model": {"name": "a model in memory"}})
    summary = why.summarise_bulk(folder)
    return " ".join([summary.verdict, *summary.notes, *(one.untested for one in summary.findings)])


@situation(r"\d+ % -> |hardly|redundan|together", never=["none is suspicious", r"falls from 0\.(\d\d) to 0\.\1"])
def twenty_four_texts_with_two_pronouns_each(tmp_path):
    name = str(find("xtremedistil-l6-h256-text-gender"))
    why.bulk(name, pronoun_sentences(24), ["libragrad"], out=tmp_path / "run")
    return str(why.summarise_bulk(tmp_path / "run", model=name))


# --- compare-runs -----------------------------------------------------------------------------------------------------


def compare(tmp_path, one, other) -> str:
    return why.compare_runs(write_run(tmp_path / "a", one), write_run(tmp_path / "b", other)).verdict


def label_rows(count, names, *, right=1.0, seed=0):
    """Texts labelled positive or negative; the model's classes are called `names`."""
    random, rows = np.random.default_rng(seed), []
    for n in range(count):
        predicted = n % 2 if random.random() < right else 1 - n % 2
        row = text_row(f"{n:03}", n, ["the", "film", "is", "fine"], random.random(4).tolist(), target=predicted)
        named = {"prediction_name": names[predicted], "target_name": names[predicted]}
        rows.append({**row, **named, "label": ("negative", "positive")[n % 2]})
    return rows


@situation("no classes? of the second", never=["Right predictions", r"100(\.0)? ?%"])
def runs_of_models_with_other_classes(tmp_path):
    return compare(tmp_path, label_rows(40, ("negative", "positive")), label_rows(40, ("LABEL_0", "LABEL_1")))


@situation(r"Right predictions: \d", "not significant", never=[r"p < 0\.001"])
def runs_that_differ_by_chance(tmp_path):
    names = ("negative", "positive")
    return compare(tmp_path, label_rows(40, names, right=0.8), label_rows(40, names, right=0.8, seed=1))


@situation("No class has 8 items", never=["moved significantly", "Right predictions: .*p <"])
def runs_of_two_items(tmp_path):
    names = ("negative", "positive")
    return compare(tmp_path, label_rows(2, names), label_rows(2, names, right=0.0))


# --- audit ------------------------------------------------------------------------------------------------------------


def agreement(tau, low, high, n, significant=0.0):
    pair = {"tau": {"mean": tau, "low": low, "high": high, "n": n, "undefined": 0}, "significant": significant}
    return {"agreement": {f"attention ~ {DELETED}": pair}}


@situation("no(t)? significant", "-0.16", "-0.35 to 0.03", "16", never=["opposite", "disagrees"])
def a_weak_negative_tau_that_no_example_supports(tmp_path):
    return write_audit_headline("block 0", agreement(-0.16, -0.35, 0.03, 16))


@situation("weakly", "other way", "-0.16", never=["opposite"])
def a_weak_negative_tau_of_many_examples(tmp_path):
    return write_audit_headline("block 0", agreement(-0.16, -0.20, -0.12, 400, significant=0.1))


@situation("agrees moderately with", "0.40")
def a_moderate_tau(tmp_path):
    return write_audit_headline("block 0", agreement(0.4, 0.35, 0.45, 100, significant=0.6))


@situation("^Block 0: nearly even", "little to rank", "0.99")
def attention_that_is_nearly_even(tmp_path):
    return write_audit_headline("block 0", agreement(-0.16, -0.35, 0.03, 16), {"entropy": [[0.98, 1.0]]})


@situation("1 example", never=["agrees strongly", "opposite", "disagrees"])
def a_tau_of_one_example(tmp_path):
    return write_audit_headline("block 0", agreement(0.8, None, None, 1))


@situation("hardly", never=["never", "proves", "does not explain"])
def an_audit_of_attention_that_cannot_matter(tmp_path):
    found = why.audit(idle(), sentences(12), samples=10, search_limit=2, steps=10)
    return found.headlines["block 0"]


# --- reproduce --------------------------------------------------------------------------------------------------------


def compared(n, difference, seed=0) -> str:
    random = np.random.default_rng(seed)
    values = {"a": difference + random.normal(size=n), "b": random.normal(size=n)}
    return describe_orders(compare_pairs([("a", "b")], values, "higher"))


@situation("at least 10", never=["holds", "1 hold", "1 reversed"])
def a_published_order_on_two_examples(tmp_path):
    return compared(2, 5.0)


@situation("at least 10", never=["1 hold", "1 reversed"])
def a_published_order_on_nine_examples(tmp_path):
    return compared(9, 5.0)


@situation("1 holds?", never=["at least 10"])
def a_published_order_on_forty_examples(tmp_path):
    return compared(40, 5.0)


@situation("^of the .* reversed.*40 examples", never=["^of the .* 0 hold"])
def a_published_order_that_is_reversed(tmp_path):
    """What does not hold comes first, with the number of examples."""
    return compared(40, -5.0)


@situation("13 (to 40 )?of (the )?40 examples")
def pairs_over_fewer_examples_than_the_means(tmp_path):
    random = np.random.default_rng(0)
    values = {"a": 1 + random.normal(size=40), "b": random.normal(size=40), "c": random.normal(size=40)}
    values["c"][13:] = np.nan
    return describe_orders(compare_pairs([("a", "b"), ("b", "c")], values, "higher"))


# --- words that the model cannot read ---------------------------------------------------------------------------------


@situation("cannot read", "rug", "mat")
def similarity_of_words_that_the_model_cannot_read(tmp_path):
    import tiny_text

    model = why.open(tiny_text.bert().bert, tokenizer=tiny_text.wordpiece())
    return str(why.explain_similarity(model, "a film on the mat", "a film on the rug"))


@situation("cannot read", "zyzzyva")
def a_word_that_the_model_cannot_read(tmp_path):
    import tiny_text

    model = why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    return str(why.explain(model, "the zyzzyva is good", "gradient_x_input"))


# --- the demo's table of agreement ------------------------------------------------------------------------------------


@situation(never=["looks no better explains nothing"])
def chance_agrees_more_than_a_method_in_the_demo(tmp_path):
    from whyformer.demo import tour

    return Path(tour.__file__).read_text()
