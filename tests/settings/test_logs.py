"""The log of the commands: JSON lines, and what they need."""

import json
import subprocess
import sys

PROGRAM = """
import logging, sys
from osmosis_grpc.settings import logs

with logs.configured("info"):
    log = logging.getLogger("osmosis_grpc.test")
    log.info("hello %s", "you", extra={"port": 5, "place": {"a": (1, 2)}, "other": object})
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("bad")
assert not {"structlog", "rich"} & set(sys.modules)
"""


def test_a_log_that_is_no_terminal_has_json_lines_and_needs_no_structlog():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second = map(json.loads, ran.stderr.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "hello you",
        "level": "info",
        "logger": "osmosis_grpc.test",
        "port": 5,
        "place": {"a": [1, 2]},
        "other": "<class 'object'>",
    }
    assert second["exception"].endswith("ZeroDivisionError: division by zero")
