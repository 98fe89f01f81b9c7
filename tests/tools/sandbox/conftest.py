"""Sandboxes for tests: one for each method that this machine has."""

import secrets

import pytest

from osmosis_grpc.tools.sandbox import LocalSandbox
from osmosis_grpc.tools.sandbox.methods import METHODS, choose


def usable(name):
    """Skips a test if this machine does not have a method."""
    try:
        choose((), name)
    except OSError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture(params=[method.name for method in METHODS])
def method(request):
    """Each method of isolation."""
    return usable(request.param)


@pytest.fixture
async def box(method):
    """A sandbox of each method."""
    async with LocalSandbox(method=method) as made:
        yield made


@pytest.fixture
async def isolated():
    """A sandbox with bubblewrap, and with every protection that it can have here."""
    async with LocalSandbox(method=usable("bubblewrap")) as made:
        yield made


@pytest.fixture
def number():
    """A number for command lines, which no other test uses at the same time."""
    return 1_000_000 + secrets.randbelow(1_000_000)
