"""The coordinate check: watch a few steps at several sizes (watching, trials), draw lines over size
(profiles), fit their slopes (slopes), compare them with what the scheme predicts (expectations, gauges),
judge (verdicts). `trimtab.check` is in checks.
"""
