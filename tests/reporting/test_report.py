"""The page: honest on any store, safe against hostile text, the same twice, and alive in a real browser."""

import html.parser
import json
import re
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from sweeps_made import Made, made

import trimtab
from trimtab.optima.tables import TableSource
from trimtab.reporting.content import page_content
from trimtab.reporting.figures import MARKS
from trimtab.reporting.page import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
browser_needed = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path: `apt install chromium` to drive the page in a browser"
)

HOSTILE = [
    "<script>window.hit=1</script>",
    "</script><script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg onload=window.hit=1>",
    "<svg><script>window.hit=1</script></svg>",
    '"><script>window.hit=1</script>',
    "' onmouseover='window.hit=1",
    '<a href="javascript:window.hit=1">click</a>',
    "javascript:window.hit=1",
    '<iframe src="javascript:window.hit=1"></iframe>',
    "<!--<script>window.hit=1//-->",
    "]]><script>window.hit=1</script>",
    "{{ 7*7 }}{% raw %}",
    "${window.hit=1}`${window.hit=1}`",
    "\\u003cscript\\u003ewindow.hit=1\\u003c/script\\u003e",
    "\u2028window.hit=1\u2029",
    "&lt;script&gt;window.hit=1&lt;/script&gt;",
    "<style>*{background:url(http://example.com/x)}</style>",
    "<meta http-equiv=refresh content='0;url=http://example.com'>",
    "%{customdata}<b onclick=window.hit=1>x</b>\x00\x1b[31m\ud800",
]


def clean(text):
    return text.encode("utf-8", "replace").decode()


def hostile() -> Made:
    source = made(schemes=("mup", "depth-mup"))
    table = source.table.copy()
    names = [clean(h) for h in HOSTILE]
    table["label"] = [names[i % 20] for i in range(len(table))]
    table["model"] = names[0]
    failed = np.arange(len(table)) % 16 == 15
    table.loc[failed, "state"] = "failed"
    table["error"] = [f"Traceback\n{names[i % 20]}" if f else None for i, f in enumerate(failed)]
    table.loc[table.scheme == "mup", "scheme"] = names[1]
    figure = {
        "data": [
            {"type": "scatter", "x": [1, 2], "y": [1, 2], "name": names[2], "text": names[:2]},
            {"type": "scattergl", "x": [1], "y": [1]},
        ],
        "layout": {"title": {"text": names[7]}, "images": [{"source": "http://example.com/x.png"}]},
    }
    attached = {
        "check": [
            {"title": t, "verdict": t, "text": t, "figures": [figure] if i < 2 else [], "tables": [[{t: t}]]}
            for i, t in enumerate(names)
        ]
    }
    meta = dict(source.meta) | {
        "name": " ".join(names),
        "command": names[1],
        "toml": "\n".join(names),
        "versions": {n: n for n in names},
        "config": {n: n for n in names},
    }
    return Made(table, meta, attached)


def test_the_same_store_gives_the_same_bytes(tmp_path):
    one, two = (trimtab.report(made(), tmp_path / f"{i}.html") for i in range(2))
    assert one.read_bytes() == two.read_bytes() and one.stat().st_size < 7e6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.html", "1.html"]


def test_nothing_is_fetched_and_only_two_scripts_run():
    page = render(made())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#39;", "'")
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy and policy.count("sha256-") == 2
    assert re.search(r"script-src 'sha256-[^']*' 'sha256-[^']*';", policy)
    shell = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "src=" not in shell and set(re.findall(r'href="([^"]*)"', shell)) == {"#verdict", "data:,"}
    assert (
        "depth-mup: learning rate transfers over depth and width</h1>" in shell
        and "http://" not in shell
        and "https://" not in shell
    )


TABLE = made().table
STORES = {
    "no table": pd.DataFrame(),
    "no rows": TABLE.iloc[:0],
    "nothing ran": TABLE.assign(state="waiting", train_loss=np.nan),
    "half finished": TABLE.assign(state=np.where(np.arange(len(TABLE)) % 2, "running", TABLE.state)),
    "one cell": TABLE.iloc[:1],
    "all diverged": TABLE.assign(state="diverged", train_loss=np.nan, stopped_at=3.0),
    "all failed": TABLE.assign(state="failed", error="boom", train_loss=np.nan),
    "all collapsed": TABLE.assign(collapsed=True),
    "one size": TABLE[(TABLE.depth == 6) & (TABLE.width == 32)],
    "one scheme": TABLE[TABLE.scheme == "sp"],
    "one seed": TABLE[TABLE.seed == 0],
    "one rate": TABLE[TABLE.lr == 0.25],
    "unequal schemes": TABLE[(TABLE.scheme == "mup") | ((TABLE.width == 32) & (TABLE.depth < 12))],
    "two decays": pd.concat(
        [TABLE, TABLE.assign(weight_decay=0.1, train_loss=TABLE.train_loss + 0.1, cell=TABLE.cell + "x")],
        ignore_index=True,
    ),
}


@pytest.mark.parametrize("name", STORES)
def test_any_store_gives_an_honest_page(name):
    page = render(Made(STORES[name], {"base": [32, 3]}))
    said = {
        "no table": "no run has finished",
        "no rows": "no run has finished",
        "nothing ran": "no run has finished",
        "half finished": "the answer so far",
        "one cell": "cannot tell",
        "all diverged": "nothing was stable",
        "all failed": "failed cells",
        "all collapsed": "nothing was stable",
        "one size": "cannot tell",
        "one scheme": "does not transfer",
        "one seed": "With depth-mup",
        "one rate": "cannot tell",
        "unequal schemes": "With depth-mup",
        "two decays": "Also swept: weight_decay",
    }
    assert said[name] in page


def test_a_plain_table_is_enough(tmp_path):
    table = made(schemes=("mup",)).table[["state", "scheme", "width", "depth", "seed", "lr", "train_loss"]]
    assert "does not transfer" in trimtab.report(table, tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_curves_are_at_most_500_and_the_page_says_which():
    source = made(seeds=5, cross=False)
    content = page_content(source)
    assert 0 < len(content["runs"]) <= 500 and {r["kind"] for r in content["runs"]} == {
        "best",
        "the base's",
        "diverged",
    }
    assert f"{len(content['runs'])} of {content['finished']:,} finished runs, at most 500:" in render(source)
    one = source.table[
        (source.table.width == 32) & (source.table.depth == 3) & (source.table.scheme == "depth-mup")
    ]
    many = pd.concat([one.assign(depth=d, cell=one.cell + str(d)) for d in range(3, 60)], ignore_index=True)
    runs = page_content(Made(many, source.meta))["runs"]
    assert len(runs) == 500 and {r["depth"] for r in runs if r["kind"] == "best"} == set(
        range(3, 60)
    )  # the best are the last to go


@pytest.mark.slow
def test_many_rates_are_thinned():
    one = made(schemes=("depth-mup",), seeds=1, rates=np.linspace(-6, 0, 1600))
    for name, figure in page_content(one)["figures"].items():
        assert sum(len(t["x"]) for t in figure["data"]) <= 5_200, name


def test_hostile_text_stays_text():
    page = render(hostile())
    tags: list[tuple[str, list]] = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append((tag, attrs))

    Reader().feed(page)
    assert Counter(tag for tag, _ in tags)["script"] == 4
    assert not {tag for tag, _ in tags} & {"img", "svg", "iframe", "object", "embed", "base", "form"}
    assert not [
        a
        for _, attrs in tags
        for a in attrs
        if a[0].startswith("on") or (a[0] in ("href", "src", "action") and a[1] not in ("#verdict", "data:,"))
    ]
    assert (
        sum(tag == "meta" for tag, _ in tags) == 5
        and "49"
        not in re.sub(r"<script.*?</script>", "", page, flags=re.S).split("<pre>")[1].split("</pre>")[0]
    )
    for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, flags=re.S):
        json.loads(block)


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def opened(chromium, path, width=1400, scheme="light"):
    """The page in a fresh tab, with what it complained of and asked for."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, heard = context.new_page(), []
    page.on("console", lambda m: heard.append(f"{m.type}: {m.text}"))
    page.on("pageerror", lambda e: heard.append(f"error: {e}"))
    page.on(
        "request",
        lambda r: (
            heard.append(f"request: {r.url}") if not r.url.startswith(("file:", "data:", "blob:")) else None
        ),
    )
    page.on("dialog", lambda d: (heard.append("dialog"), d.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_selector('.plot[data-drawn="yes"]')
    return page, heard


@pytest.mark.slow
@browser_needed
@pytest.mark.parametrize("width", [390, 1400])
def test_in_a_browser(chromium, tmp_path, width):
    page, heard = opened(
        chromium, trimtab.report(made(), tmp_path / "r.html"), width, "dark" if width == 390 else "light"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    first = page.locator('[data-figure="depth-curves-2"]')
    first.scroll_into_view_if_needed()
    page.wait_for_selector('[data-figure="depth-curves-2"][data-drawn="yes"]')
    # Hover shows the runs.
    box = first.locator(".scatterlayer .trace .points path").nth(3).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector('[data-figure="depth-curves-2"] .hoverlayer .hovertext')
    assert (
        "seed 0" in first.locator(".hoverlayer").text_content()
        or "best" in first.locator(".hoverlayer").text_content()
    )
    # The legend toggles, in every panel of its group.
    chip = page.locator("#panel-depth .chip").first
    before = first.locator(".scatterlayer .trace").count()
    chip.click()
    assert (
        chip.get_attribute("aria-pressed") == "false"
        and first.locator(".scatterlayer .trace").count() < before
    )
    chip.press("Enter")
    assert first.locator(".scatterlayer .trace").count() == before
    # Tabs, by keyboard.
    page.locator("#tab-depth").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-width").is_visible() and not page.locator("#panel-depth").is_visible()
    page.wait_for_selector('#panel-width .plot[data-drawn="yes"] .scatterlayer')
    assert page.locator("#tab-width").get_attribute("aria-selected") == "true"
    # Training curves of another size, the other theme.
    page.locator("#pick-scheme").select_option("mup")
    page.locator("#runs-plot").scroll_into_view_if_needed()
    page.wait_for_selector("#runs-plot .scatterlayer .trace")
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == ("light" if width == 390 else "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not heard, heard


@pytest.mark.slow
@browser_needed
def test_hostile_text_does_not_run(chromium, tmp_path):
    page, heard = opened(chromium, trimtab.report(hostile(), tmp_path / "r.html"))
    for y in range(0, page.evaluate("document.documentElement.scrollHeight"), 700):
        page.evaluate(f"window.scrollTo(0, {y})")
        page.wait_for_timeout(60)
    for summary in [s for s in page.locator("summary").all() if s.is_visible()][:12]:
        summary.click()
    for figure in page.locator(".plot .scatterlayer .points path").all()[:40:8]:
        if figure.is_visible():
            figure.hover(force=True)
    assert page.evaluate("typeof window.hit") == "undefined"
    assert not heard, heard


@browser_needed
def test_an_empty_store_in_a_browser(chromium, tmp_path):
    context = chromium.new_context()
    page, heard = context.new_page(), []
    page.on("console", lambda m: heard.append(m.text))
    page.on("pageerror", lambda e: heard.append(str(e)))
    page.goto(trimtab.report(TableSource(pd.DataFrame()), tmp_path / "r.html").as_uri())
    assert "Nothing to tell yet" in page.locator("h1").text_content() and not heard


@pytest.mark.slow
def test_a_hundred_thousand_runs_make_a_small_page(tmp_path):
    source = made(seeds=3)
    table = pd.concat(
        [
            source.table.assign(seed=source.table.seed + 3 * i, cell=source.table.cell + str(i))
            for i in range(100)
        ],
        ignore_index=True,
    )
    assert len(table) > 100_000
    big = Made.__new__(Made)
    big.table, big.meta, big.extra = table, source.meta, {}
    big.rows = dict(zip(table.cell, table.itertuples(), strict=True))
    content = page_content(big)
    assert trimtab.report(big, tmp_path / "r.html").stat().st_size < 15e6
    for name, figure in content["figures"].items():
        assert sum(len(t["x"]) for t in figure["data"]) <= MARKS + 200, name


def test_a_coordinate_check_becomes_a_section(tmp_path):
    """`trimtab check --store` on a user's file whose build comes from elsewhere; then the page shows it."""
    from trimtab import cli
    from trimtab.reporting import report
    from trimtab.sweeps.store import Store

    Store(tmp_path / "a.db", create=True).close()
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom trimtab.models.mlp import build\n"
        "def data(step):\n    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))\n    "
        "return x, (x[:, 0] > 0).long()\n"
    )
    command = [
        "check",
        f"{tmp_path / 'mine.py'}:build",
        "--base-width",
        "16",
        "--base-depth",
        "2",
        "--widths",
        "16",
        "32",
        "--depths",
        "2",
        "4",
        "--steps",
        "2",
        "--seeds",
        "2",
    ]
    code = cli.main([*command, "--store", str(tmp_path / "a.db")])
    assert code in (0, 1, 3)
    assert cli.main([*command, "--store", str(tmp_path / "none.db")]) == 2
    section = Store(tmp_path / "a.db").attached("check")[0]
    assert (
        section["verdict"] == {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE"}[code]
        and section["figures"][0]["data"]
    )
    page = report(tmp_path / "a.db", tmp_path / "page.html").read_text()
    assert "Coordinate check: depth-mup, AdamW, widths 16, 32, depths 2, 4" in page


def test_the_page_is_an_ordinary_file_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "plain").write_text("")
    page = trimtab.report(pd.DataFrame(), tmp_path / "report.html")
    assert (
        page.stat().st_mode == (tmp_path / "plain").stat().st_mode
    )  # others may read it, if they may read anything
    (tmp_path / "folder").mkdir()
    with pytest.raises(trimtab.InputError, match="could not be written"):
        trimtab.report(pd.DataFrame(), tmp_path / "folder")
    assert {p.name for p in tmp_path.iterdir()} == {"plain", "report.html", "folder"}
