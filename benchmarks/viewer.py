"""The viewer in Chromium: the seconds until a page shows what it is for. Needs Chromium and the extra `browser`.

python -m benchmarks.viewer [--rollouts 10000] [--turns 500] [--tokens 1024] [--repeats 5] [--json]

Each figure is the median of `repeats` new browser contexts, from the request until the named thing is visible:
`table_s` the rows of all rollouts, `curves_s` their curves, `throughput_s` their charts, `turns_s` the first turn of a
rollout with `turns` turns, `turn_s` a turn in its middle by its address, `tokens_s` the first cells of 32 x `tokens`
tokens, `group_s` a group of 8 rollouts with 32 turns. `frames_per_s` are the frames while the tokens scroll.
"""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.figures import Parser, machine, progress, show
from benchmarks.full_journal import fill
from benchmarks.viewed import viewing, write_group

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FRAMES = """() => new Promise((done) => {
    const tokens = document.getElementById("tokens"), began = performance.now();
    let frames = 0;
    const step = (now) => {
        frames += 1;
        tokens.scrollTop += 60;
        if (now - began < 2000) requestAnimationFrame(step);
        else done(frames / ((now - began) / 1000));
    };
    requestAnimationFrame(step);
})"""


def measure(rollouts: int, turns: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Return all figures."""
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, written in (
            ("many", fill(folder / "many", rollouts, 2, 64)),
            ("long", write_group(folder / "long", 1, turns, 64)),
            ("group", write_group(folder / "group", 8, 32, tokens)),
        ):
            progress(f"writing {name}")
            asyncio.run(written)
        many, long, group = (
            stack.enter_context(viewing("--from", str(folder / name))) for name in ("many", "long", "group")
        )
        playwright = stack.enter_context(sync_playwright())
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        stack.callback(browser.close)
        pages = {
            "table_s": (many, ".rollouts tbody tr:last-child"),
            "curves_s": (f"{many}curves", "#curves canvas"),
            "throughput_s": (f"{many}throughput", "canvas"),
            "turns_s": (f"{long}rollout?id=long-0", "details.turn"),
            "turn_s": (f"{long}rollout?id=long-0#turn={turns // 2}", "details.turn[open] .message.assistant"),
            "tokens_s": (f"{group}rollout/tokens?id=long-0", "#tokens [role=gridcell]"),
            "group_s": (f"{group}group?id=long", "table.beside tbody tr:last-child td"),
        }
        figures: dict[str, Any] = {"benchmark": "viewer", "rollouts": rollouts, "turns": turns, "tokens": 32 * tokens}
        for name, (address, wanted) in pages.items():
            progress(name)
            times = [_seconds(browser, address, wanted) for _ in range(repeats)]
            figures[name] = round(statistics.median(times), 2)
        progress("frames_per_s")
        rates = [_with_page(browser, *pages["tokens_s"], lambda page: page.evaluate(_FRAMES)) for _ in range(repeats)]
        figures["frames_per_s"] = round(statistics.median(rates))
    return figures | {"machine": machine()}


def _seconds(browser: Any, address: str, wanted: str) -> float:
    """Return the seconds from a request in a new context until an element is visible."""
    began = 0.0

    def started() -> None:
        nonlocal began
        began = time.perf_counter()

    return _with_page(browser, address, wanted, lambda _: time.perf_counter() - began, started)


def _with_page(
    browser: Any, address: str, wanted: str, then: Callable[[Any], float], before: Callable[[], None] = lambda: None
) -> float:
    """Open a page, wait for an element, and return what `then` returns. Calls `before` right before the request."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page = context.new_page()
        before()
        page.goto(address, wait_until="commit")
        page.locator(wanted).first.wait_for(timeout=60_000)
        return then(page)
    finally:
        context.close()


def main() -> None:
    parser = Parser(__doc__)
    parser.amounts(rollouts=10_000, turns=500, tokens=1024, repeats=5)
    given = vars(parser.parse_args())
    as_json = given.pop("json")
    show(measure(**given), as_json)


if __name__ == "__main__":
    main()
