"""Waits for a condition in a page, and checks that everybody can read it: with axe, in light and dark, on a phone."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60_000
"""Milliseconds after which a test gives up to wait: more than anything takes on a busy machine."""
SERIOUS = ("serious", "critical")
PHONE = 390
"""The width of a phone, in CSS pixels."""


def wait_until(page: Any, condition: str | Callable[[], Any]) -> None:
    """Wait until an expression of JavaScript, or a function, returns something true. Raises AssertionError with it.

    Page.wait_for_function() of Playwright evaluates the expression again with eval() if it is false at first, and the
    policy of the pages forbids eval().
    """
    until = time.monotonic() + PATIENCE / 1000
    while not (page.evaluate(condition) if isinstance(condition, str) else condition()):
        assert time.monotonic() < until, condition
        page.wait_for_timeout(50)


def check_readable(page: Any) -> None:
    """Raise AssertionError with the serious findings of axe in light and in dark, and with what is wider than a phone.

    The page stays as wide as a phone, and dark.
    """
    from axe_playwright_python.sync_playwright import Axe

    wait_until(page, "!document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling')")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page).response["violations"]
        nodes = {(one["id"], node["html"][:200]) for one in found if one["impact"] in SERIOUS for node in one["nodes"]}
        assert nodes == set(), f"in {scheme}: {nodes}"
    page.set_viewport_size({"width": PHONE, "height": 800})
    wait_until(page, f"document.documentElement.scrollWidth <= {PHONE}")
