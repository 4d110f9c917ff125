"""The page of a report in a real browser (`make test-browser`): no complaint, no request, and everything that it offers works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tvm_cascade import api
from tvm_cascade.testing.browser import Page, browser, find_browser
from tvm_cascade.testing.tflite import ModelWriter


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium here: make test-browser gets one on Debian")
    with browser(executable, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    writer = ModelWriter()
    x = writer.activation((1, 8, 8, 4), "int8", 0.1, 3, name="<script>window.hostile = 1</script>")
    for name in ("a\"'<img src=x onerror='window.hostile = 1'>", "second", "third"):
        out = writer.tensor((1, 8, 8, 4), "int8", 1 / 256, -128, name=name)
        writer.operator("LOGISTIC", [x], [out])
        x = out
    (folder / "net.tflite").write_bytes(writer.finish())
    found = api.plan(folder / "net.tflite")
    points = ((found.peak_bytes, 1.5), (found.peak_bytes * 2, 1.0))
    two = replace(found, frontier=points, estimates=found.estimates * 2, commands=("small <b>", "large"))
    two.write_report(folder / "two.html")
    found.write_report(folder / "x.html")
    return folder / "x.html"


def text(tab: Page, query: str) -> Any:
    return tab.value(f"document.querySelector({query!r}).textContent")


def test_a_browser_that_complains_is_heard(tab: Page, tmp_path: Path) -> None:
    wrong = "<img src='http://127.0.0.1:9/x.png'><script>document.title = 6 * 7; missing()</script>"
    (tmp_path / "wrong.html").write_text(f"<!doctype html><title>x</title>{wrong}")
    tab.open(tmp_path / "wrong.html")
    assert tab.value("document.title") == "42"
    assert any("missing" in e for e in tab.errors) and "http://127.0.0.1:9/x.png" in tab.requests
    tab.errors.clear()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390], ids=["desk", "phone"])
def test_nothing_is_asked_for_and_nothing_is_wrong(tab: Page, report: Path, width: int, dark: bool) -> None:
    tab.requests.clear()
    tab.open(report, width, 800, dark)
    assert tab.requests == [report.as_uri()] and tab.errors == []
    assert tab.value("window.hostile === undefined && document.images.length === 0")
    assert tab.value("document.documentElement.scrollWidth") == width  # only what is wide by itself scrolls, in its box
    shown = tab.value("getComputedStyle(document.body).backgroundColor")
    assert shown == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert tab.value("document.querySelector('.block').getBoundingClientRect().width") > 10


def contrast(tab: Page, query: str) -> float:
    """WCAG's contrast of an element's text with the background behind it."""
    return tab.value(f"""(function () {{
      function light(colour) {{
        var parts = colour.match(/[0-9.]+/g).slice(0, 3).map(function (v) {{
          v /= 255; return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); }});
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; }}
      var element = document.querySelector({query!r}), behind = element, clear = "rgba(0, 0, 0, 0)";
      while (getComputedStyle(behind).backgroundColor === clear) {{ behind = behind.parentElement; }}
      var a = light(getComputedStyle(element).color), b = light(getComputedStyle(behind).backgroundColor);
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }})()""")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_can_be_read(tab: Page, report: Path, dark: bool) -> None:
    tab.open(report, dark=dark)
    for query in ("p", "dt", "dd span", "nav a", "th button", "td", "footer", ".plot .xs span", "caption", ".command"):
        assert contrast(tab, query) >= 4.5, query


def test_the_switch_of_colours(tab: Page, report: Path) -> None:
    tab.open(report)
    for theme, colour in (("dark", "rgb(20, 23, 27)"), ("light", "rgb(255, 255, 255)"), ("auto", "rgb(255, 255, 255)")):
        tab.value(f"document.querySelector('[name=theme][value={theme}]').click()")
        assert tab.value("getComputedStyle(document.body).backgroundColor") == colour


def test_blocks_say_what_they_are(tab: Page, report: Path) -> None:
    tab.open(report)
    tab.value("document.querySelector('.block[tabindex=\"0\"]').focus()")
    tab.value("new Promise(done => setTimeout(done, 200))")  # the focus scrolls to the block, and the words go with it
    first = text(tab, "#tip")
    assert "bytes at offset" in first and "steps 0 to" in first and tab.value("!document.querySelector('#tip').hidden")
    tab.press("ArrowRight")
    assert text(tab, "#tip") == tab.value("document.activeElement.getAttribute('aria-label')") != first
    assert tab.value("document.querySelectorAll('.block[tabindex=\"0\"]').length") == 1
    tab.press("Escape")
    assert tab.value("document.querySelector('#tip').hidden")


def test_time_by_segments_and_back(tab: Page, report: Path) -> None:
    tab.open(report)
    drawn = "Array.from(document.querySelectorAll('.block')).map(b => b.getAttribute('d')).join()"
    steps = tab.value(drawn)
    for value in ("segments", "steps"):
        tab.value(f"document.querySelector('[name=time][value={value}]').click()")
        assert "NaN" not in tab.value(drawn)
    assert tab.value(drawn) == steps


def test_points_say_their_command(tab: Page, report: Path) -> None:
    tab.open(report)
    assert text(tab, "#command") == text(tab, "#plans code") and "net.tflite" in text(tab, "#command")
    assert tab.value("document.querySelectorAll('#plans tr.at').length") == 1
    tab.open(report.with_name("two.html"))
    assert text(tab, "#command") == "small <b>" and "this plan" in text(tab, "#picked")
    tab.value("document.querySelector('.point:checked').focus()")
    tab.press("ArrowRight")
    assert text(tab, "#command") == "large" and text(tab, "#plans tr.at code") == "large"
    tab.value("document.querySelector('#plan0').click()")
    assert text(tab, "#command") == "small <b>"
    x, y = tab.value(
        "(p => { p.scrollIntoView(); scrollBy(0, -200); p = p.getBoundingClientRect(); "
        "return [p.x + p.width / 2, p.y + p.height / 2] })(document.querySelectorAll('.point')[1])"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert text(tab, "#command") == "large"


def test_tables_are_sorted_and_filtered(tab: Page, report: Path) -> None:
    tab.open(report)
    names = "Array.from(document.querySelectorAll('#layer-table tbody tr')).map(r => r.cells[0].textContent)"
    titles = tab.value("Array.from(document.querySelectorAll('#layer-table thead th')).map(h => h.textContent)")
    before = tab.value(names)
    for title in ("Operator", "MACs", "Output bytes", "Instructions", "Weight bytes"):
        column = titles.index(title)
        values = (
            f"Array.from(document.querySelectorAll('#layer-table tbody tr')).map(r => r.cells[{column}].textContent)"
        )
        for order in ("first", "second"):
            tab.value(f"document.querySelectorAll('#layer-table thead button')[{column}].click()")
            found = tab.value(values)
            keys = found if title == "Operator" else [int(v.replace(",", "")) for v in found]
            up = (order == "first") == (title == "Operator")
            assert keys == sorted(keys, reverse=not up), (title, order)
            said = tab.value(f"document.querySelectorAll('#layer-table thead th')[{column}].ariaSort")
            assert said == ("ascending" if up else "descending")
    assert sorted(tab.value(names)) == sorted(before)
    tab.value(
        "(f => { f.value = 'nothing has this name'; f.dispatchEvent(new Event('input')) })(document.querySelector('#find'))"
    )
    assert text(tab, "#found") == f"0 of {len(before)}"


def test_the_region_graph_zooms(tab: Page, report: Path) -> None:
    tab.open(report)
    wide = "document.querySelector('#region-graph').getBoundingClientRect().width"
    before = tab.value(wide)
    tab.value("document.querySelector('[data-zoom=region-graph] button').click()")
    assert tab.value(wide) == pytest.approx(1.5 * before, rel=0.01)
    tab.value("document.querySelector('#region-graph').parentElement.focus()")
    tab.press("+")
    assert tab.value(wide) == pytest.approx(2.25 * before, rel=0.01)
    tab.press("0")
    assert tab.value(wide) == pytest.approx(before, rel=0.01)


def test_without_scripts_nothing_idle_is_shown(tab: Page, report: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(report)
        shown = "Array.from(document.querySelectorAll('.needs-js')).every(e => getComputedStyle(e).display === 'none')"
        assert tab.value(shown) and tab.value("document.querySelectorAll('.needs-js').length") > 3
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert tab.errors == []
