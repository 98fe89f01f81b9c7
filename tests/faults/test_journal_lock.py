"""A14: two servers on one journal, or on one port: the second one ends and logs the reason."""

import signal

import pytest

from tests.processes import run, server_process

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


def second(*arguments: str):
    return run("-m", "osmosis_grpc.serve", *CALCULATOR, "--no-http", *arguments)


@pytest.mark.long
def test_a_second_server_on_one_journal_names_the_first(tmp_path):
    state = ("--state-dir", str(tmp_path / "state"))
    with server_process(*CALCULATOR, *state) as (process, _):
        result = second("--grpc-port", "0", *state)
        assert result.returncode == 2
        assert f"in use by process {process.pid}" in result.stderr
        assert "--state-dir chooses another" in result.stderr
        assert "Traceback" not in result.stderr
        assert process.poll() is None


@pytest.mark.long
def test_a_killed_server_leaves_no_lock(tmp_path):
    state = ("--state-dir", str(tmp_path / "state"))
    for _ in range(2):
        with server_process(*CALCULATOR, *state) as (process, _):
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert (tmp_path / "state" / "lock").read_text() == str(process.pid)


@pytest.mark.long
def test_x16_a_server_whose_lock_is_removed_ends_before_it_writes_beside_another(tmp_path):
    state = ("--state-dir", str(tmp_path / "state"))
    with server_process(*CALCULATOR, *state) as (process, _):
        (tmp_path / "state" / "lock").unlink()
        with server_process(*CALCULATOR, *state) as (second, _):
            assert process.wait(30) == 1
            assert second.poll() is None


@pytest.mark.long
def test_a_second_server_on_one_port_is_refused(tmp_path):
    with server_process(*CALCULATOR) as (_, address):
        result = second("--grpc-port", address.rpartition(":")[2], "--state-dir", str(tmp_path / "state"))
    assert result.returncode == 2
    assert f"cannot listen on {address}: the port is in use" in result.stderr
    assert "--grpc-port chooses another" in result.stderr
