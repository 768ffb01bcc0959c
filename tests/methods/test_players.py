"""Players: what is removed together, and what the model is asked."""

import pytest
import tiny_text
import torch
from conftest import animal
from games import Game, additive_game
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.record import record
from whyformer.errors import MethodError
from whyformer.methods._answers import read_answers, read_clean_answers
from whyformer.methods._players import Players, ask_coalitions, make_patch_players, players_of, segment_superpixels


def probe_of(model, inputs, **more):
    return record(model, model.encode(inputs), keep={"probe"}, **more)["probe"]


@pytest.fixture(scope="module")
def text_probe():
    model = why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())
    return probe_of(model, ["the film is good!", "bad"], target=0)


def test_pieces_of_one_word_are_one_player(text_probe):
    first, second = players_of(text_probe, "word")
    pieces = text_probe.tokens[0].pieces
    assert first.owner.tolist() == [-1, 0, 1, 2, *[3] * (len(pieces) - 5), -1]
    assert second.owner.tolist() == [-1, 0] + [-1] * (len(pieces) - 2)
    assert (first.count, second.count) == (4, 1)


def test_tokens_are_players_by_themselves(text_probe):
    first, _ = players_of(text_probe, "token")
    assert first.owner.tolist() == [-1, *range(len(text_probe.tokens[0].pieces) - 2), -1]


def test_a_coalition_keeps_its_places_and_what_is_nobodys():
    players = Players(torch.tensor([-1, 0, 1, 1, -1]), 2, (1, 2))
    keep = players.keep(torch.tensor([[True, False], [False, True]]))
    assert keep.int().tolist() == [[1, 1, 0, 0, 1], [1, 0, 1, 1, 1]]


def test_values_are_shared_and_keep_their_sum():
    players = Players(torch.tensor([-1, 0, 1, 1, -1]), 2, (1, 2))
    assert players.spread(torch.tensor([3.0, 5.0])).tolist() == [0, 3, 2.5, 2.5, 0]


def test_superpixels_are_areas_of_one_colour():
    picture = torch.zeros(3, 12, 12, dtype=torch.float64)
    picture[0, :, 5:] = 1  # not where the grid has its border
    owner = segment_superpixels(picture, 2)
    assert owner.max() == 1
    assert (owner == (torch.arange(12) >= 5).long()).all()


def test_superpixels_of_a_flat_picture_are_a_grid():
    owner = segment_superpixels(torch.full((3, 8, 8), 0.5, dtype=torch.float64), 4)
    assert [owner[0, 0], owner[0, 7], owner[7, 0], owner[7, 7]] == [0, 1, 2, 3]
    assert owner.flatten().bincount().tolist() == [16] * 4


def test_superpixels_are_taken_away_as_pixels():
    probe = probe_of(why.open(animal("vit").module), animal("vit").inputs, target=0)
    team = players_of(probe, "superpixel", superpixels=4)
    assert all(players.owner.shape == (16, 16) for players in team)
    gone = torch.zeros(1, team[0].count, dtype=torch.bool)
    empty = ask_coalitions(probe, team, [gone, gone[:0], gone[:0]], fill="zero")
    black = animal("vit").module(torch.zeros(1, 3, 16, 16, dtype=torch.float64)).logits[0, 0]
    assert_close(empty[0], black[None])
    assert len(empty[1]) == 0


def test_the_probability_of_a_contrast_is_that_of_one_class_against_the_other():
    probe = probe_of(why.open(animal("bert").module), animal("bert").inputs, target=0, versus=2)
    p = probe.before.logits.softmax(-1)
    assert_close(read_clean_answers(probe, "probability"), p[:, 0] / (p[:, 0] + p[:, 2]))
    plain = probe_of(why.open(animal("bert").module), animal("bert").inputs, target=0)
    assert_close(read_clean_answers(plain, "probability"), p[:, 0])
    assert_close(read_clean_answers(probe, "score"), probe.before.logits[:, 0] - probe.before.logits[:, 2])


def test_what_does_not_fit_is_refused():
    text, picture = Game(additive_game([1.0]), 1), Game(additive_game([1.0]), 1, is_image=True)
    with pytest.raises(MethodError, match=r"units must be one of 'word', 'token'; got 'patch'"):
        players_of(text, "patch")
    with pytest.raises(MethodError, match=r"units must be one of 'patch', 'superpixel'; got 'word'"):
        players_of(picture, "word")
    with pytest.raises(MethodError, match="patches of this image are unknown"):
        make_patch_players(picture)
    with pytest.raises(MethodError, match=r"of must be one of .*; got 'logit'"):
        read_answers(text, text.before, torch.zeros(1, dtype=torch.long), "logit")


def test_nobody_to_ask_about_asks_nothing():
    game = Game(additive_game([]), 0)
    assert [len(part) for part in ask_coalitions(game, players_of(game, None), [torch.zeros(0, 0)], fill=None)] == [0]
    assert game.rows_asked == 0
