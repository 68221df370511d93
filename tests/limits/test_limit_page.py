"""The page of `trimtab limit` in a real browser: every figure drawn, nothing complained of, nothing asked
for."""

import shutil

import pytest

from trimtab import cli

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
ARGUMENTS = [
    "limit",
    "--width",
    "16,32",
    "--depth",
    "2,4,inf",
    "--steps",
    "3",
    "--points",
    "2",
    "--networks",
    "32",
    "--samples",
    "400",
    "--rates",
    "0.05,0.1,0.2,0.4",
]


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("limit") / "limit.html"
    assert cli.main([*ARGUMENTS, "-o", str(path)]) in (0, 3)
    return path


@pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path: `apt install chromium` to drive the page in a browser"
)
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_in_a_browser(page_path, tmp_path, width, scheme):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    heard: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        page.on("console", lambda m: heard.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: heard.append(f"error: {e}"))
        page.on(
            "request",
            lambda r: (
                heard.append(f"request: {r.url}")
                if not r.url.startswith(("file:", "data:", "blob:"))
                else None
            ),
        )
        page.goto(page_path.as_uri())
        plots = page.locator(".plot")
        assert (
            plots.count() >= 5
        )  # loss curves, two kernels, convergence over width and over depth, best rate
        for i in range(plots.count()):
            plots.nth(i).scroll_into_view_if_needed()
            page.wait_for_function(
                "i => document.querySelectorAll('.plot')[i].dataset.drawn === 'yes'", arg=i
            )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".plot .main-svg").count() >= plots.count()
        assert (
            page.locator("table").count() >= 3
            and "nan" not in page.locator("body").inner_text().lower().split()
        )
        assert page.locator("caption", has_text="Best rate").count() == 1
        image = page.screenshot(path=tmp_path / f"limit-{width}.png", full_page=True)
        assert len(image) > 20_000
        browser.close()
    assert heard == []
