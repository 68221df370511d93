"""One offline page that answers the question (`trimtab.report`).

Read in this order: figures (Plotly JSON from transfers), training_curves (which runs' curves are shown),
sections (what else is attached to a store), content (what the page says, as plain values), page (the page
that says it, safe and reproducible).
"""

from trimtab.reporting.page import render_section, report, write_page

__all__ = ["render_section", "report", "write_page"]
