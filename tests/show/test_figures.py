"""Figures hold text as text, are small, and say what their colours mean."""

import re
from io import BytesIO
from xml.etree import ElementTree

import pytest
import torch
from drawn import an_explanation, picture_of
from PIL import Image

from whyformer.errors import InputError
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation
from whyformer.show import figures, head_figures
from whyformer.show.drawing import Drawing

SENTENCE = (
    "a film that takes its time and then some more of yours , with a cast so charming that you forgive the plot its "
    "holes , the score its violins and the ending , which comes twice , its lack of any surprise at all ."
)

FORMATS = Explanation.formats


def forty_words():
    words = [(m.start(), m.end()) for m in re.finditer(r"\S+", SENTENCE)]
    assert len(words) >= 40
    return an_explanation(SENTENCE, words, torch.linspace(-1, 1, len(words)).tolist())


def texts_of(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_every_word_can_be_selected_in_a_vector_file():
    words = texts_of(forty_words().draw().svg())
    assert [word for word in words if word in set(SENTENCE.split())] == SENTENCE.split()
    assert "Why positive? 90.0%" in words
    assert {"-1 against", "+1 for"} <= set(words)


def test_forty_words_are_small():
    for suffix in (".svg", ".pdf", ".html", ".tex"):
        assert len(FORMATS[suffix](forty_words())) < 60_000, suffix


def test_text_in_a_pdf_is_text():
    """Fonts with the letters' names in them, no outlines."""
    made = FORMATS[".pdf"](forty_words())
    assert made.startswith(b"%PDF")
    assert b"/ToUnicode" in made
    assert b"/Type3" not in made


def test_the_same_again_is_the_same_file():
    assert FORMATS[".svg"](forty_words()) == FORMATS[".svg"](forty_words())


def test_a_picture_stands_beside_its_map_and_the_scaling_is_written():
    words = texts_of(picture_of().draw().svg())
    assert {"the picture", "smooth", "patch by patch"} <= set(words)
    assert any("99th percentile of the scores" in word for word in words)


def test_a_picture_that_nobody_kept_shows_the_map_alone():
    words = texts_of(picture_of(images=()).draw().svg())
    assert "patch by patch" in words
    assert "smooth" not in words


def test_a_word_longer_than_a_line_is_cut_between_letters():
    parts = list(figures.break_word("क्षि" * 60, figures.FONT_SIZE, 200))
    assert "".join(parts) == "क्षि" * 60
    assert all(len(part) % 4 == 0 for part in parts)


def test_words_stay_inside_the_figure():
    board = figures.Board(figures.PAGE_WIDTH)
    figures.draw_words(board, 0, forty_words().panels()[0])
    right = max(at["x"] + at["width"] for kind, at in board.things if kind == "box")
    assert right <= figures.PAGE_WIDTH + 1


def test_a_sheet_of_texts_and_of_maps():
    texts = Comparison({"one": forty_words(), "two": forty_words()})
    assert texts_of(texts.draw().svg()).count("charming") == 2
    maps = Comparison({"one": picture_of(), "two": picture_of()})
    assert {"one", "two", "the picture"} <= set(texts_of(maps.draw().svg()))
    with pytest.raises(InputError, match="nothing to put on a sheet"):
        figures.draw_panel_table([], [], title="", alt="")


def test_nothing_is_drawn_of_nothing():
    with pytest.raises(InputError, match="no example to draw"):
        figures.draw_panels([])


def test_files_of_a_drawing(tmp_path):
    drawing = picture_of().draw()
    for suffix, start in ((".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG")):
        drawing.save(tmp_path / f"d{suffix}")
        assert (tmp_path / f"d{suffix}").read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"Names that end in \.svg, \.pdf, \.png work"):
        drawing.save(tmp_path / "d.gif")


def test_a_drawing_says_what_it_shows():
    drawing = picture_of().draw()
    assert isinstance(drawing, Drawing)
    assert repr(drawing) == "<Drawing: Why tabby? 90.0%>"
    assert 'aria-label="Why tabby? 90.0%"' in drawing.html()
    assert "image/svg+xml" in drawing._repr_mimebundle_()


def test_the_build_up_goes_from_the_last_layer_to_all():
    case = picture_of().panels()[0]
    layers = torch.rand(3, 6)
    words = texts_of(head_figures.draw_build_up(case, layers).svg())
    assert [word for word in words if word.startswith("layer")] == ["layer 2 alone", "layers 1 to 2", "layers 0 to 2"]
    with Image.open(BytesIO(head_figures.animate_build_up(case, layers))) as moving:
        assert (moving.format, moving.n_frames) == ("GIF", 3)
    text = forty_words().panels()[0]
    assert "layer 1 alone" in texts_of(head_figures.draw_build_up(text, torch.rand(2, len(text.scores))).svg())
    with pytest.raises(InputError, match="Only maps of pictures"):
        head_figures.animate_build_up(text, torch.rand(2, len(text.scores)))


def test_explanations_without_their_layers_say_how_to_get_them():
    with pytest.raises(InputError, match="per_layer=True"):
        picture_of().draw_build_up()
