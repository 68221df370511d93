"""Names of parameters without their block numbers: what is called alike in another block or another model.

Numbers are no identity: in `nn.Sequential(stem, block, head)` the number 2 is a head in the base and may be a
block in the deeper model. So names are compared by their template: `layers.#.fc1.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trimtab.structure.graph import Graph


def template(name: str) -> str:
    """A parameter's name with the block numbers taken out.

    >>> template("layers.3.fc1.weight")
    'layers.#.fc1.weight'
    """
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def shared_name(names: Sequence[str]) -> str:
    """What names of one template are called together: the numbers in which they differ taken out.

    >>> shared_name(["h.0.mlp.2.weight", "h.1.mlp.2.weight"]), shared_name(["h.0.mlp.2.weight"])
    ('h.#.mlp.2.weight', 'h.0.mlp.2.weight')
    >>> shared_name(["b0.fc.weight", "b1.fc.weight"])
    'b#.fc.weight'
    """
    together = zip(*(name.split(".") for name in names), strict=True)
    return ".".join(parts[0] if len(set(parts)) == 1 else loose_template(parts[0]) for parts in together)


def pattern(name: str) -> str:
    """A pattern of overrides for what is called so in every block.

    >>> pattern("layers.3.fc1.weight")
    'layers.*.fc1.weight'
    """
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def loose_template(name: str) -> str:
    """All digits taken out, for blocks that are attributes: block1, block2.

    >>> loose_template("block12.fc1.weight")
    'block#.fc#.weight'
    """
    return re.sub(r"\d+", "#", name)


def block_templates(shapes: Mapping[str, object]) -> dict[str, str]:
    """Each name with its block numbers taken out, also where they are part of a name: modules side by side
    whose names differ in a number, and which hold the same parameters in modules of their own.

    Args:
        shapes: {parameter: its shape}, all of a model.

    >>> names = [f"b{i}.{part}.weight" for i in range(2) for part in ("ln", "fc1", "fc2")]
    >>> list(block_templates(dict.fromkeys(names)).values())[:3]
    ['b#.ln.weight', 'b#.fc1.weight', 'b#.fc2.weight']
    """
    held: dict[str, dict[str, object]] = {}
    for name, shape in shapes.items():
        parts = name.split(".")
        for i in range(1, len(parts)):
            held.setdefault(".".join(parts[:i]), {})[".".join(parts[i:])] = shape
    side_by_side: dict[str, list[str]] = {}
    for path, inside in held.items():
        parent, _, last = path.rpartition(".")
        if any("." in rest for rest in inside) and last != (like := loose_template(last)):
            side_by_side.setdefault(f"{parent}.{like}", []).append(path)
    numbered = {
        path
        for paths in side_by_side.values()
        for path in paths
        if any(other != path and held[other] == held[path] for other in paths)
    }

    def called(name: str) -> str:
        parts = name.split(".")
        paths = (".".join(parts[: i + 1]) for i in range(len(parts)))
        kept = [loose_template(x) if path in numbered else x for path, x in zip(paths, parts, strict=True)]
        return template(".".join(kept))

    return {name: called(name) for name in shapes}


def block(name: str) -> str | None:
    """The numbered block a parameter is in: its path up to the first number.

    >>> block("layers.3.fc1.weight"), block("head.weight")
    ('layers.3', None)
    """
    parts = name.split(".")
    return next((".".join(parts[: i + 1]) for i, part in enumerate(parts) if part.isdigit()), None)


def same_end(a: str, b: str) -> int:
    """How many of the last parts of two paths are the same.

    >>> same_end("blocks.5.experts.3.2.weight", "blocks.0.experts.1.2.weight")
    2
    """
    same = [x == y for x, y in zip(a.split(".")[::-1], b.split(".")[::-1], strict=False)]
    return [*same, False].index(False)


def _alike(a: str, b: str) -> tuple[int, int, int]:
    """How alike two paths of one length are: parts that are the same, at the end, at the start."""
    same = [x == y for x, y in zip(a.split("."), b.split("."), strict=True)]
    return sum(same), [*same[::-1], False].index(False), [*same, False].index(False)


def spread(i: int, n: int, n_base: int) -> int:
    """The base's index for the i-th of n: first to first, last to last, evenly in between.

    >>> [spread(i, 6, 2) for i in range(6)]
    [0, 0, 0, 1, 1, 1]
    """
    return 0 if n == 1 else (2 * i * (n_base - 1) + (n - 1)) // (2 * (n - 1))


class Siblings:
    """For a parameter that an example did not use: the used one of its shape that is called most like it.

    An expert that was not visited follows a visited one of its block, layer by layer; only where its block
    has none, another block's.

    >>> used = ["blocks.0.experts.1.0.weight", "blocks.0.experts.1.2.weight", "blocks.1.experts.5.2.weight"]
    >>> siblings = Siblings(dict.fromkeys(used, (8, 8)))
    >>> siblings.of("blocks.0.experts.5.2.weight", (8, 8)), siblings.of("blocks.2.experts.5.2.weight", (8, 8))
    ('blocks.0.experts.1.2.weight', 'blocks.1.experts.5.2.weight')
    """

    def __init__(self, used: Mapping[str, tuple[int, ...]]):
        self._known: dict[object, list[str]] = {}
        for name, shape in used.items():
            for key in ((template(name), shape), (template(name), shape, block(name))):
                self._known.setdefault(key, []).append(name)

    @classmethod
    def among(cls, graph: Graph) -> Siblings:
        return cls({name: graph.shape(name) for name, uses in graph.uses.items() if uses})

    def of(self, name: str, shape: tuple[int, ...]) -> str | None:
        in_block = self._known.get((template(name), shape, block(name)))
        near = in_block or self._known.get((template(name), shape), [])
        return max(near, key=lambda other: _alike(name, other), default=None)
