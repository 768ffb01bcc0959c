"""Prompts: tokens are kept as they are, regions are where they should be, and what does not fit is refused."""

import pytest
import tokenizers
import torch
import transformers as hf
from tiny_text import byte_pairs
from tiny_tokenizers import MAKERS, make_tokenizer

import whyformer as why
from whyformer._model.prompt import Prompt
from whyformer._model.prompt.continuation import encode_continuation
from whyformer._model.spans import decode_with_spans
from whyformer.errors import InputError

TEXT = "the film is good. It is witty.\n\na gorgeous film\nabout Paris"


@pytest.fixture(scope="module")
def model():
    tokenizer = byte_pairs()
    torch.manual_seed(0)
    config = hf.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=len(tokenizer), n_positions=256)
    return why.open(hf.GPT2LMHeadModel(config).double().eval(), tokenizer=tokenizer)


def spell(prompt: Prompt, regions: tuple[why.Region, ...]) -> list[str]:
    """The text of the tokens of each region."""
    spans = prompt.pieces.spans
    return [prompt.text[spans[r.start][0] : spans[r.stop - 1][1]] for r in regions]


# --- texts ------------------------------------------------------------------------------------------------------------


def test_a_text_becomes_the_tokens_that_explain_reads(model):
    prompt = Prompt.from_text(model, TEXT)
    assert list(prompt.ids) == model.encode(TEXT).inputs["input_ids"][0].tolist()
    assert not prompt.answer and prompt.answer_ids == () and prompt.answer_text == ""
    assert [(r.name, r.start, r.stop, r.text) for r in prompt.regions] == [("prompt", 0, len(prompt), TEXT)]


def test_an_answer_is_tokenised_after_the_prompt(model):
    prompt = Prompt.from_text(model, "the film is", " not good")
    whole = model.encode("the film is not good").inputs["input_ids"][0].tolist()
    assert list(prompt.ids) == whole
    assert prompt.answer_text == " not good" and prompt.text == "the film is not good"
    assert list(prompt.answer) == list(range(prompt.prompt_length, len(whole)))
    assert "tokenised here" in prompt.notes[0]


def test_the_tokens_of_the_prompt_stay_where_the_tokenizer_would_join_them(model):
    before, whole = Prompt.from_text(model, "the fil"), Prompt.from_text(model, "the fil", "m")
    assert whole.ids[: len(before)] == before.ids
    assert whole.ids != Prompt.from_text(model, "the film").ids
    assert "tokenised on its own" in whole.notes[-1]


def test_an_answer_from_ids_is_kept(model):
    odd = model.tokenizer.encode("g") + model.tokenizer.encode("ood")  # not how the tokenizer would split it
    prompt = Prompt.from_text(model, "the film is ", odd)
    assert list(prompt.answer_ids) == odd and prompt.answer_text == "good" and prompt.notes == ()


def test_special_tokens_in_a_text_are_text_unless_asked_for(model):
    text = "the film<|endoftext|> good"
    plain, special = Prompt.from_text(model, text), Prompt.from_text(model, text, special=True)
    assert 0 not in plain.ids and "special=True" in plain.notes[0]
    assert special.ids.count(0) == 1 and special.text == text
    assert special.pieces.special[special.ids.index(0)]


def test_a_prompt_with_special_tokens_that_lacks_the_usual_start_says_so():
    reader = why.open("demo/reader")
    assert Prompt.from_text(reader, "<|begin|>The Aurora", special=True).notes == reader.notes
    assert "do not begin with <|begin|>" in Prompt.from_text(reader, "The Aurora", special=True).notes[-1]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("text", "reason"), [("", "The prompt is empty"), (3, "must be a string"), ("\ud800", "not valid Unicode")]
)
def test_what_is_no_text_is_refused(model, text, reason, special):
    with pytest.raises(InputError, match=reason):
        Prompt.from_text(model, text, special=special)


def test_without_answer_is_the_prompt_alone(model):
    alone, prompt = Prompt.from_text(model, "the film is"), Prompt.from_text(model, "the film is", " good")
    assert prompt.without_answer().ids == alone.ids
    assert prompt.without_answer().pieces == alone.pieces


def test_an_end_token_that_the_tokenizer_adds_is_left_out():
    tokenizer = make_tokenizer("byte fallback")  # <s> text </s>
    config = hf.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=len(tokenizer))
    prompt = Prompt.from_text(why.open(hf.GPT2LMHeadModel(config).eval(), tokenizer=tokenizer), "the film")
    assert prompt.ids[0] == 0 and 1 not in prompt.ids


@pytest.mark.parametrize("kind", MAKERS)
def test_a_continuation_by_every_tokenizer(kind):
    """Without a blank that some tokenizers put before every text."""
    tokenizer = make_tokenizer(kind)
    ids, is_joined = encode_continuation(tokenizer, "the film is", " not good")
    whole = tokenizer("the film is not good", add_special_tokens=False)["input_ids"]
    if kind == "byte fallback":  # without words, it joins "is" and " not" in one token
        assert not is_joined and "".join(tokenizer.convert_ids_to_tokens(ids)) == "▁not▁good"
    else:
        assert is_joined and whole[-len(ids) :] == ids
    glued, _ = encode_continuation(tokenizer, "the film (", "good")
    assert not tokenizer.convert_ids_to_tokens(glued)[0].startswith(("▁", "Ġ"))


# --- decoding ---------------------------------------------------------------------------------------------------------


def test_decoded_spans_spell_the_text(model):
    ids = model.tokenizer.encode("naïve café 👍 the film")
    text, spans = decode_with_spans(model.tokenizer, ids)
    assert text == model.tokenizer.decode(ids) == "naïve café 👍 the film"
    slow = [decode_slowly(model.tokenizer, ids, n) for n in range(len(ids))]
    assert spans == slow


def decode_slowly(tokenizer, ids, n):
    """What token n covers: from the end of the whole characters before it to the end of the first whole one after."""
    text = tokenizer.decode(ids)

    def count_whole(length):
        part = tokenizer.decode(ids[:length]).rstrip("\ufffd")
        return len(part) if text.startswith(part) else 0

    begin = count_whole(n)
    end = next(count_whole(length) for length in range(n + 1, len(ids) + 1) if count_whole(length) > begin)
    return begin, end


def test_decoding_may_begin_anywhere(model):
    ids = model.tokenizer.encode("the film is not good at all")
    text, spans = decode_with_spans(model.tokenizer, ids)
    for first in range(1, len(ids)):
        later, after = decode_with_spans(model.tokenizer, ids, first)
        start = spans[first][0]
        assert later == text[start:] and after == [(a - start, b - start) for a, b in spans[first:]]


def test_decoding_is_linear():
    """Every token is decoded a fixed number of times, however long the text is."""

    class Counting:
        decoded = 0

        def decode(self, ids, **_):
            self.decoded += len(ids)
            return bytes(ids).decode("utf-8", "replace")

    def count(length):
        tokenizer = Counting()
        decode_with_spans(tokenizer, [97] * length)
        return tokenizer.decoded

    assert count(2000) <= 2.1 * count(1000) < 10_000


def test_bytes_that_are_no_character_do_not_stop_decoding():
    class Bytes:
        def decode(self, ids, **_):
            return bytes(ids).decode("utf-8", "replace")

    text, spans = decode_with_spans(Bytes(), [0xE2] * 20 + [97])
    assert text == "\ufffd" * 20 + "a" and len(spans) == 21
    assert spans == sorted(spans) and spans[0][0] == 0 and spans[-1][1] == len(text)


# --- tokens of another engine -----------------------------------------------------------------------------------------


def test_tokens_are_never_tokenised_again(model):
    odd = [model.tokenizer.convert_tokens_to_ids(c) for c in "film"]
    prompt = Prompt.from_tokens(model, torch.tensor([odd]), odd, text="filmfilm")
    assert list(prompt.ids) == odd + odd and prompt.prompt_length == 4
    assert prompt.text == "filmfilm" and prompt.answer_text == "film" and prompt.notes == ()
    assert model.encode(prompt).inputs["input_ids"].tolist() == [odd + odd]


def test_tokens_without_a_tokenizer(model):
    bare = why.open(model.module)
    prompt = Prompt.from_tokens(bare, [5, 6, 7], [8, 9])
    assert prompt.pieces.pieces == ("5", "6", "7", "8", "9") and prompt.pieces.text is None
    e = why.explain(bare, prompt, "attnlrp")
    torch.testing.assert_close(e.scores, why.explain(model, prompt, "attnlrp").scores)


def test_tokens_that_say_something_else_are_refused(model):
    ids = model.tokenizer.encode("the film is good")
    Prompt.from_tokens(model, ids[:2], ids[2:], text="The  film is GOOD")  # blanks and case do not count
    with pytest.raises(InputError, match=r"where the text says 'bad' \(character 12\).*or leave the text out"):
        Prompt.from_tokens(model, ids, text="the film is bad")
    assert Prompt.from_tokens(model, ids).text == "the film is good"


@pytest.mark.parametrize(
    ("ids", "answer", "reason"),
    [
        ([], [], "ids is empty"),
        ([5, 9999], [], "has no token 9999"),
        ([5], [-1], "has no token -1"),
        ("film", [], "ids must be a list of token ids, got str"),
        ([5, 1.5], [], "it contains 1.5"),
        ([5], [True], "answer_ids must be a list of token ids, but it contains True"),
        ([5] * 200, [5] * 57, "257 tokens long"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(model, ids, answer, reason):
    with pytest.raises(InputError, match=reason):
        Prompt.from_tokens(model, ids, answer)


def test_a_missing_first_token_is_noted():
    tokenizer = make_tokenizer("byte fallback")
    config = hf.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=len(tokenizer))
    model = why.open(hf.GPT2LMHeadModel(config).eval(), tokenizer=tokenizer)
    assert "do not begin with <s>" in Prompt.from_tokens(model, [270, 271]).notes[0]
    assert Prompt.from_tokens(model, [0, 270, 271]).notes == ()


def test_a_model_without_a_tokenizer_takes_no_text(model):
    with pytest.raises(InputError, match=r"without a tokenizer.*Prompt\.from_tokens"):
        Prompt.from_text(model.module, "the film")
    with pytest.raises(InputError, match="The answer is empty"):
        Prompt.from_text(model, "the film", "")


# --- splits -----------------------------------------------------------------------------------------------------------


def test_parts_by_name(model):
    prompt = Prompt.from_text(model, TEXT, " and London")
    texts = {by: [part.text for part in prompt.split(by)] for by in ("sentence", "paragraph", "passage")}
    assert texts["sentence"] == ["the film is good.", "It is witty.", "a gorgeous film\nabout Paris"]
    assert texts["paragraph"] == ["the film is good. It is witty.", "a gorgeous film\nabout Paris"]
    assert texts["passage"] == texts["paragraph"]
    assert [part.name for part in prompt.split("sentence")] == ["sentence 1", "sentence 2", "sentence 3"]


def test_passages_are_lines_without_blank_lines(model):
    lines = Prompt.from_text(model, "\nthe film\nis good\n  \nabout Paris".replace("  \n", "")).split("passage")
    assert [part.text for part in lines] == ["the film", "is good", "about Paris"]


@pytest.mark.parametrize("by", ["sentence", "paragraph", "passage"])
def test_parts_have_all_tokens_of_the_prompt_once(model, by):
    prompt = Prompt.from_text(model, TEXT, " and London")
    parts = prompt.split(by)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == prompt.prompt_length
    assert [one.strip() for one in spell(prompt, parts)] == [part.text for part in parts]


def test_parts_by_text_by_characters_and_by_a_function(model):
    prompt = Prompt.from_text(model, TEXT)
    found = prompt.split(["It is witty", "about Paris"])
    assert [one.strip() for one in spell(prompt, found)] == ["It is witty", "about Paris"]
    places = [(TEXT.index(t), TEXT.index(t) + len(t)) for t in ("It is witty", "about Paris")]
    assert prompt.split(places) == found
    assert prompt.split(lambda text: places if text == TEXT else []) == found


def test_a_text_that_occurs_twice_is_found_after_the_one_before_it(model):
    prompt = Prompt.from_text(model, "good film, bad film")
    assert [part.characters for part in prompt.split(["film", "film"])] == [(5, 9), (15, 19)]


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("word", "cannot be split by 'word'.*Available: sentence"),
        ("role", 'has no roles.*Split it by "passage"'),
        ("document", "has no documents"),
        (["Berlin"], "'Berlin' does not occur in the prompt"),
        ([(3, 1)], r"\(3, 1\) is no part of the prompt"),
        ([(0, 5), (4, 8)], "overlap"),
        ([], "no parts"),
        ([(0, 9999)], "0 <= start < stop <= "),
    ],
)
def test_bad_splits_are_refused(model, by, reason):
    with pytest.raises(InputError, match=reason):
        Prompt.from_text(model, TEXT).split(by)


def test_splitting_a_long_prompt_is_linear_in_what_it_looks_at():
    """10,000 tokens in 2,000 sentences: a part costs what it holds."""
    from whyformer._model.prompt.regions import NamedPart, assign_tokens

    class Counted(list):
        reads = 0

        def __getitem__(self, place):
            Counted.reads += 1
            return super().__getitem__(place)

    parts = Counted(NamedPart(f"part {n}", "sentence", (20 * n, 20 * n + 20)) for n in range(2000))
    regions = assign_tokens(" " * 40_000, [(4 * n, 4 * n + 4) for n in range(10_000)], parts)
    assert len(regions) == 2000 and all(len(region) == 5 for region in regions)
    assert Counted.reads <= 20_000


# --- batches ----------------------------------------------------------------------------------------------------------


def test_prompts_of_different_lengths_share_a_batch(model):
    prompts = [Prompt.from_text(model, "the film is", " good"), Prompt.from_text(model, TEXT, " and London at all")]
    together = why.explain(model, prompts, "attnlrp")
    for i, prompt in enumerate(prompts):
        alone = why.explain(model, prompt, "attnlrp")
        own = [place for place, padding in enumerate(together.tokens[i].padding) if not padding]
        torch.testing.assert_close(together.scores[i, own], alone.scores[0])
        assert together.targets[i].label == alone.targets[0].label
    with pytest.raises(InputError, match="only prompts or only other inputs"):
        why.explain(model, [prompts[0], "the film"])


# --- odd arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [5, None, b"sentence", {"a": 1}, lambda text: 5])
def test_what_a_prompt_cannot_be_split_by_is_refused(model, by):
    with pytest.raises(InputError, match=r'is split by "sentence", "paragraph", .* got (int|NoneType|bytes|dict)'):
        Prompt.from_text(model, TEXT).split(by)


@pytest.mark.parametrize("ids", [[2**70], [1, -(2**70)], torch.zeros(2, device="meta"), 5, "ids"])
def test_ids_that_are_none_are_refused(model, ids):
    for call in (
        lambda: Prompt.from_tokens(model, ids),
        lambda: Prompt.from_tokens(model, [1], ids),
        lambda: Prompt.from_log(model, {"prompt_token_ids": ids}),
        lambda: Prompt.from_log(model, {"prompt_token_ids": [1], "token_ids": ids}),
    ):
        with pytest.raises(InputError, match=r"no token id|must be a list"):
            call()


# --- words that the tokenizer does not know ---------------------------------------------------------------------------


def word_tokenizer():
    """One token per word and number; everything else is unknown, and what is written together is one word."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "k": 1, "=": 2, "47": 3, ";": 4}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


@pytest.mark.parametrize(("answer", "joined"), [("47 ;", False), (" 47 ;", True)])
def test_an_unknown_word_swallows_nothing_of_the_answer(answer, joined):
    ids, is_joined = encode_continuation(word_tokenizer(), "k = qux", answer)
    assert ids == [3, 4] and is_joined is joined
