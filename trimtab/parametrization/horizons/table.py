"""A horizon and its rule as text, and the table of all rules for docs/horizon.md: generated from the
records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.parametrization.horizons.rules import RULES, Column, Powers, Rule

if TYPE_CHECKING:
    from trimtab.parametrization.horizons.horizon import Horizon

LABELS = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "beta1": "1 - beta1",
    "beta2": "1 - beta2",
    "momentum": "1 - momentum",
    "eps": "eps",
}
MEMORIES = ("beta1", "beta2", "momentum")
SGD_HAS = ("lr", "weight_decay", "momentum")


def law(column: Column | None, name: str) -> str:
    """The rule of one hyperparameter in symbols.

    >>> law(RULES["sde"].adam, "lr"), law(RULES["token-half-life"].adam, "beta2"), law(None, "lr")
    ('b^0.5 d^-0.5', 'beta^(b)', '-')
    """
    if column is None:
        return "-"
    powers: Powers = getattr(column, name)
    if name in MEMORIES and column.memory == "half-life" and powers != Powers():
        return f"beta^({powers})"
    return str(powers)


def _columns(rule: Rule) -> list[tuple[str, Column | None, tuple[str, ...]]]:
    return [("SGD-like", rule.sgd, SGD_HAS), ("Adam-like", rule.adam, tuple(LABELS))]


def render(h: Horizon) -> str:
    """The numbers of a horizon, the laws they come from, its source and its notes."""
    rule = h.record
    lines = [
        f"batch x {h.batch:.4g}, tokens x {h.tokens:.4g}, steps x {h.steps:.4g} (rule {rule.name}). "
        "What the base's numbers are multiplied by:",
        f"{'':14}{'SGD-like':>12}{'Adam-like':>12}   laws, b and d the ratios of batch and tokens",
    ]
    for name, label in LABELS.items():
        cells, laws = [], []
        for _, column, has in _columns(rule):
            text = law(column, name) if name in has else "-"
            number = "-"
            if column is not None and text != "-":
                value = getattr(column, name).of(h.batch, h.tokens)
                number = f"beta^{value:.4g}" if text.startswith("beta") else f"{value:.4g}"
            cells.append(number)
            laws.append(text)
        lines.append(f"{label:14}{cells[0]:>12}{cells[1]:>12}   {laws[0]:<12} {laws[1]}".rstrip())
    lines += [f"source: {rule.source}", f"support: {rule.support}", *(f"note: {note}" for note in h.notes)]
    return "\n".join(lines)


def rules_table() -> str:
    """All rules in Markdown, as in docs/horizon.md."""
    names = list(LABELS)
    lines = [
        f"| rule | for | {' | '.join(LABELS[name] for name in names)} | source |",
        f"|{'---|' * (len(names) + 3)}",
    ]
    for rule in RULES.values():
        for like, column, has in _columns(rule):
            if column is not None:
                cells = [law(column, name) if name in has else "-" for name in names]
                lines.append(f"| `{rule.name}` | {like} | {' | '.join(cells)} | {rule.source} |")
    return "\n".join(lines)


def disputes_table() -> str:
    """What supports each rule and what contests it, in Markdown."""
    lines = ["| rule | support | contested over batch | contested over tokens |", "|---|---|---|---|"]
    for rule in RULES.values():
        over = ["; ".join(rule.contested_over_batch), "; ".join(rule.contested_over_tokens)]
        lines.append(f"| `{rule.name}` | {rule.support} | {over[0]} | {over[1]} |")
    return "\n".join(lines)
