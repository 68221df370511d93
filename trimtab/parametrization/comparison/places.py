"""Where each parameter sits, as both models agree: outside, in a branch, in its tail, on the stream.

A trace shows the places of one model (`structure.graph`). Two things it cannot show alone: that the norm
after the last block is one of the norms on the stream, and that a tensor of a one-layer model would feed many
branches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trimtab.parametrization.comparison.names import template
from trimtab.structure.graph import Graph, Place

Places = Mapping[str, Place]


def use_signature(graph: Graph, name: str) -> tuple[int, tuple[str, ...]]:
    """What a parameter is, whatever its size: its rank and the kinds of its uses."""
    return len(graph.shape(name)), tuple(sorted({use.kind for use in graph.uses[name]}))


def agreed_places(model: Graph, base: Graph) -> tuple[Places, Places]:
    """The places of the model and of the base, the shallower one's settled by the deeper one's."""
    places, base_places = _places(model), _places(base)
    n, n_base = len(model.residuals), len(base.residuals)
    if n > n_base:
        base_places = _settle(base_places, places)
    elif n < n_base:
        places = _settle(places, base_places)
    return places, base_places


def _places(graph: Graph) -> Places:
    """Each parameter's place; norms that stand on the stream in one block stand there in all."""
    places = {name: graph.place(name) for name in graph.uses}
    keys = {name: (template(name), use_signature(graph, name)) for name in places}
    streams = {
        keys[name]: place.stream
        for name, place in places.items()
        if place.stream is not None and "#" in template(name)
    }
    return {name: _on_stream(graph, place, streams.get(keys[name])) for name, place in places.items()}


def _on_stream(graph: Graph, place: Place, stream: int | None) -> Place:
    """A place, or the stream on which parameters called alike stand."""
    if stream is None or place.stream is not None or place.tail_of:
        return place
    # The end of an encoder is read by a decoder's branches: another stack's than its own.
    if any(graph.residuals[i].stack == stream for i in place.branches):
        return place
    return Place(stream=stream)


def _settle(places: Places, deeper: Places) -> Places:
    """A one-layer model cannot show that a tensor feeds many branches; the deeper one can, and wins."""
    settled = dict(places)
    for name, place in places.items():
        other = deeper.get(name)
        if other is None:
            continue
        if place.branches and not place.tail_of and (not other.branches or len(other.branches) > 1):
            settled[name] = dataclasses.replace(other, branches=place.branches if other.branches else ())
        elif place == Place() and other.stream is not None:
            settled[name] = other
    return settled
