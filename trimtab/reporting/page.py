"""One self-contained page from a store: how it is put together, kept safe and kept the same.

The page is data (JSON in inert script blocks), Plotly once, and one script of ours; the content security
policy allows exactly those two scripts by their hashes, nothing from the network and no eval. Whatever users
wrote (names, labels, exception texts) passes jinja's autoescape or a JSON string, never markup. No clock and
no random number: the same store gives the same bytes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from trimtab.errors import InputError
from trimtab.files import json_ready
from trimtab.optima.tables import RunSource, Table, open_source
from trimtab.optima.wording import hp_name, number
from trimtab.reporting.content import page_content
from trimtab.reporting.sections import attached_section
from trimtab.reporting.training_curves import MOST

HERE = Path(__file__).parent / "templates"


def report(
    store: str | Path | Table | RunSource,
    path: str | Path = "report.html",
    *,
    hp: str = "lr",
    metric: str = "train_loss",
) -> Path:
    """Write one offline, interactive page about a sweep; returns its path.

    store: a sweep's file, its Store, or a table with a row per run. The same store gives the same bytes.

    >>> import tempfile
    >>> import pandas as pd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = report(pd.DataFrame(), Path(folder) / "report.html").read_text()
    >>> "no run has finished" in page
    True
    """
    return write_page(render(open_source(store), hp=hp, metric=metric), path)


def write_page(text: str, path: str | Path) -> Path:
    """Put a page in place of what was there, whole."""
    path = Path(path)
    draft = path.parent / f"{path.name}.{os.getpid()}.draft"
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)  # a reader sees the old page or the new one, never half of one
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError(f"the report could not be written to {path}: {error.strerror}.") from error
    return path


def render(source: RunSource, *, hp: str = "lr", metric: str = "train_loss") -> str:
    """The page as text."""
    return fill_template(page_content(source, hp, metric))


def render_section(
    kind: str,
    section: Mapping[str, Any],
    *,
    headline: str,
    verdict: str,
    command: str = "",
    counts: Sequence[tuple[str, int]] = (),
) -> str:
    """A page about one section alone, as it would be attached to a store: the same page without a sweep.

    verdict: "transfers", "drifts" or "cannot tell", for the headline's colour.
    """
    figures: dict[str, Any] = {}
    attached = [attached_section(kind, 0, section, figures)]
    no_sweep: dict[str, Any] = {key: [] for key in ("answers", "axes", "matrix", "overs", "joint", "runs")}
    no_sweep |= dict(lead="", hp="", metric="", where={}, finished=0, unfinished=0, config="{}", alone=True)
    no_sweep |= dict(counts=list(counts), failed={"count": 0, "rows": []})
    title = str(section.get("title", kind))
    meta = {"command": command, "toml": "", "versions": {}}
    content = dict(
        title=title, headline=headline, verdict=verdict, figures=figures, attached=attached, meta=meta
    )
    return fill_template(no_sweep | content)


def fill_template(content: dict[str, Any]) -> str:
    """The page that says `content`, with its policy."""
    figures = json_ready(content.pop("figures"))
    runs = content.pop("runs")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "hp_name": hp_name}
    ours, library = (HERE / "report.js").read_text(encoding="utf-8"), _plotly()
    return environment.get_template("report.html.j2").render(
        **content,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        library=Markup(library),
        script=Markup(ours),
        policy=f"default-src 'none'; script-src '{_hash(library)}' '{_hash(ours)}'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'",
        figures=inert(figures),
        runs=inert(runs),
        shown=len(runs),
        most=MOST,
    )


@functools.lru_cache(maxsize=1)
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script").strip()


@functools.lru_cache(maxsize=4)
def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()


def inert(value: Any) -> Markup:
    """JSON that cannot close its script block or begin a comment in it.

    >>> print(inert({"name": "</script><!--"}))
    {"name":"\\u003c/script\\u003e\\u003c!--"}
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
