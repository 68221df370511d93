"""How heavy is a report's page? Size, time until the first figure, and how long it keeps a reader waiting,
for a thousand and for a hundred thousand runs.

    python benchmarks/report.py

No other tool draws this page, so it is compared with itself. Needs Playwright and Debian's chromium. The page
of 100,800 runs is opened beside that of 1,008 in the same browser; waits are the longest block of the page's
thread while it loads, scrolls through every figure, switches tabs and shows a hover.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from playwright.sync_api import sync_playwright
from records import Row, main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from sweeps_made import Made, made

import trimtab

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WATCH = (
    "window.blocks = []; new PerformanceObserver(l => l.getEntries().forEach(e => "
    "window.blocks.push(e.duration))).observe({type: 'longtask', buffered: true})"
)


def repeated(times: int) -> Made:
    """The made-up cross with so many times its three seeds."""
    source = made(seeds=3)
    table = pd.concat(
        [
            source.table.assign(seed=source.table.seed + 3 * i, cell=source.table.cell + str(i))
            for i in range(times)
        ],
        ignore_index=True,
    )
    big = Made.__new__(Made)
    big.table, big.meta, big.extra = table, source.meta, {}
    big.rows = dict(zip(table.cell, table.itertuples(), strict=True))
    return big


def measured(browser, path: Path) -> dict[str, float]:
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.add_init_script(WATCH)
    start = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector('.plot[data-drawn="yes"]')
    first = time.perf_counter() - start
    for y in range(0, page.evaluate("document.documentElement.scrollHeight"), 700):
        page.evaluate(f"window.scrollTo(0, {y})")
        page.wait_for_timeout(150)
    page.evaluate("window.scrollTo(0, 0)")
    waits = {}
    figure = page.locator('[data-figure="depth-curves-2"]')
    figure.scroll_into_view_if_needed()
    box = figure.locator(".scatterlayer .trace .points path").nth(3).bounding_box()
    start = time.perf_counter()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector('[data-figure="depth-curves-2"] .hoverlayer .hovertext')
    waits["hover"] = time.perf_counter() - start
    start = time.perf_counter()
    page.locator("#tab-width").click()
    page.wait_for_selector('#panel-width .plot[data-drawn="yes"] .scatterlayer')
    waits["tab"] = time.perf_counter() - start
    start = time.perf_counter()
    page.locator("#pick-scheme").select_option("mup")
    page.locator("#runs-plot").scroll_into_view_if_needed()
    page.wait_for_selector("#runs-plot .scatterlayer .trace")
    waits["curves"] = time.perf_counter() - start
    return {
        "MB": path.stat().st_size / 1e6,
        "first figure s": first,
        **{f"{k} s": v for k, v in waits.items()},
        "longest block ms": max(page.evaluate("window.blocks"), default=0),
    }


def rows(tiny: bool = False) -> Iterator[Row]:
    """The page of a hundred times the runs, with that of a thousand as its peer: equal is the aim."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        pages = {}
        for times in (1, 2 if tiny else 100):
            source = repeated(times)
            pages[len(source.table)] = trimtab.report(source, Path(folder) / f"{times}.html")
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        rounds = [
            {runs: measured(browser, path) for runs, path in pages.items()} for _ in range(1 if tiny else 3)
        ]
        browser.close()
    few, many = pages
    for name in rounds[0][many]:
        unit = name.split()[-1]
        ours, theirs = ([one[runs][name] for one in rounds] for runs in (many, few))
        yield Row(
            what=f"the page of {many:,} runs: {name.removesuffix(unit).strip() or 'size'}",
            peer=f"the page of {few:,}",
            unit=unit,
            ours=statistics.median(ours),
            theirs=statistics.median(theirs),
            ratios=tuple(t / o for t, o in zip(theirs, ours, strict=True)),
            why=f"{many // few} times the runs in one page, in the same browser",
        )


if __name__ == "__main__":
    main(rows)
