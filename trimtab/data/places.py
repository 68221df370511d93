"""Where data sets lie: $TRIMTAB_DATA, else a folder of trimtab's own in the user's cache. No torch.

`trimtab data get` writes where the readers look, so that a set is found without a further word.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from trimtab.errors import InputError
from trimtab.files import find_file, folders

VARIABLE = "TRIMTAB_DATA"


def root() -> Path:
    """The folder that holds the data sets: $TRIMTAB_DATA, else trimtab/data in the user's cache.

    >>> import os
    >>> before = os.environ.get("TRIMTAB_DATA")
    >>> os.environ["TRIMTAB_DATA"] = "/sets"
    >>> root()
    PosixPath('/sets')
    >>> _ = os.environ.pop("TRIMTAB_DATA") if before is None else os.environ.update(TRIMTAB_DATA=before)
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    return platformdirs.user_cache_path("trimtab", appauthor=False) / "data"


def find(folder: str | None, default: str, what: str, where_from: str) -> Path:
    """The folder or file of a data set: as given (beside the configuration first), else `default` inside
    `root()`.

    Raises:
        InputError: with every place looked at and where to get the data.
    """
    given = Path(folder).expanduser() if folder else None
    if given is not None and (named := find_file(given)) is not None:
        return named
    places = list(dict.fromkeys(place / given for place in folders())) if given is not None else []
    if given is None or not given.is_absolute():
        places.append(root() / (given or default))
    for place in places:
        if place.exists():
            return place
    looked = ", ".join(str(place) for place in places)
    raise InputError(
        f"{what} was not found; looked for {looked}. {where_from} A set that lies elsewhere: set "
        f"{VARIABLE} to the folder that holds {default}."
    )
