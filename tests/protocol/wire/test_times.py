"""Durations and timestamps as seconds."""

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.wire import times


@given(st.floats(0, 4_000_000_000))
def test_a_time_survives(unix):
    """To the nanosecond; and exactly from 2001 on, where a float is coarser than that."""
    back = times.unix(times.timestamp(unix))
    assert back == pytest.approx(unix, rel=0, abs=1e-9)
    if unix > 1e9:
        assert back == unix


@given(st.floats(-1e9, 1e9))
def test_a_duration_survives(seconds):
    message = times.duration(seconds)
    assert times.seconds(message) == pytest.approx(seconds, rel=1e-15, abs=1e-9)
    assert message.seconds * message.nanos >= 0, "both parts of a Duration have the same sign"
    assert abs(message.nanos) < 10**9


@pytest.mark.parametrize(
    "message",
    [Duration(), Duration(seconds=-1), Duration(nanos=-1), Duration(seconds=1, nanos=10**9), Duration(seconds=2**62)],
)
def test_a_duration_must_be_greater_than_zero(message):
    with pytest.raises(InvalidArgument) as refusal:
        times.checked_seconds(message, "agent_timeout")
    assert refusal.value.violations[0][0] == "agent_timeout"


def test_the_shortest_time_to_wait():
    assert times.checked_seconds(Duration(nanos=1), "agent_timeout") == 1e-9
