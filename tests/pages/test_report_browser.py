"""
The report in a real browser.
"""

from __future__ import annotations

import os
import re
import shutil

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

import bench_report

from distdebug import diagnose
from distdebug.diagnosis import DiagnosisInputs
from distdebug.flight_recorder import analyze_dumps
from distdebug.report import write_report
from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    ThreadStack,
    merge_stacks,
    stacks_to_json,
    to_collapsed,
)
from distdebug.testing import SimulatedJob, make_dumps


playwright = pytest.importorskip("playwright.sync_api")

REPOSITORY = Path(__file__).parents[2]
AUDIT = Path(__file__).with_name("audit.js").read_text("utf-8")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
# As root, Chromium runs without walls around it, or not at all.
ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []
MOST_BYTES = 5 << 20
# No page may take so long, however slow the machine is.
MOST_MS = 30_000

SITE = "/usr/lib/python3.11/site-packages"
MODULE = StackFrame("<module>", "/job/train.py", 90)
STEP = StackFrame("train_step", "/job/train.py", 41)
ENGINE = tuple(
    StackFrame(f"call_{n}", f"{SITE}/torch/nn/layers.py", n) for n in (1, 2, 3)
)
REDUCE = StackFrame(
    "all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 28
)
READ = StackFrame("read_shard", "/job/data.py", 9)
IDLE = StackFrame(
    "_worker", "/usr/lib/python3.11/concurrent/futures/thread.py", 81
)

HOSTILE = (
    "</script><script>hacked=1</script><img src=x onerror=hacked=1>"
    "&amp;'\"`${1}<!--\u202e\u2028\x1b[31m\x00"
)
SHOWN = (
    "</script><script>hacked=1</script><img src=x onerror=hacked=1>"
    "&amp;'\"`${1}<!--"
)
TOKENS = ("fg", "muted", "link", "culprit", "victim", "fine", "unknown")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed"
)


@attrs.frozen(kw_only=True)
class Page:
    """
    A page that was written, and the ranks of its job.
    """

    path: Path
    ranks: int
    is_broken: bool


def stacks_of(rank, ranks, *, is_late):
    """
    What a rank does: it waits for others, or is late.
    """
    innermost = (STEP, READ) if is_late else (STEP, *ENGINE, REDUCE)
    frames = (MODULE, *innermost)[::-1]
    kernel = GpuKernel(name="ncclDevKernel(int)", device=0)
    main = ThreadStack(
        name="MainThread", frames=frames, is_main=True, state="S"
    )
    pool = ThreadStack(name="pool", frames=(IDLE,), state="S")
    return ProcessStacks(
        pid=1_000 + rank,
        source="",
        threads=(main, pool),
        rank=rank,
        world_size=ranks,
        host=f"node{rank // 8}",
        role="rank",
        kernels=() if is_late else (kernel,),
    )


def write_stacks(folder, stacks):
    """
    Write stacks as a capture does.
    """
    folder.mkdir()
    for process in stacks:
        name = f"pyspy_{process.host}_{process.pid}.json"
        (folder / name).write_text(stacks_to_json(process))


def write_small_dumps(folder, ranks, *, is_broken):
    """
    Write the dumps of a job of several groups.
    """
    job = SimulatedJob(ranks)
    pairs = [job.new_group((r, r + 1), "tp") for r in range(0, ranks, 2)]
    for _ in range(40):
        for pair in pairs:
            job.collective("all_gather", pair)
        job.collective(
            "all_reduce", stack=[("train_step", "/job/train.py", 41)]
        )
    late = {3} if is_broken else set()
    for pair in pairs:
        job.collective("all_gather", pair, ranks=set(pair.ranks) - late)
    job.wait(600)
    make_dumps(folder, job)


def large_flight(ranks, *, is_broken):
    """
    What dumps of 2,000 records each tell; no two ranks have the same times.
    """
    job = bench_report.make_job(ranks, 2_000, late=3 if is_broken else None)
    return analyze_dumps(job)


def write_page(folder, ranks, *, is_broken):
    """
    Write what a job leaves behind, and the report on it.
    """
    stacks = tuple(
        stacks_of(r, ranks, is_late=is_broken and r == 3) for r in range(ranks)
    )
    if ranks > 100:
        flight = large_flight(ranks, is_broken=is_broken)
        seen = DiagnosisInputs(flight=flight, stacks=stacks)
        diagnosis = attrs.evolve(flight.to_diagnosis(), seen=seen)
    else:
        write_small_dumps(folder / "dumps", ranks, is_broken=is_broken)
        write_stacks(folder / "stacks", stacks)
        log = [f"[rank{r}]: step {n}" for n in range(20) for r in range(4)]
        if is_broken:
            log.append("[rank3]: OSError: [Errno 28] No space left on device")
        (folder / "job.log").write_text("\n".join(log))
        diagnosis = diagnose(folder)
    path = write_report(diagnosis, folder / "report.html")
    return Page(path=path, ranks=ranks, is_broken=is_broken)


@pytest.fixture(
    scope="module",
    params=[
        (4, True),
        (4, False),
        (64, True),
        (64, False),
        (1024, True),
        (1024, False),
    ],
    ids=lambda p: f"{p[0]}-{'broken' if p[1] else 'healthy'}",
)
def page(request, tmp_path_factory) -> Page:
    """
    Reports on jobs of several sizes.
    """
    ranks, is_broken = request.param
    folder = tmp_path_factory.mktemp("job")
    return write_page(folder, ranks, is_broken=is_broken)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Page:
    """
    The report on a job of four ranks, one of which is late.
    """
    return write_page(tmp_path_factory.mktemp("small"), 4, is_broken=True)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """
    The report on a job in which each text is an attack.
    """
    folder = tmp_path_factory.mktemp("hostile")
    job = SimulatedJob(4)
    group = job.new_group(range(4), HOSTILE)
    stack = [(HOSTILE, f"/job/{HOSTILE}.py", 1)]
    job.collective(HOSTILE, group, stack=stack)
    job.collective("all_reduce", group, ranks=(0, 1, 2), stack=stack)
    make_dumps(folder / "dumps", job)
    frame = StackFrame(HOSTILE, f"/job/{HOSTILE}.py", 3)
    threads = tuple(
        ThreadStack(name=name, frames=(frame, MODULE), is_main=not n)
        for n, name in enumerate(("MainThread", HOSTILE))
    )
    write_stacks(
        folder / "stacks",
        [
            ProcessStacks(
                pid=1 + rank,
                source="",
                threads=threads,
                rank=rank,
                host=f"node{rank}",
                job=HOSTILE,
                command=HOSTILE,
            )
            for rank in range(4)
        ],
    )
    log = folder / f"{HOSTILE.replace('/', '').replace(chr(0), '')}.log"
    log.write_text(
        f"[rank3]: RuntimeError: {HOSTILE}\n"
        f"[rank3]: torch.OutOfMemoryError: CUDA out of memory. {HOSTILE}\n"
        f"[rank1]: RuntimeError: {'x<b>' * 2_500_000}\n"
    )
    return write_report(diagnose(folder), folder / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """
    Chromium.
    """
    with playwright.sync_playwright() as tool:
        chromium = tool.chromium.launch(
            executable_path=CHROMIUM, args=ARGUMENTS
        )
        yield chromium
        chromium.close()


@pytest.fixture
def shown(browser) -> Callable[..., object]:
    """
    Opens pages; nothing may be complained of, or asked for, in any of them.
    """
    complaints: list[str] = []
    asked: list[str] = []

    @contextmanager
    def show(path, hash="", **options):  # noqa: A002
        with browser.new_context(**options) as context:
            context.set_default_timeout(20_000)
            tab = context.new_page()
            tab.on("console", lambda message: complaints.append(message.text))
            tab.on("pageerror", lambda error: complaints.append(str(error)))
            tab.on("request", lambda request: asked.append(request.url))
            url = f"{path.as_uri()}{hash}"
            asked.clear()
            tab.goto(url, wait_until="load")
            yield tab
            assert [] == complaints
            assert [url.partition("#")[0]] == [
                name for name in asked if not name.startswith("blob:")
            ]

    return show


class TestAnySize:
    @pytest.mark.smoke
    def test_drawn(self, page, shown):
        """
        All parts are drawn, in time, out of one file of bounded size.
        """
        with shown(page.path) as tab:
            tab.wait_for_function(
                "document.documentElement.classList.contains('is-drawn')"
            )
            parts = tab.evaluate(
                "[...document.querySelectorAll('main > section')]"
                ".map((part) => part.id)"
            )
            ready = tab.evaluate(
                "performance.getEntriesByType('navigation')[0].loadEventEnd"
            )
            failed = tab.locator(".failed").all_inner_texts()
            canvas = tab.locator("#matrix canvas").first
            filled = canvas.evaluate(
                "(canvas) => canvas.getContext('2d')"
                ".getImageData(0, 0, canvas.width, canvas.height)"
                ".data.some((value) => value > 0)"
            )

        size = page.path.stat().st_size
        print(f"{page.path}: {size:,} bytes, shown after {ready:.0f} ms")
        assert [] == failed
        why = ["graph", "findings"] if page.is_broken else []
        logs = ["logs"] if page.is_broken and page.ranks < 100 else []
        assert [
            *why,
            "progress",
            "matrix",
            "stacks",
            *logs,
            "files",
        ] == parts
        assert filled
        assert size <= MOST_BYTES
        assert 0 < ready < MOST_MS

    @pytest.mark.smoke
    def test_first_screen(self, page, shown):
        """
        The verdict is seen without scrolling, and is the title.
        """
        with shown(page.path, viewport={"width": 1200, "height": 800}) as tab:
            box = tab.locator("h1").bounding_box()
            verdict = tab.locator("h1").inner_text()
            title = tab.title()

        assert box["y"] + box["height"] < 400
        assert "ank 3" in verdict or not page.is_broken
        assert "rank 3" in title.lower() or not page.is_broken

    def test_search(self, page, shown):
        """
        What is searched for is unfolded, marked, and counted.
        """
        with shown(page.path) as tab:
            tab.get_by_role("button", name="Collapse all").click()
            tab.get_by_role("searchbox").fill("TRAIN_step")
            tab.locator("#stacks .hit").first.wait_for(state="visible")
            found = tab.locator("#stacks .hit .name").all_inner_texts()
            told = tab.locator("#stacks .hits").inner_text()
            tab.get_by_role("searchbox").fill("no such function")
            tab.locator("#stacks .hit").wait_for(state="detached")
            nothing = tab.locator("#stacks .hits").inner_text()

        assert ["train_step"] == found
        assert ("1 match", "0 matches") == (told, nothing)

    def test_rank(self, page, shown):
        """
        A rank that is asked for is selected, with all of its threads.
        """
        with shown(page.path) as tab:
            tab.get_by_role("searchbox").fill("rank 2")
            tab.get_by_role("searchbox").press("Enter")
            threads = tab.locator("#stacks .asked")
            threads.wait_for(state="visible")
            told = threads.inner_text()
            url = tab.url

        assert url.endswith("#rank=2")
        assert "Threads of rank 2" in told
        assert "pid 1002 on node0" in told
        assert "MainThread" in told
        assert "1 thread that only waits for work" in told

    def test_hash(self, page, shown):
        """
        A link to a rank selects it in every part.
        """
        with shown(page.path, "#rank=3") as tab:
            tab.locator("#stacks .asked").wait_for(state="visible")
            where = tab.locator(
                "#stacks summary.is-selected .who"
            ).inner_text()
            bar = tab.locator("#selection").inner_text()
            tab.keyboard.press("Escape")
            hidden = tab.locator("#stacks .asked").is_hidden()

        assert where == (
            "rank 3" if page.is_broken else f"ranks 0-{page.ranks - 1}"
        )
        assert "rank 3" in bar
        assert hidden

    @pytest.mark.parametrize("width", [320, 390, 800])
    def test_narrow(self, page, shown, width):
        """
        The page as a whole never scrolls sideways.
        """
        with shown(page.path, viewport={"width": width, "height": 800}) as tab:
            widest = tab.evaluate("document.documentElement.scrollWidth")

        assert widest <= width

    def test_all_calls(self, page, shown):
        """
        It is said how much of the matrix is shown, and all of it can be.
        """
        with shown(page.path) as tab:
            told = tab.locator(".matrix-range span")
            told.get_by_text("shown:").wait_for()
            first = told.inner_text()
            button = tab.get_by_role("button", name="show all")
            if button.is_enabled():
                button.click()
            last = told.inner_text()
            is_done = button.is_disabled()

        calls = "41" if page.is_broken else "40"
        calls = "501" if page.ranks > 100 else calls
        shown_first = f"120 of {calls}" if page.ranks > 100 else f"all {calls}"
        assert f"shown: {shown_first} calls, all {page.ranks:,} ranks" == first
        assert f"shown: all {calls} calls, all {page.ranks:,} ranks" == last
        assert is_done


class TestSmall:
    def test_closed(self, small):
        """
        The page forbids itself everything but its own scripts.
        """
        text = small.path.read_text()

        (policy,) = re.findall(
            r'http-equiv="Content-Security-Policy" content="([^"]*)"', text
        )
        assert "default-src &#39;none&#39;" in policy
        assert "script-src &#39;sha256-" in policy
        assert "unsafe-eval" not in policy
        assert not re.search(r"\son\w+=|(?:src|href)=\"https?:", text)

    def test_fold(self, small, shown):
        """
        Branches are folded one by one, and all at once.
        """
        with shown(small.path) as tab:
            late = tab.locator("#stacks .branch.is-culprit").last
            frame = late.get_by_text("read_shard", exact=True)
            states = [frame.is_visible()]
            late.locator("summary").first.click()
            states.append(frame.is_visible())
            tab.get_by_role("button", name="Expand all").click()
            states.append(frame.is_visible())
            library = tab.get_by_text("call_1", exact=True).is_visible()
            tab.get_by_role("button", name="Collapse all").click()
            states.append(frame.is_visible())

        assert [True, False, True, False] == states
        assert library

    def test_keys(self, small, shown):
        """
        A tree of stacks is walked by arrows.
        """
        with shown(small.path) as tab:
            tab.locator("#stacks .branch > summary").first.focus()
            tab.keyboard.press("ArrowDown")
            tab.keyboard.press("ArrowLeft")
            inner = tab.evaluate("document.activeElement.parentElement.open")
            tab.keyboard.press("ArrowRight")
            again = tab.evaluate("document.activeElement.parentElement.open")
            tab.keyboard.press("ArrowLeft")
            tab.keyboard.press("ArrowLeft")
            outer = tab.evaluate("document.activeElement.innerText")

        assert (False, True) == (inner, again)
        assert outer.startswith("ranks 0-3")

    def test_structure(self, small, shown):
        """
        Headings come in order, and all that is drawn or operated has a name.
        """
        with shown(small.path) as tab:
            levels = tab.evaluate(
                "[...document.querySelectorAll('h1, h2, h3, h4')]"
                ".filter((e) => e.checkVisibility())"
                ".map((e) => Number(e.tagName[1]))"
            )
            nameless = tab.evaluate(
                "[...document.querySelectorAll('input, select, button, a[href],"
                " summary, canvas, main svg, [role=img]')].filter((e) =>"
                " !e.textContent.trim() && !e.ariaLabel && !e.title &&"
                " !e.getAttribute('aria-labelledby') && !e.labels?.length &&"
                " e.getAttribute('aria-hidden') !== 'true' &&"
                " !e.closest('[hidden], [aria-hidden=true]'))"
                ".filter((e) => e.tagName !== 'CANVAS' || !e.textContent.trim())"
                ".filter((e) => !e.querySelector('title'))"
                ".map((e) => e.outerHTML.slice(0, 120))"
            )
            names = tab.evaluate(
                "[...document.querySelectorAll('[id]')].map((e) => e.id)"
            )
            language = tab.locator("html").get_attribute("lang")
            landmarks = tab.locator("main, nav, header").count()

        assert (1, 1) == (levels[0], levels.count(1))
        assert all(b <= a + 1 for a, b in pairwise(levels))
        assert [] == nameless
        assert len(names) == len(set(names))
        assert ("en", 3) == (language, landmarks)

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_contrast(self, small, shown, scheme):
        """
        Each color of a text is readable on each ground that it stands on.
        """
        with shown(small.path, color_scheme=scheme) as tab:
            style = "getComputedStyle(document.documentElement)"
            colors = {
                name: tab.evaluate(f"{style}.getPropertyValue('--{name}')")
                for name in (*TOKENS, "bg", "soft")
            }
            tinted = {
                name: tab.evaluate(
                    f"{style}.getPropertyValue('--{name}-soft')"
                )
                for name in ("culprit", "victim", "fine", "unknown")
            }

        pairs = [
            *(
                (colors[n], colors[on])
                for n in TOKENS
                for on in ("bg", "soft")
            ),
            *((colors[n], on) for n, on in tinted.items()),
            *((colors["fg"], on) for on in tinted.values()),
        ]
        low = [pair for pair in pairs if contrast(*pair) < 4.5]
        assert [] == low

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [390, 1200])
    @pytest.mark.parametrize("name", ["small", "hostile"])
    def test_audit(self, request, shown, name, width, scheme):
        """
        All that is shown can be read, named, and reached, whatever is folded.
        """
        page = request.getfixturevalue(name)
        path = page if name == "hostile" else page.path
        size = {"width": width, "height": 800}
        with shown(path, "#rank=3", viewport=size, color_scheme=scheme) as tab:
            tab.locator("#stacks .asked").wait_for(state="visible")
            tab.evaluate(
                "document.querySelectorAll('details')"
                ".forEach((details) => { details.open = true; })"
            )
            complaints = tab.evaluate(AUDIT)
            widest = tab.evaluate("document.documentElement.scrollWidth")

        assert [] == complaints
        assert widest <= width

    def test_audit_complains(self, small, shown):
        """
        The audit sees what is wrong.
        """
        with shown(small.path) as tab:
            tab.evaluate(
                "document.querySelector('h1').style.color = '#ffb3ad';"
                "document.querySelector('th').removeAttribute('scope');"
                "document.querySelector('button').tabIndex = -1;"
                "document.querySelector('nav').removeAttribute('aria-label');"
            )
            complaints = tab.evaluate(AUDIT)

        kinds = [text.partition(":")[0].split(" 1.")[0] for text in complaints]
        assert {"header without a scope", "contrast"} <= set(kinds)
        assert "region without a name" in kinds

    def test_tab(self, small, shown):
        """
        The Tab key leads through the page in its order, out of everything.
        """
        with shown(small.path) as tab:
            # Once it is drawn, all of this small job is shown.
            tab.locator("[data-do=all]:disabled").wait_for()
            order = tab.evaluate(
                "[...document.querySelectorAll('a[href], button, input, select,"
                " summary, canvas, [tabindex]')].filter((e) =>"
                " e.checkVisibility() && e.tabIndex >= 0 && !e.disabled)"
                ".map((e, i) => { e.dataset.place = i; return i; })"
            )
            seen = []
            for _ in order:
                tab.keyboard.press("Tab")
                seen.append(
                    tab.evaluate("document.activeElement.dataset.place")
                )

        assert len(order) > 10
        assert [str(place) for place in order] == seen

    def test_still(self, small, shown):
        """
        Nothing moves for those who do not want it to.
        """
        with shown(small.path, reduced_motion="reduce") as tab:
            behavior = tab.evaluate(
                "getComputedStyle(document.documentElement).scrollBehavior"
            )
            moving = tab.evaluate("document.getAnimations().length")

        assert ("auto", 0) == (behavior, moving)

    def test_selection_hides_nothing(self, small, shown):
        """
        Who is selected is told below the page, not on top of its end.
        """
        with shown(small.path, "#rank=3") as tab:
            tab.locator("#selection b").wait_for(state="visible")
            tab.evaluate("scrollTo(0, document.body.scrollHeight)")
            bar = tab.locator("#selection").bounding_box()
            last = tab.locator("main > section").last.bounding_box()

        assert last["y"] + last["height"] <= bar["y"] + 1

    def test_places(self, small, shown):
        """
        A line of a log leads from what rests on it to the excerpt, and back.
        """
        with shown(small.path) as tab:
            tab.locator("#findings details").evaluate_all(
                "all => all.forEach((details) => { details.open = true; })"
            )
            tab.locator("#logs > details").evaluate("it => it.open = false")
            text = tab.locator("#findings [data-place] a").inner_text()
            tab.locator("#findings [data-place] a").click()
            excerpt = tab.locator("#logs :target")
            playwright.expect(excerpt).to_be_in_viewport()
            there = excerpt.inner_text()
            excerpt.locator("a").click()
            back = tab.locator("#findings :target")
            playwright.expect(back).to_be_in_viewport()

        assert text.endswith("job.log, line 81")
        assert text == there

    def test_other_threads(self, small, shown):
        """
        What only other threads do is found, too, and shown on request.
        """
        with shown(small.path) as tab:
            tab.get_by_role("searchbox").fill("_worker")
            told = tab.locator("#stacks .elsewhere")
            told.wait_for(state="visible")
            text = told.inner_text()
            hits = tab.locator("#stacks .hits").inner_text()
            told.get_by_role("link", name="rank 2").click()
            line = tab.locator("#stacks .asked li.hit")
            line.wait_for(state="visible")
            found = line.locator(".name").all_inner_texts()

        assert text.startswith("In other threads of 4 ranks: rank 0 rank 1")
        assert ("0 matches", ["_worker"]) == (hits, found)

    def test_old_browser(self, small, browser):
        """
        A browser that cannot unpack the matrix says which ones can.
        """
        with browser.new_context() as context:
            context.add_init_script("delete window.DecompressionStream")
            tab = context.new_page()
            tab.goto(small.path.as_uri())
            told = tab.locator(".matrix-old").inner_text()
            table = tab.locator("#matrix table.calls").first.is_visible()
            canvas = tab.locator("#matrix canvas").count()

        assert "Firefox from 113" in told
        assert (True, 0) == (table, canvas)

    def test_print_dark(self, small, shown):
        """
        A dark page is printed in the colors of a light one, its matrix too.
        """
        # A copy: whoever often reads a canvas is told to say so before.
        corner = (
            "(() => { const copy = document.createElement('canvas');"
            " const pen = copy.getContext('2d');"
            " pen.drawImage(document.querySelector('#matrix canvas'), 0, 0);"
            " return [...pen.getImageData(90, 5, 1, 1).data]; })()"
        )
        with shown(small.path, color_scheme="dark") as tab:
            tab.locator("canvas[data-drawn]").wait_for()
            dark = tab.evaluate(corner)
            tab.evaluate("dispatchEvent(new Event('beforeprint'))")
            paper = tab.evaluate(corner)
            tab.evaluate("dispatchEvent(new Event('afterprint'))")
            again = tab.evaluate(corner)

        assert sum(dark[:3]) < 300
        assert sum(paper[:3]) > 550
        assert dark == again

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_print(self, small, shown, scheme):
        """
        On paper nothing is folded away that matters, in dark letters.
        """
        with shown(small.path, color_scheme=scheme) as tab:
            tab.get_by_role("button", name="Collapse all").click()
            for part in tab.locator("main > section > details").all():
                part.evaluate("(details) => { details.open = false; }")
            tab.emulate_media(media="print", color_scheme="light")
            tab.evaluate("dispatchEvent(new Event('beforeprint'))")
            frame = tab.locator("#stacks").get_by_text(
                "read_shard", exact=True
            )
            is_seen = frame.first.is_visible()
            closed = tab.locator(
                "main > section > details:not([open])"
            ).count()
            tools = tab.locator("#stacks .tools").is_visible()
            tab.evaluate("dispatchEvent(new Event('afterprint'))")
            again = tab.locator("main > section > details[open]").count()
            paper = tab.pdf()

        assert (True, 0, False, 0) == (is_seen, closed, tools, again)
        assert paper.startswith(b"%PDF")

    def test_without_scripts(self, small, shown):
        """
        Without scripts, all texts are there, and fold.
        """
        with shown(small.path, java_script_enabled=False) as tab:
            late = tab.locator("#stacks .branch.is-culprit").last
            frame = late.get_by_text("read_shard", exact=True)
            states = [frame.is_visible()]
            late.locator("summary").first.click()
            states.append(frame.is_visible())
            verdict = tab.locator("h1").inner_text()
            text = tab.locator("main").inner_text()

        assert [True, False] == states
        assert "ank 3" in verdict
        assert "train_step" in text
        assert "all_gather" in text

    def test_downloads(self, small, shown):
        """
        Stacks are saved for other tools, without any request.
        """
        with shown(small.path, accept_downloads=True) as tab:
            with tab.expect_download() as saving:
                tab.get_by_role("button", name="collapsed").click()
            saved = Path(saving.value.path()).read_text()
            name = saving.value.suggested_filename

        stacks = (stacks_of(r, 4, is_late=r == 3) for r in range(4))
        assert "stacks.collapsed.txt" == name
        assert to_collapsed(merge_stacks(stacks), who=True) == saved


class TestHostile:
    @pytest.mark.smoke
    def test_harmless(self, hostile, shown):
        """
        Texts of a job are shown as they are, and do nothing.
        """
        with shown(hostile, "#rank=3") as tab:
            tab.locator("#stacks .asked").wait_for(state="visible")
            tab.get_by_role("button", name="Expand all").click()
            is_hacked = tab.evaluate("'hacked' in window")
            images = tab.locator("img").count()
            frame = tab.locator("#stacks .tree .name").last.inner_text()
            thread = tab.locator("#stacks .asked").inner_text()
            parts = tab.locator("main > section").all_inner_texts()
            text = tab.locator("body").inner_text()

        assert (False, 0) == (is_hacked, images)
        assert SHOWN == frame
        assert SHOWN in thread
        assert sum(SHOWN in part for part in parts) > 2
        assert not re.search("[\x00\x1b\u202e\u2028]", text)

    def test_bounded(self, hostile):
        """
        A line of ten megabytes makes no page of ten megabytes.
        """
        assert hostile.stat().st_size < 1 << 20

    @pytest.mark.parametrize(
        ("hash_", "told"),
        [
            ("#rank=999999999", "rank 999999999is not on this page✕"),
            ("#group=__proto__", "group __proto__is not on this page✕"),
            ("#rank=-1", ""),
            ("#rank=1e3", ""),
        ],
    )
    def test_nobody(self, hostile, shown, hash_, told):
        """
        Who is not on the page is not chosen without a word.
        """
        with shown(hostile, hash_) as tab:
            tab.wait_for_timeout(100)
            bar = tab.locator("#selection").text_content()

        assert told == bar

    def test_hostile_hash(self, hostile, shown):
        """
        An address cannot harm the page either.
        """
        with shown(hostile, "#rank=%3Cimg src=x onerror=hacked=1%3E") as tab:
            is_hacked = tab.evaluate("'hacked' in window")
            images = tab.locator("img").count()

        assert (False, 0) == (is_hacked, images)


def contrast(first, second):
    """
    How well two colors are told apart, as WCAG 2 counts.
    """
    light, dark = sorted(map(brightness, (first, second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def brightness(color):
    """
    The relative luminance of ``#rgb`` or ``#rrggbb``.
    """
    digits = color.strip().removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4
        for p in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
