"""The data sets that `trimtab data get` knows: their official addresses, checksums and layout. No torch.

A checksum stands here only where it is published or known beyond doubt. A file without one is compared with
what this machine saw the first time (`downloads.remember`), and the command says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import InputError

FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


@dataclass(frozen=True)
class Remote:
    """One file to get.

    Attributes:
        url: its official address. name: what it is called on disk.
        md5: its published MD5; None: none is published.
    """

    url: str
    name: str
    md5: str | None = None


@dataclass(frozen=True)
class Source:
    """A data set as its authors publish it.

    Attributes:
        title: its usual name. data: what a run calls it (`data = ...`).
        place: the folder or file that the reader looks for inside `places.root()`.
        files: what is downloaded. One archive is unpacked; single files are put into `place`, or are it.
        holds: paths in `place` without which it is incomplete.
        terms: what its authors ask of users.
    """

    title: str
    data: str
    place: str
    files: tuple[Remote, ...]
    holds: tuple[str, ...] = ()
    terms: str = ""

    def missing(self, root: Path) -> list[str] | None:
        """What the set lacks inside `root`: [] where it is whole, None where there is nothing that this user
        may read."""
        place = root / self.place
        if not os.path.exists(place):  # unlike Path.exists, False where a folder above it is another's
            return None
        return [name for name in self.holds if not os.path.exists(place / name)]


SOURCES: dict[str, Source] = {
    "cifar10": Source(
        title="CIFAR-10",
        data="cifar10",
        place="cifar-10-batches-py",
        files=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
            ),
        ),
        holds=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        terms="please cite Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    ),
    "fashion-mnist": Source(
        title="Fashion-MNIST",
        data="fashion-mnist",
        place="fashion-mnist",
        files=tuple(
            Remote(FASHION + name, name, md5)
            for name, md5 in (
                ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
            )
        ),
        holds=tuple(
            f"{split}-{kind}-ubyte.gz"
            for split in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ),
        terms="MIT licence; please cite Xiao, Rasul, Vollgraf, arXiv 1708.07747",
    ),
    "tiny-imagenet": Source(
        title="Tiny-ImageNet",
        data="images",
        place="tiny-imagenet-200",
        files=(
            Remote(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        holds=("train", "val", "wnids.txt"),
        terms="ImageNet's terms: non-commercial research and education",
    ),
    "tiny-shakespeare": Source(
        title="tiny Shakespeare",
        data="text",
        place="tinyshakespeare.txt",
        files=(Remote(SHAKESPEARE, "tinyshakespeare.txt"),),
        terms="the text is in the public domain",
    ),
}


def source(name: str) -> Source:
    """The set a user means by a name; case, dashes and blanks do not matter.

    >>> source("CIFAR-10").place, source("tiny Shakespeare").data
    ('cifar-10-batches-py', 'text')
    """
    wanted = _plain(name)
    for key, held in SOURCES.items():
        if wanted in (_plain(key), _plain(held.title), _plain(held.place.removesuffix(".txt"))):
            return held
    raise InputError(f"a data set to get is one of {', '.join(SOURCES)}: got {name!r}.")


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
