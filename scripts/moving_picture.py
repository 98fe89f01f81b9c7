"""Makes the moving picture of README.md from a real run: the demo in a terminal, then its rollouts in the viewer.

python -m scripts.moving_picture            docs/images/demo.webp, which has at most 600 KB

Needs Chromium and the extra `browser`. `make screenshots` runs it, too.
"""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from benchmarks.viewed import viewing
from scripts.screenshots import ROOT, chromium

PICTURE = ROOT / "docs" / "images" / "demo.webp"
MOST_BYTES = 600_000
WIDTH, HEIGHT = 1100, 620
COLUMNS = 100
QUALITY = 80
SHORT, LONG, LAST = 90, 2600, 3200
"""How long frames are shown, in milliseconds: one of many, one to read, and the last one."""
ROWS_AT_ONCE = 4
RING = "it => { it.style.outline = '3px solid #e0933a'; it.style.outlineOffset = '3px'; it.style.borderRadius = '4px' }"
TERMINAL = """<body style="margin:0;background:#14171b;color:#e3e6ea"><pre style="margin:0;padding:22px 26px;
font:17px/1.4 'DejaVu Sans Mono',monospace">{}</pre></body>"""
LAST_LINE = "8 of 8"
"""The last line of the demo that the picture shows begins with this. More commands follow it."""
STEPS = (
    ("", '[data-id^="demo-failing-1 "] th a'),
    ("rollout?id=demo-failing-1#failed", None),
    ("rollout/tokens?id=demo-mixed-1#drift", None),
    ("task?id=demo-mixed-1", None),
    ("curves", None),
)
"""The pages of the viewer, and what is clicked on each."""


class Frame(NamedTuple):
    """A picture, and for how many milliseconds it is shown."""

    png: bytes
    time: int


def printed() -> list[str]:
    """Run the demo, and return the lines that it prints, with their colours."""
    command = [sys.executable, "-m", "osmosis_grpc", "demo"]
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = done.stdout.decode().splitlines()
    return lines[: next(at for at, line in enumerate(lines) if line.startswith(LAST_LINE)) + 1]


def as_html(ansi: str) -> str:
    """Return the text of a terminal as HTML."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(ansi))
    return TERMINAL.format(console.export_html(theme=MONOKAI, inline_styles=True, code_format="{code}"))


def terminal(page: Any) -> Iterator[Frame]:
    """Yield the frames of the demo in a terminal."""
    shown = "$ "
    for typed in ("make demo", "osmosis-grpc view --demo"):
        for at in range(0, len(typed) + 1, 3):
            yield frame(page, shown + typed[:at], SHORT)
        shown += typed
        yield frame(page, shown, 3 * SHORT)
        if typed == "make demo":
            lines = printed()
            for at in range(ROWS_AT_ONCE, len(lines) + ROWS_AT_ONCE, ROWS_AT_ONCE):
                shown = "\n".join(["$ make demo", *lines[:at]])
                yield frame(page, shown, 3 * SHORT)
            yield frame(page, shown, LONG)
            shown += "\n\n$ "


def frame(page: Any, text: str, time: int) -> Frame:
    """Return a frame of the terminal."""
    page.set_content(as_html(text))
    return Frame(page.screenshot(), time)


def viewer(page: Any, address: str) -> Iterator[Frame]:
    """Yield the frames of the viewer."""
    for path, clicked in STEPS:
        page.goto(address + path)
        page.wait_for_timeout(700)
        yield Frame(page.screenshot(), LONG)
        if clicked is not None:
            page.locator(clicked).evaluate(RING)
            yield Frame(page.screenshot(), LONG // 3)
    yield Frame(page.screenshot(), LAST - LONG)


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with chromium() as browser, viewing("--demo") as address:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        frames = [*terminal(page), *viewer(page, address)]
    images = [Image.open(io.BytesIO(each.png)).convert("RGB") for each in frames]
    images[0].save(
        target,
        save_all=True,
        append_images=images[1:],
        duration=[each.time for each in frames],
        loop=0,
        quality=QUALITY,
        method=6,
    )
    size = target.stat().st_size
    print(target, f"{size // 1000} KB, {len(frames)} frames")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
