"""
The matrix and the picture of waits in a real browser.
"""

from __future__ import annotations

import os
import shutil

import pytest

from distdebug import diagnose
from distdebug.report import write_report
from distdebug.testing import SimulatedJob, make_dumps
from large_job import write_dumps


playwright = pytest.importorskip("playwright.sync_api")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
# As root, Chromium runs without walls around it, or not at all.
ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []
RANKS, AWAY = 64, 21

# The point of the canvas in the middle of a cell.
MIDDLE = """
([row, column]) => {
  const canvas = document.querySelector(".matrix-field > canvas");
  const pen = canvas.getContext("2d");
  const scale = canvas.width / canvas.clientWidth;
  const [left, right, bottom] = [76, 16, 36];
  const width = canvas.clientWidth - left - right;
  const height = canvas.clientHeight - bottom;
  const x = left + (column + 0.5) * width / %(columns)d;
  const y = (row + 0.5) * height / %(rows)d;
  return {x, y, color: [...pen.getImageData(x * scale, y * scale, 1, 1).data]};
}
"""

STEP = [("step", "/job/train.py", 41)]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """
    The report on a job in which one rank stays away.
    """
    folder = tmp_path_factory.mktemp("job")
    job = SimulatedJob(RANKS)
    rows = [job.new_group(range(i, i + 8), "tp") for i in range(0, RANKS, 8)]
    for _ in range(30):
        for row in rows:
            job.collective("all_gather", row)
        job.collective("all_reduce", late={5: 0.01}, stack=STEP)
    job.collective("barrier", ranks=[r for r in range(RANKS) if r != AWAY])
    job.wait(600)
    make_dumps(folder / "dumps", job)
    return write_report(diagnose(folder / "dumps"), folder / "report.html")


@pytest.fixture(scope="module")
def browser():
    """
    A browser for all tests.
    """
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=ARGUMENTS
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser, report):
    """
    The page with its matrix drawn; it must not have complained.
    """
    page = browser.new_page(viewport={"width": 1200, "height": 1600})
    complaints = []
    page.on(
        "console",
        lambda m: complaints.append(m.text) if m.type == "error" else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    page.wait_for_selector(".matrix-field > canvas[data-drawn]")
    page.locator(".matrix-field > canvas").scroll_into_view_if_needed()
    yield page
    assert [] == complaints
    page.close()


def cell(page, row, column):
    """
    Where a cell is on the canvas, and its color.
    """
    script = MIDDLE % {"columns": 31, "rows": RANKS}
    return page.evaluate(script, [row, column])


def told(page):
    """
    What the page says of a cell.
    """
    return page.locator(".matrix-told").inner_text()


def point_at(page, row, column):
    """
    Move the mouse to a cell; returns where it is on the page.
    """
    at = cell(page, row, column)
    box = page.locator(".matrix-field > canvas").bounding_box()
    page.mouse.move(box["x"] + at["x"], box["y"] + at["y"])
    return box["x"] + at["x"], box["y"] + at["y"]


@pytest.fixture(scope="module")
def cascade(tmp_path_factory):
    """
    The report on a large job in which many kinds of ranks wait.
    """
    folder = tmp_path_factory.mktemp("cascade")
    write_dumps(folder, 512, entries=300)
    return write_report(diagnose(folder), folder / "report.html")


@pytest.mark.parametrize("width", [400, 1200])
def test_picture_of_a_large_job(browser, cascade, width):
    """
    Names stay in their boxes, and who is at fault is seen at once.
    """
    page = browser.new_page(viewport={"width": width, "height": 900})

    page.goto(cascade.as_uri())
    page.wait_for_selector(".matrix-field > canvas[data-drawn]")
    wide = page.evaluate(
        "[...document.querySelectorAll('#graph .box')]"
        ".filter((box) => box.checkVisibility())"
        ".filter((box) => [...box.querySelectorAll('text')].some((text) =>"
        " text.getBBox().x + text.getBBox().width > 172))"
        ".map((box) => box.textContent)"
    )
    kind = "tall" if width < 640 else "wide"
    culprit = page.locator(f"#graph .is-{kind} .box.culprit").bounding_box()

    assert page.locator(f"#graph .is-{kind} .box").count() > 12
    assert [] == wide
    assert 0 <= culprit["x"] <= width - culprit["width"]
    page.close()


def test_cells_have_the_colors_of_their_states(page):
    """
    What is complete, what waits, and who is away have colors of their own.
    """
    done = cell(page, 40, 3)["color"]
    waits = cell(page, 40, 30)["color"]
    away = cell(page, AWAY, 30)["color"]

    assert 3 == len({tuple(done), tuple(waits), tuple(away)})
    assert done == cell(page, 2, 7)["color"]
    assert done[1] > done[0]
    assert away[0] > max(away[1:3])


def test_begins_where_it_matters(page):
    """
    Without a click, the page tells of the culprit.
    """
    text = told(page)

    assert text.startswith(f"rank {AWAY} · barrier #31")
    assert "not entered" in text
    assert "last call on record, #30, at" in text


def test_pointing_tells_what_a_cell_is(page):
    """
    The mouse shows rank, call, state, size, group, time, and stack, also of
    calls long ago.
    """
    point_at(page, 5, 12)

    text = told(page)

    assert text.startswith("rank 5 · all_reduce #13")
    for word in ("completed", "[1024] Float", "group default_pg", "10 ms"):
        assert word in text
    assert "called at (by rank 0)" in text
    assert "step (/job/train.py:41)" in text


def test_click_selects(page):
    """
    A click selects rank, group, and call everywhere on the page.
    """
    page.mouse.click(*point_at(page, 9, 30))

    assert "#rank=9&group=0&seq=31" == page.evaluate("location.hash")


def test_keys_move_and_select(page):
    """
    The arrows move from call to call, and Enter selects.
    """
    page.locator(".matrix-field > canvas").focus()
    for key in ("ArrowLeft", "ArrowDown", "Shift+ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    at_end = told(page)

    page.keyboard.press("Home")
    page.keyboard.press("Enter")

    assert at_end.startswith(f"rank {AWAY + 10} · all_reduce #30")
    assert f"#rank={AWAY + 10}&group=0&seq=1" == page.evaluate("location.hash")


def test_zoom_and_back(page):
    """
    Plus shows fewer cells, and zero all of them.
    """
    picture = "document.querySelector('.matrix-field > canvas').toDataURL()"
    page.locator(".matrix-field > canvas").focus()
    whole = page.evaluate(picture)

    page.keyboard.press("+")
    near = page.evaluate(picture)
    page.keyboard.press("0")

    assert near != whole
    assert page.evaluate(picture) == whole


def test_a_rank_is_found(page):
    """
    A number leads to its row; a number that nobody has does not.
    """
    field = page.locator(".matrix-find input")
    field.fill("60")
    field.press("Enter")
    found = told(page)
    field.fill("999")
    field.press("Enter")

    assert found.startswith("rank 60 ")
    assert told(page).startswith("rank 60 ")
    assert field.evaluate("f => f.validationMessage")


def test_groups_can_be_chosen(page):
    """
    Another kind of group has a picture of its own.
    """
    page.locator(".matrix-view select").select_option(label="tp (8 groups)")
    page.locator(".matrix-told", has_text="group tp").wait_for()

    assert f"rank {AWAY} · all_gather #30" in told(page)
    assert "group tp: ranks 16-23" in told(page)


def test_lateness_is_another_coloring(page):
    """
    Whoever is late stands out.
    """
    page.locator(".matrix-color select").select_option("late")

    late, fine = cell(page, 5, 3)["color"], cell(page, 40, 3)["color"]

    assert "late" == page.locator(".matrix-field > canvas").get_attribute(
        "data-drawn"
    )
    assert late[0] - late[1] > 60 > abs(fine[0] - fine[1])


def test_selection_comes_from_elsewhere(page):
    """
    What is selected in the picture of waits is shown in the matrix.
    """
    page.locator("#graph .is-wide .box.culprit").click()

    assert told(page).startswith(f"rank {AWAY} ")
    assert page.locator("#graph .is-wide .box.culprit.is-selected").count()


def test_boxes_are_reached_by_keys(page):
    """
    A box of the picture can be chosen without a mouse.
    """
    page.locator("#graph .is-wide .box.call").focus()
    page.keyboard.press("Enter")

    assert "#group=0&seq=31" == page.evaluate("location.hash")
    assert page.locator("#graph .is-wide .box.call.is-selected").count()


def test_address_selects(browser, report):
    """
    A link to a rank, a group, and a call opens the page there.
    """
    page = browser.new_page(viewport={"width": 1200, "height": 900})

    page.goto(f"{report.as_uri()}#rank=7&group=1&seq=4")
    page.locator(".matrix-told", has_text="all_gather #4").wait_for()

    assert told(page).startswith("rank 7 · all_gather #4")
    page.close()


def test_without_scripts(browser, report):
    """
    Picture and table are read without scripts.
    """
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()

    page.goto(report.as_uri())

    assert page.locator("#graph svg .box").count()
    assert page.locator("#matrix table.calls td.is-absent").is_visible()
    assert not page.locator("#matrix .matrix").is_visible()
    context.close()


def test_narrow_dark_and_slow(browser, report):
    """
    A narrow dark page draws the same, and is not wider than the window.
    """
    context = browser.new_context(
        viewport={"width": 400, "height": 800}, color_scheme="dark"
    )
    page = context.new_page()

    page.goto(report.as_uri())
    page.wait_for_selector(".matrix-field > canvas[data-drawn]")

    assert 400 >= page.evaluate("document.documentElement.scrollWidth")
    culprit = page.locator("#graph .is-tall .box.culprit").bounding_box()
    assert 400 >= culprit["x"] + culprit["width"]
    context.close()
