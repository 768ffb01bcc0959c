"""How the documentation is built. It needs nothing from outside: formulas become MathML, fonts are the reader's own."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "whyformer"
copyright = "the whyformer authors"
release = version = installed_version("whyformer")

extensions = ["myst_parser", "mathml", "notebooks", "sphinx.ext.autodoc", "reference"]
exclude_patterns = ["_build"]
html_extra_path = ["llms.txt"]
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r".*")]  # types in signatures of the reference
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "whyformer"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["whyformer.css"]
html_copy_source = False
