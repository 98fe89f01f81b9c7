"""A chat that takes minutes survives keepalive on both ends, and a load balancer that cuts what is idle.

Every way to connect, directly and through three proxies: two that are slower than keepalive pings,
which keep them from cutting anything, and one that is quicker than pings and heartbeats. What that
cuts is asked again and joins the sampling. All at the same time.
"""

import asyncio

import pytest

from tests.attach.silent_chats import WAYS, silent_rollout

SILENCE = 200.0
PATIENT, HASTY = (60.0, 30.0), 12.0
"""Seconds without a byte until a proxy cuts; pings come every 20 s, heartbeats every 15 s."""


@pytest.mark.long
@pytest.mark.timeout(360)
async def test_a_chat_of_minutes_is_answered_whatever_cuts_idle_connections(tmp_path):
    cases = [(way, limit) for limit in (None, *PATIENT, HASTY) for way in WAYS]
    cuts = await asyncio.gather(
        *(silent_rollout(way, SILENCE, tmp_path / f"{way}-{limit}", limit) for way, limit in cases)
    )
    for (way, limit), count in zip(cases, cuts, strict=True):
        print(f"\n{way}, a proxy's limit {limit}: {count} connections cut", end="")
    seen = dict(zip(cases, cuts, strict=True))
    assert not any(seen[way, limit] for limit in PATIENT for way in WAYS), "pings keep a connection from being idle"
    assert all(seen[way, HASTY] for way in WAYS)
