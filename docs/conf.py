"""The site: `make docs`, then open build/docs/index.html."""

import trimtab

project, author, release = "trimtab", "The trimtab authors", trimtab.__version__
copyright = "the trimtab authors, Apache-2.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "amsmath"]
html_theme, html_title = "furo", "trimtab"
html_static_path: list[str] = []
pygments_style = "tango"
# a block without a language is output or a command line with words beside it
highlight_language = "text"
