"""Keeps what happens in the pages of a test, and writes it to files if the test fails."""

import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.processes import ROOT

FOLDER = ROOT / "build" / "browser"
"""Each failed test has a folder here: events, screenshots, the HTML of its pages, and the logs of the viewers."""


class Watched:
    """The events of the pages of one test, and those of them that must not happen."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.pages: list[Any] = []
        self._began = time.monotonic()
        self._events: list[str] = []

    def watch(self, page: Any, origin: str, status: int) -> None:
        """Record the events of a page, whose requests have to go to an origin. An answer with `status` may come."""
        self.pages.append(page)
        at = f"page {len(self.pages)}:"
        page.on("console", lambda line: self._note(f"{at} {line.type} {line.text}", is_wrong(line, status)))
        page.on("pageerror", lambda error: self._note(f"{at} raised {error}", True))
        page.on("dialog", lambda dialog: (self._note(f"{at} dialog {dialog.message}", True), dialog.dismiss()))
        page.on("framenavigated", lambda frame: self._note(f"{at} at {frame.url}"))
        page.on("request", lambda request: self._note(f"{at} asks {request.url}", not is_own(request.url, origin)))
        page.on(
            "response", lambda answer: self._note(f"{at} {answer.status} {answer.url}", status != answer.status >= 400)
        )
        page.on("requestfailed", lambda request: self._note(f"{at} {request.failure} {request.url}"))
        page.on("crash", lambda _: self._note(f"{at} crashed", True))

    def _note(self, text: str, wrong: bool = False) -> None:
        self._events.append(f"{time.monotonic() - self._began:8.3f} {'WRONG ' * wrong}{text}")
        if wrong:
            self.wrong.append(text)

    def write(self, name: str, problem: str, logs: Iterable[Path]) -> Path:
        """Write all that is known to a folder with the name of a test, and return the folder."""
        folder = FOLDER / re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "problem.txt").write_text(problem)
        (folder / "events.txt").write_text("\n".join(self._events))
        for log in logs:
            shutil.copy(log, folder)
        for number, page in enumerate(self.pages, 1):
            try:
                page.screenshot(path=folder / f"page-{number}.png", timeout=5_000)
                (folder / f"page-{number}.html").write_text(page.content())
            except Exception as error:  # the page has crashed, or is closed
                (folder / f"page-{number}.txt").write_text(str(error))
        return folder


def is_own(url: str, origin: str) -> bool:
    """Return whether an address belongs to an origin. Data that a page makes itself does."""
    return url == origin or url.startswith((f"{origin}/", "data:", "blob:"))


def is_wrong(line: Any, status: int) -> bool:
    """Return whether a line of the console is an error or a warning, other than that an answer has a status."""
    return line.type in ("error", "warning") and f"responded with a status of {status} " not in line.text
