"""The public names of the room."""

import subprocess
import sys

import pytest

from whyformer import show
from whyformer.show import charts, report


def test_public_modules():
    assert show.__all__ == ["charts", "report"]
    assert show.charts is charts and show.report is report
    with pytest.raises(AttributeError, match=r"'whyformer\.show' has no attribute 'nothing'"):
        _ = show.nothing


@pytest.mark.parametrize("module", [charts, report])
def test_public_names_exist(module):
    assert sorted(module.__all__) == module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_room_is_entered_without_torch():
    """The command line needs `make_visible` for its errors, before torch is imported."""
    code = "import sys, whyformer.show.visible; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
