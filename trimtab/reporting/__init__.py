"""One offline page that answers the question (`trimtab.report`)."""

from trimtab.reporting.page import report

__all__ = ["report"]
