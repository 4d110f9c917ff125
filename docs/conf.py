"""The documentation site, built by `make docs`: Sphinx, with the extension `_ext/cascade_site` for all that is not text."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT)]

from cascade_site.gallery import settings  # noqa: E402

import tvm_cascade  # noqa: E402

project = "tvm_cascade"
author = "The developers of tvm_cascade"
copyright = "the developers of tvm_cascade, Apache-2.0"
release = version = tvm_cascade.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "cascade_site",
]
exclude_patterns = ["_ext"]
smartquotes = False  # they would make one dash of the two of an option
strip_signature_backslash = True  # keeps the underscore of the parameter `from_`
default_role = "literal"  # what docstrings put in single backticks is code
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
sphinx_gallery_conf = settings()

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types of parameters stand in the text
napoleon_google_docstring = False
napoleon_use_rtype = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"tvm_cascade {release}"
html_static_path = ["_static"]
html_css_files = ["figures.css"]
html_show_sourcelink = False
linkcheck_ignore = [r"https://colab\.research\.google\.com/.*"]  # needs the published notebooks

os.environ.setdefault("TVM_NUM_THREADS", "2")
