"""What several commands' tests need."""

from collections.abc import Iterator

import pytest

from tests.cli.looked_at import LookedAt, record, write_agents
from tests.forked import Forked


@pytest.fixture(scope="session")
def looked_at(forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    """The rollouts good, bad, evil and stuck on a server with a state folder; see tests/cli/looked_at.py."""
    folder = tmp_path_factory.mktemp("looked_at")
    write_agents(folder)
    with forked.serving("-m", "agents:Traveller", "--state-dir", "state", cwd=folder) as address:
        record(address, "good", "bad", "evil", "stuck")
        yield LookedAt(folder, address)
