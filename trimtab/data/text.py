"""The characters of a text file: predict the next one. The last tenth of the file is held out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from trimtab.data.batches import PLACE, Batch, stream
from trimtab.data.catalogue import Shape
from trimtab.data.places import find
from trimtab.errors import InputError

WHERE = "Any UTF-8 text file will do; `trimtab data get tiny-shakespeare` gets one."


class Text:
    """Windows of `context` characters at random places; targets are the characters one further on."""

    def __init__(self, codes: Tensor, characters: str, context: int):
        self.characters = characters
        cut = len(codes) * 9 // 10
        self._train, self._test = codes[:cut], codes[cut:]
        self.context = context
        self.shape = Shape((context,), len(characters), "text", None)

    def _windows(self, codes: Tensor, starts: Tensor) -> Batch:
        places = starts[:, None] + torch.arange(self.context)
        return codes[places], codes[places + 1]

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        codes = self._train if split == "train" else self._test
        starts = stream(seed, PLACE, step).integers(0, len(codes) - self.context, size)
        return self._windows(codes, torch.from_numpy(starts))

    def test(self, size: int, limit: int | None) -> Iterator[Batch]:
        starts = torch.arange(0, len(self._test) - self.context, self.context)[:limit]
        for part in starts.split(size):
            yield self._windows(self._test, part)


def read(file: str | None = None, context: int = 64) -> Text:
    """The characters of `file`, absolute or inside $TRIMTAB_DATA; default tinyshakespeare.txt there."""
    place = find(file, "tinyshakespeare.txt", f"the text {file or 'tinyshakespeare.txt'}", WHERE)
    try:
        content = place.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{place} must be UTF-8 text: {error}.") from error
    if len(content) < 20 * (context + 1):
        raise InputError(
            f"a text needs at least {20 * (context + 1)} characters for windows of {context}: {place} has "
            f"{len(content)}. Take a longer file or a shorter context."
        )
    characters = "".join(sorted(set(content)))
    table = np.zeros(max(map(ord, characters)) + 1, dtype=np.int64)
    table[[ord(c) for c in characters]] = np.arange(len(characters))
    codes = table[np.frombuffer(content.encode("utf-32-le"), dtype=np.uint32)]
    return Text(torch.from_numpy(codes), characters, context)
