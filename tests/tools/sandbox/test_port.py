"""The values of the port of sandboxes."""

import pytest

from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.tools.sandbox import Isolation, LocalSandbox, Protection, SandboxRefused

SOME = Isolation("process", frozenset({Protection.LIMITS}), "bubblewrap is not installed")


def test_the_text_of_an_isolation_says_what_is_in_force_and_what_is_not():
    assert str(SOME) == ("process: limits; not in force: files, network, processes, user (bubblewrap is not installed)")
    assert str(Isolation("all", frozenset(Protection))) == "all: files, limits, network, processes, user"


def test_a_protection_that_is_not_in_force_is_refused_by_name():
    SOME.require([Protection.LIMITS])
    with pytest.raises(SandboxRefused, match=r"require: this machine cannot give network, user .*not installed") as got:
        SOME.require([Protection.USER, Protection.NETWORK, Protection.LIMITS])
    assert got.value.missing == {Protection.USER, Protection.NETWORK}
    assert isinstance(got.value, ToolExecutionError)


def test_an_isolation_without_a_reason_has_no_empty_parentheses():
    some = Isolation("processes", frozenset({Protection.LIMITS}))
    assert str(some) == "processes: limits; not in force: files, network, processes, user"


@pytest.mark.parametrize(
    ("require", "error"),
    [
        ("network", r"^require: 'network' is a text; give a list, such as \['network'\]$"),
        (["netwrok"], r"^require: 'netwrok' is not one of user, network, processes, files, limits$"),
    ],
)
def test_a_wrong_protection_is_refused_by_name(require, error):
    with pytest.raises(ValueError, match=error):
        LocalSandbox(require=require)
