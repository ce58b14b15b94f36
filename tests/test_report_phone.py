"""The page on a phone and on a desktop: every column in sight, two right edges."""

from __future__ import annotations

import pytest

from browser import PHONE

pytest_plugins = ("browser",)
pytestmark = pytest.mark.needs_browser
NARROW = """tables => tables.map(table => [...table.querySelectorAll("tbody td, tbody th")].filter(
    cell => !cell.closest("tr").hidden && cell.getBoundingClientRect().right > innerWidth).length)
"""


@pytest.mark.parametrize("name", ["gpu", "cpu", "compare"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_cell_of_a_table_is_out_of_sight_on_a_phone(open_page, name, scheme):
    page = open_page(name, viewport=PHONE, scheme=scheme).page
    tables = "table.sortable, table.counts"
    assert page.locator(tables).count() > 1
    assert set(page.eval_on_selector_all(tables, NARROW)) == {0}
    if name == "gpu":
        verdict = page.locator("#table-optimizer .verdict").first
        assert verdict.bounding_box()["x"] < PHONE["width"]
        label = "e => getComputedStyle(e.closest('td'), '::before').content"
        assert verdict.evaluate(label) == '"vs best eager: "'
        page.locator("#table-optimizer thead button").nth(2).click()
        assert page.locator("#table-optimizer th[aria-sort='ascending']").count() == 1


def ends(page, selector: str) -> set[int]:
    """Where the boxes of a selector end on the right, in whole pixels."""
    boxes = "boxes => boxes.map(b => Math.round(b.getBoundingClientRect().right))"
    return set(page.eval_on_selector_all(selector, boxes))


def test_the_page_has_two_right_edges(open_page):
    page = open_page("gpu").page
    measure = ends(page, "section > p, figure svg, figcaption, .claims, .counts, .work table")
    assert len(measure) == 1
    wide = ends(page, ".tiles, .long, section > h2")
    assert len(wide) == 1
    assert min(wide) > max(measure)
