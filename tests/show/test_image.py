"""A map becomes a picture: one square a patch, nothing smoothed, the right way round."""

from io import BytesIO

import torch
from PIL import Image

from whyformer.show.colours import AGAINST, FOR, WHITE
from whyformer.show.image import SIDE, picture, png


def test_every_patch_is_a_square_of_its_colour_where_it_belongs():
    """Orange in the upper right, blue in the lower left."""
    shown = picture(torch.tensor([[0.0, 2.0], [-2.0, 0.0]]), signed=True)
    assert shown.size == (SIDE, SIDE)
    edge = SIDE // 2
    corners = {(0, 0): WHITE, (edge, 0): FOR, (edge - 1, edge): AGAINST, (SIDE - 1, SIDE - 1): WHITE}
    assert {place: shown.getpixel(place) for place in corners} == corners
    assert len(shown.getcolors()) == 3


def test_a_map_larger_than_the_picture_keeps_its_pixels():
    assert picture(torch.zeros(600, 500), signed=False).size == (500, 600)


def test_several_maps_stand_side_by_side():
    file = png([torch.eye(2), torch.eye(4)], signed=False)
    shown = Image.open(BytesIO(file))
    assert shown.format == "PNG"
    assert shown.size == (2 * SIDE + 16, SIDE)
    assert shown.getpixel((SIDE + 8, 5)) == WHITE
