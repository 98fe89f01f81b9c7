"""Warnings that come many times: the first at once, then one now and then with a count."""

import logging

from osmosis_grpc.supervise.throttled_log import EVERY, Throttled


def test_warnings_are_counted_between_two_lines(caplog):
    now = [0.0]
    warnings = Throttled(logging.getLogger("some.name"), clock=lambda: now[0])
    for seconds in (0.0, 0.1, EVERY - 0.1, EVERY, EVERY + 0.1, 2 * EVERY, 4 * EVERY):
        now[0] = seconds
        warnings.warn(f"100% bad at {seconds:g}")
    assert [record.getMessage() for record in caplog.records] == [
        "100% bad at 0",
        f"100% bad at {EVERY:g} (and 2 more since the last such line)",
        f"100% bad at {2 * EVERY:g} (and 1 more since the last such line)",
        f"100% bad at {4 * EVERY:g}",
    ]
