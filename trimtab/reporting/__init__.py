"""One offline page that answers the question (`trimtab.report`)."""

from trimtab.reporting.page import render_section, report, written

__all__ = ["render_section", "report", "written"]
