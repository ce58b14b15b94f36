"""The page in a real browser: from disk, with the network off, by pointer, by keys, on paper."""

from __future__ import annotations

import json
import re

import pytest

from browser import DESKTOP, PHONE, REFERENCE

pytest_plugins = ("browser",)
pytestmark = pytest.mark.needs_browser


@pytest.mark.parametrize("name", ["gpu", "cpu", "hostile", "empty", "compare"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_no_page_is_wider_than_its_window(open_page, name, viewport):
    page = open_page(name, viewport=viewport).page
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


def test_tables_fit_a_desktop_without_scrolling_sideways(open_page):
    page = open_page("gpu").page
    wide = page.eval_on_selector_all(
        ".scroll", "boxes => boxes.filter(b => b.scrollWidth > b.clientWidth).map(b => b.ariaLabel)"
    )
    assert wide == []


def test_no_two_labels_of_an_axis_overlap(open_page):
    """Tick labels are drawn as groups of glyphs: those of one axis must not touch."""
    page = open_page("gpu").page
    clashes = page.evaluate(
        """() => {
          const found = [];
          for (const axis of document.querySelectorAll('svg [id*="matplotlib.axis_"]')) {
            const boxes = [...axis.querySelectorAll(':scope > [id*="tick_"]')]
              .map(tick => [...tick.children].filter(g => /-text_\\d+$/.test(g.id))[0])
              .filter(Boolean).map(g => g.getBoundingClientRect()).filter(b => b.width > 0);
            boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
              if (a.left < b.right - 1 && b.left < a.right - 1 &&
                  a.top < b.bottom - 1 && b.top < a.bottom - 1)
                found.push(axis.closest('figure').id);
            }));
          }
          return [found, document.querySelectorAll('svg [id*="tick_"]').length];
        }"""
    )
    assert clashes[0] == []
    assert clashes[1] > 100


def test_a_table_sorts_by_number_both_ways_and_by_text(open_page):
    opened = open_page("gpu")
    head = opened.page.locator("#table-layer_norm thead button")
    head.nth(2).click()
    values = [float(v) for v in opened.column("table-layer_norm", 3) if re.match(r"^[\d.e+]+$", v)]
    assert values == sorted(values)
    assert len(values) > 50
    first = opened.page.locator("#table-layer_norm thead th").nth(2)
    assert first.get_attribute("aria-sort") == "ascending"
    head.nth(2).press("Enter")
    values = [float(v) for v in opened.column("table-layer_norm", 3) if re.match(r"^[\d.e+]+$", v)]
    assert values == sorted(values, reverse=True)
    assert "failed" in opened.column("table-layer_norm", 3)[-1]
    head.nth(1).click()
    names = opened.column("table-layer_norm", 2)
    assert names == sorted(names, key=str.lower)


def test_a_table_filters_by_words_and_by_verdict(open_page):
    opened = open_page("gpu")
    box = opened.page.locator('[data-filter="table-layer_norm"]')
    box.fill("memory_efficient 8192")
    names = opened.column("table-layer_norm", 2)
    assert names
    assert set(names) == {"FusedLayerNorm(memory_efficient=True)"}
    count = opened.page.locator('[data-count="table-layer_norm"]')
    assert count.inner_text() == f"{len(names)} of 72 rows"
    box.fill("")
    opened.page.locator('[data-verdict="table-layer_norm"]').select_option("faster")
    rows = opened.page.locator("#table-layer_norm tbody tr:not([hidden])")
    assert 0 < rows.count() < 72
    assert all("faster" in text for text in rows.all_inner_texts())


def record_of(component: str, case: str) -> dict:
    """The reference's record of a case, as JSON."""
    for path in (REFERENCE / "records" / component).glob("*.json"):
        record = json.loads(path.read_text())
        if record.get("case") == case:
            return record
    raise AssertionError(case)


def test_a_mark_tells_its_value_interval_and_n_under_the_pointer_and_by_the_keys(open_page):
    opened = open_page("gpu")
    page, tip = opened.page, opened.page.locator("#tip")
    mark = page.locator('[data-tip^="FusedAdam, AdamW gpt2-124M float32:"]').first
    mark.scroll_into_view_if_needed()
    assert tip.is_hidden()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    cell = next(
        cell
        for cell in record_of("optimizer", "AdamW gpt2-124M float32")["cells"]
        if cell["implementation"] == "apex"
    )
    shown = cell["quantities"]["step_time"]
    value, low, high = (f"{shown[key] / 1e6:.3g}" for key in ("value", "low", "high"))
    expected = f"{value} [{low}, {high}] ms, n = {len(shown['samples'])}"
    assert expected in tip.inner_text()
    page.mouse.move(box["x"] + box["width"] + 8, box["y"] + box["height"] / 2)
    assert tip.is_visible(), "a mark is found near the pointer, not only under it"
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    figure = page.locator("#figure-layer_norm-ratio .scroll")
    figure.focus()
    page.keyboard.press("ArrowRight")
    one = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible()
    assert one != tip.inner_text()
    assert re.search(r"× \[.+\] \w+, n = \d+$", one)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button_turns_it(open_page, scheme):
    page = open_page("cpu", scheme=scheme).page

    def colours():
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.body).color]"
        )

    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
    before, after = (light, dark) if scheme == "light" else (dark, light)
    assert colours()[0] == before
    button = page.locator("#theme")
    assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
    button.click()
    assert colours()[0] == after
    assert button.get_attribute("aria-pressed") == str(scheme == "light").lower()


def test_the_keyboard_reaches_the_answer_first(open_page):
    page = open_page("gpu").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.tiles') !== null")


def test_it_prints_on_white_with_everything_open(open_page, tmp_path):
    page = open_page("gpu", scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#theme").is_hidden()
    assert page.locator(".filters").first.is_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.pdf(path=tmp_path / "printed.pdf", format="A4")
    assert (tmp_path / "printed.pdf").stat().st_size > 100_000


def test_without_a_gpu_the_first_screen_says_what_was_measured_and_links_on(open_page):
    page = open_page("cpu").page
    fold = DESKTOP["height"]
    for text in ("What is fastest here", "Not tested on this machine", "needs an NVIDIA GPU"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < fold, text
    link = page.locator(".beside a")
    assert link.bounding_box()["y"] < fold
    link.click()
    page.wait_for_load_state()
    assert page.title() == "What NVIDIA Apex buys on one NVIDIA H200"


@pytest.mark.parametrize(
    ("name", "viewport", "scheme"),
    [
        ("gpu", DESKTOP, "light"),
        ("cpu", PHONE, "dark"),
        ("hostile", DESKTOP, "light"),
        ("empty", PHONE, "light"),
        ("compare", DESKTOP, "dark"),
    ],
)
def test_axe_finds_nothing_serious(open_page, name, viewport, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(name, scheme=scheme, viewport=viewport).page
    # A figure's drawing is hidden from assistive technology; its box carries the text.
    outside = {"exclude": [["figure svg"]]}
    assert serious(Axe().run(page, context=outside)) == []
    if name == "gpu":
        page.locator("#theme").click()
        only_colours = {"runOnly": ["color-contrast"]}
        assert serious(Axe().run(page, context=outside, options=only_colours)) == []


def serious(found) -> list[tuple]:
    """What axe-core found, but for what it calls minor: rule, impact, some of the elements."""
    return [
        (entry["id"], entry["impact"], [node["target"] for node in entry["nodes"]][:3])
        for entry in found.response["violations"]
        if entry["impact"] != "minor"
    ]
