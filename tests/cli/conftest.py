"""What several commands' tests need."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.looked_at import LookedAt, record, write_agents
from tests.forked import Forked


@pytest.fixture(scope="session")
def looked_at(forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    """The rollouts good, bad, evil and stuck on a server with a state folder; see tests/cli/looked_at.py."""
    with _served(forked, tmp_path_factory.mktemp("looked_at")) as served:
        record(served.address, "good", "bad", "evil", "stuck")
        yield served


@pytest.fixture(scope="session")
def written(forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    """A server with a state folder. Tests add rollouts to it."""
    with _served(forked, tmp_path_factory.mktemp("written")) as served:
        yield served


@contextmanager
def _served(forked: Forked, folder: Path) -> Iterator[LookedAt]:
    write_agents(folder)
    with forked.serving("-m", "agents:Traveller", "--state-dir", "state", cwd=folder) as address:
        yield LookedAt(folder, address)
