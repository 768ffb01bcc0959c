"""Old names keep working for one version, with a warning."""

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


def test_curve_is_now_charts():
    with pytest.warns(DeprecationWarning, match=r"whyformer\.show\.curve is now whyformer\.show\.charts\."):
        from whyformer.show import curve
    assert curve is charts


@pytest.mark.parametrize("module", [charts, report])
def test_old_functions(module):
    name = module.__name__.removeprefix("whyformer.show.")
    for old, new in module.RENAMED.items():
        with pytest.warns(DeprecationWarning, match=rf"{name}\.{old} is now {name}\.{new}\."):
            assert getattr(module, old) is getattr(module, new)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("module", [charts, report])
def test_public_names_exist(module):
    assert sorted(module.__all__) == module.__all__
    assert set(module.RENAMED.values()) <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_room_is_entered_without_torch():
    """The command line needs `make_visible` for its errors, before torch is imported."""
    code = "import sys, whyformer.show.visible; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
