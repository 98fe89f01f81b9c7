"""docs/errors.md has every reason that can be in a Failure or in an ErrorInfo."""

import ast
import re

from osmosis_grpc.protocol.types import FailureReason
from osmosis_grpc.protocol.wire.status import CLASSES, from_code, to_status
from tests.docs.pages import blocks_of
from tests.processes import ROOT

PAGE = ROOT / "docs" / "errors.md"
PROTO = ROOT / "proto" / "osmosis" / "rollout" / "v1" / "error.proto"


def sections():
    """The sections of the page by reason, for failures and for refused calls."""
    _, failures, calls = re.split(r"^## .*$", PAGE.read_text(), flags=re.M)
    return tuple(dict(re.findall(r"^### (\S+)\n\n(.*?)(?=^### |\Z)", part, re.M | re.S)) for part in (failures, calls))


def reasons_of_calls():
    """The reasons in the list of error.proto."""
    listed = re.search(r"The reasons:\n//\n(.*?)//\n// A later version", PROTO.read_text(), re.S)[1]
    return re.findall(r"[A-Z][A-Z_]+", re.sub(r"^//   [A-Z_]+  +", "", listed, flags=re.M))


def test_every_reason_of_a_failure_has_a_section():
    failures, _ = sections()
    assert list(failures) == [reason.value for reason in FailureReason]


def test_every_reason_of_a_refused_call_has_one_section():
    failures, calls = sections()
    assert set(failures) & set(calls) == set()
    assert set(calls) == set(reasons_of_calls()) - set(failures)
    assert set(reasons_of_calls()) & set(failures) == {"REPLY_UNREADABLE", "DATA_LOSS"}
    for shared in ("REPLY_UNREADABLE", "DATA_LOSS"):
        assert "refused call" in failures[shared]


def test_every_section_says_what_to_do():
    for part in sections():
        for reason, text in part.items():
            meaning, *advice = text.strip().split("\n\n")
            assert meaning, reason
            assert advice, reason
            assert advice[0].startswith("**What to do:** "), reason
    assert blocks_of(PAGE) == []


def test_the_list_in_the_proto_has_every_reason_in_the_code():
    known = set(reasons_of_calls())
    for code in CLASSES:
        status = to_status(from_code(code, "a message"))
        assert from_code(code, "", status.details).reason in known
    found = set()
    for path in [*(ROOT / "osmosis_grpc").rglob("*.py"), *(ROOT / "gateway").rglob("*.py")]:
        if "_gen" in path.parts or "reason=" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant):
                found.add(node.value.value)
    written = {reason for reason in found if re.fullmatch(r"[A-Z][A-Z_]+", str(reason))}
    assert {"AT_CAPACITY", "DRAINING"} <= written <= known
