"""Settings of the site. ``make docs`` builds it; nothing is loaded from outside, neither then nor by a reader."""

import sys
from pathlib import Path

from attn_spec.reports.reference import pages

import attn_spec

project = "attn-spec"
release = version = attn_spec.__version__
sys.path.insert(0, str(Path(__file__).parent / "extensions"))
extensions = ["myst_parser", "sphinx.ext.autodoc", "formulas", "pictures", "terms"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
smartquotes = False
html_theme = "furo"
html_title = f"attn-spec {release}"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
myst_heading_anchors = 3

# Before Sphinx looks for pages, so that a new page is found at once.
pages.write(Path(__file__).parent / "reference")
