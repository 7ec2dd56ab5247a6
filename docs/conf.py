"""Configures the site."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pytest_gpukern.package import __version__

project = "pytest-gpukern"
author = "the authors of pytest-gpukern"
copyright = "2026, MIT licence"
release = version = __version__
default_role = "code"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_templates", "examples"]
myst_heading_anchors = 3
nitpick_ignore = [("py:class", "DTypeLike"), ("py:class", "Point"), ("py:class", "MeasuredTest")]
autodoc_typehints = "none"
autodoc_type_aliases = {"DTypeLike": "DTypeLike"}  # which NumPy spells out in ten lines
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_default_options = {"exclude-members": "__new__"}  # which "separated" else shows at each class
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}  # no button that shows a page's source
html_copy_source = False
html_title = "pytest-gpukern"
html_show_sphinx = False
templates_path = ["_templates"]
html_static_path = ["_static"]
html_js_files = ["scrolling.js"]
