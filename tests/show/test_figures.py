"""Figures keep text as text, are small, and show what their colours mean."""

import re
from io import BytesIO
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from sample_explanations import explain_image, explain_text

from whyformer.errors import InputError
from whyformer.results.class_grid import ClassGrid
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation
from whyformer.show import figures, head_figures
from whyformer.show.canvas import Canvas
from whyformer.show.drawing import Drawing
from whyformer.show.text_width import break_word, measure_letter, measure_text

SENTENCE = (
    "a film that takes its time and then some more of yours , with a cast so charming that you forgive the plot its "
    "holes , the score its violins and the ending , which comes twice , its lack of any surprise at all ."
)

FORMATS = Explanation.formats


def explain_forty_words():
    words = [(m.start(), m.end()) for m in re.finditer(r"\S+", SENTENCE)]
    assert len(words) >= 40
    return explain_text(SENTENCE, words, torch.linspace(-1, 1, len(words)).tolist())


def list_texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_words_are_text_in_a_vector_file():
    words = list_texts(explain_forty_words().draw().svg())
    assert [word for word in words if word in set(SENTENCE.split())] == SENTENCE.split()
    assert "Why positive? 90.0%" in words
    assert {"-1 against", "+1 for"} <= set(words)


def test_files_of_forty_words_are_small():
    for suffix in (".svg", ".pdf", ".html", ".tex"):
        assert len(FORMATS[suffix](explain_forty_words())) < 60_000, suffix


def test_text_in_a_pdf_is_text():
    """Embedded fonts with Unicode names, no outlines."""
    made = FORMATS[".pdf"](explain_forty_words())
    assert made.startswith(b"%PDF")
    assert b"/ToUnicode" in made
    assert b"/Type3" not in made


def test_files_are_reproducible():
    assert FORMATS[".svg"](explain_forty_words()) == FORMATS[".svg"](explain_forty_words())


def test_an_image_is_drawn_beside_its_maps_with_their_colour_limits():
    words = list_texts(explain_image().draw().svg())
    assert {"image", "smooth", "patch by patch"} <= set(words)
    assert any("99th percentile of the scores" in word for word in words)


def test_without_an_image_the_map_is_drawn_alone():
    words = list_texts(explain_image(images=()).draw().svg())
    assert "patch by patch" in words
    assert "smooth" not in words


def test_a_word_longer_than_a_line_is_broken_between_letters():
    parts = list(break_word("क्षि" * 60, figures.FONT_SIZE, 200))
    assert "".join(parts) == "क्षि" * 60
    assert all(len(part) % 4 == 0 for part in parts)


def test_text_width_is_measured_once_per_letter_and_scales_with_the_size():
    measure_letter.cache_clear()
    width = measure_text("abba", 10)
    assert measure_text("abba", 20) == pytest.approx(2 * width)
    assert measure_letter.cache_info().misses == 2


def test_words_stay_inside_the_figure():
    edges = []

    class WatchedCanvas(Canvas):
        def add_box(self, x, y, width, *more, **options):
            edges.append(x + width)
            super().add_box(x, y, width, *more, **options)

    canvas = WatchedCanvas(figures.PAGE_WIDTH)
    figures.draw_words(canvas, 0, explain_forty_words().panels()[0])
    right = max(edges)
    assert right <= figures.PAGE_WIDTH + 1


def test_tables_of_texts_and_of_maps():
    texts = Comparison({"one": explain_forty_words(), "two": explain_forty_words()})
    assert list_texts(texts.draw().svg()).count("charming") == 2
    maps = Comparison({"one": explain_image(), "two": explain_image()})
    assert {"one", "two", "image"} <= set(list_texts(maps.draw().svg()))
    with pytest.raises(InputError, match="the table has no rows"):
        figures.draw_panel_table([], [], title="", alt="")


def test_drawing_no_panel_is_an_error():
    with pytest.raises(InputError, match="no example to draw"):
        figures.draw_panels([])


def test_a_drawing_saves_as_svg_pdf_and_png(tmp_path):
    drawing = explain_image().draw()
    for suffix, start in ((".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG")):
        drawing.save(tmp_path / f"d{suffix}")
        assert (tmp_path / f"d{suffix}").read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"Supported suffixes: \.svg, \.pdf, \.png"):
        drawing.save(tmp_path / "d.gif")


def test_a_drawing_describes_itself():
    drawing = explain_image().draw()
    assert isinstance(drawing, Drawing)
    assert repr(drawing) == "<Drawing: Why tabby? 90.0%>"
    assert 'aria-label="Why tabby? 90.0%"' in drawing.html()
    assert "image/svg+xml" in drawing._repr_mimebundle_()


def test_a_description_with_backslashes_can_be_embedded():
    """In a replacement string of re.sub, `\\1` and `\\f` would be escapes."""
    drawing = explain_image().draw()
    drawing.alt = r"\1 \frac \g<0>"
    assert r'aria-label="\1 \frac \g&lt;0&gt;"' in drawing.html()


def test_the_build_up_starts_at_the_last_layer():
    panel = explain_image().panels()[0]
    layers = torch.rand(3, 6)
    words = list_texts(head_figures.draw_build_up(panel, layers).svg())
    assert [word for word in words if word.startswith("layer")] == ["layer 2 alone", "layers 1 to 2", "layers 0 to 2"]
    with Image.open(BytesIO(head_figures.animate_build_up(panel, layers))) as animation:
        assert (animation.format, animation.n_frames) == ("GIF", 3)
    text = explain_forty_words().panels()[0]
    assert "layer 1 alone" in list_texts(head_figures.draw_build_up(text, torch.rand(2, len(text.scores))).svg())
    with pytest.raises(InputError, match="Only image explanations"):
        head_figures.animate_build_up(text, torch.rand(2, len(text.scores)))


def test_a_build_up_needs_the_scores_of_every_layer():
    with pytest.raises(InputError, match="per_layer=True"):
        explain_image().draw_build_up()


def draw_maps(**kinds):
    return Comparison({name: explain_image(method=name, signed=signed) for name, signed in kinds.items()}).draw()


def test_a_table_of_maps_names_only_colours_that_it_has():
    """Purple maps were once said to be blue and orange."""
    signed, unsigned, both = (
        " ".join(list_texts(draw_maps(**kinds).svg()))
        for kinds in ({"attcat": True}, {"rollout": False}, {"attcat": True, "rollout": False})
    )
    assert "orange" in signed and "purple" not in signed
    assert "purple" in unsigned and "orange" not in unsigned
    assert "purple" in both and "orange" in both


def test_six_heads_and_their_mean_stand_in_one_line():
    assert [figures.count_across(cells) for cells in (1, 7, 8, 9)] == [1, 7, 8, 9]
    assert [figures.count_across(cells) for cells in (10, 12, 13)] == [5, 6, 5]
    drawn = draw_maps(**{f"head {i}": False for i in range(1, 8)}).svg()
    width, height = (float(size) for size in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn).groups())
    assert width > 5 * height


def test_an_unnamed_image_is_not_the_title_of_a_figure():
    titled = {}
    for name in ("image", "cat.png"):
        one = Comparison({"rollout": explain_image(names=(name,))})
        titled[name] = list_texts(ClassGrid((one,)).draw().svg())[0]
    assert titled == {"image": "tabby, 90.0%", "cat.png": "cat.png"}
