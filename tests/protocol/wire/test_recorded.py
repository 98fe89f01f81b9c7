"""What earlier releases put on the wire and into journals is read as they meant it."""

import base64
import json

import pytest

from osmosis_grpc import __version__
from osmosis_grpc.protocol.types import events
from tests.protocol.wire.recorded import FOLDER, FORMS, read

ROWS = [
    pytest.param(row, id=f"{path.stem}-{row['form']}-{number}")
    for path in sorted(FOLDER.glob("*.json"))
    for number, row in enumerate(json.loads(path.read_text()))
]


def test_this_version_is_recorded():
    assert (FOLDER / f"{__version__}.json").exists(), "run `python -m tests.protocol.wire.recorded`"
    assert {row.values[0]["form"] for row in ROWS} == set(FORMS)


@pytest.mark.parametrize("row", ROWS)
def test_recorded_bytes_are_read_as_they_were(row):
    told = read(row["form"], base64.b64decode(row["data"]))
    assert {name: told.get(name) for name in row["read"]} == row["read"]


def test_a_reader_that_loses_a_field_is_caught(monkeypatch):
    row = next(row.values[0] for row in ROWS if row.values[0]["read"].get("cancel_asked", {}).get("reason"))
    monkeypatch.setattr(events.CancelAsked, "__init__", lambda self, reason="": object.__setattr__(self, "reason", ""))
    with pytest.raises(AssertionError):
        test_recorded_bytes_are_read_as_they_were(row)
