"""The pure parts of the page, in node's own test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[2] / "src" / "whyformer" / "_page" / "static"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_pure_parts_do_what_they_say(tmp_path):
    for module in STATIC.glob("*.js"):
        shutil.copy(module, tmp_path)
    shutil.copy(Path(__file__).parent / "modules.test.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    ran = subprocess.run([NODE, "--test", "modules.test.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_module_makes_markup_from_text():
    """Text reaches the page by textContent and styles by the CSSOM, so that nothing needs an inline script or style."""
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser")
    for module in STATIC.glob("*.js"):
        source = module.read_text("utf-8")
        assert not [word for word in forbidden if word in source], module.name
        assert 'setAttribute("style"' not in source, module.name
    page = (STATIC / "index.html").read_text("utf-8")
    assert "style=" not in page and "<style" not in page and "onclick" not in page


def test_every_file_is_short_enough_to_read_in_one_sitting():
    for module in STATIC.glob("*.js"):
        assert len(module.read_text("utf-8").splitlines()) <= 300, module.name
