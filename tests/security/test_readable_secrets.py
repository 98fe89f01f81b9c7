"""A server warns of each file with a secret that other users of the machine can read."""

import os
import tempfile
from pathlib import Path

import pytest

from osmosis_grpc.settings.settings import RolloutSettings, readable_secrets
from tests.processes import serving

AGENT = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


@pytest.fixture
def open_folder(monkeypatch):
    """The working folder, which every user can enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o711)
        monkeypatch.chdir(folder)
        yield folder
        monkeypatch.undo()


def written(path, mode):
    path.write_text("lab=a-secret-of-this-test\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
@pytest.mark.parametrize("name", ["token_file", "admin_token_file", "connect_token_file", "tls_key", "trainer_key"])
def test_files_that_others_can_read_are_found(open_folder, name, mode, warned):
    path = written(open_folder / "secret", mode)
    settings = RolloutSettings()
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={name: path})})
    assert list(readable_secrets(settings)) == ([path] if warned else [])


def test_a_file_in_a_closed_folder_is_safe(open_folder):
    path = written(open_folder / "secret", 0o644)
    settings = RolloutSettings()
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"token_file": path})})
    open_folder.chmod(0o700)
    assert list(readable_secrets(settings)) == []


@pytest.mark.parametrize(
    ("line", "warned"),
    [("OSMOSIS_ROLLOUT_SERVER_TOKEN=abc-1234567890", True), ("OSMOSIS_ROLLOUT_SERVER_WORKERS=2", False)],
)
def test_the_file_of_variables_counts_if_it_has_a_secret(open_folder, line, warned):
    path = open_folder / ".env"
    path.write_text(f"{line}\n")
    path.chmod(0o644)
    assert [each.name for each in readable_secrets(RolloutSettings())] == ([".env"] if warned else [])


@pytest.mark.slow
def test_a_server_warns_once(open_folder):
    tokens = written(open_folder / "tokens", 0o644)
    env = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    with serving(*AGENT, "--token-file", str(tokens), "--state-dir", str(open_folder / "state"), env=env) as (
        process,
        _,
    ):
        process.terminate()
        _, err = process.communicate()
    assert err.count(f"chmod 600 {tokens}") == 1
    assert "a-secret-of-this-test" not in err
