"""What is checked before any worker starts."""

import socket

import pytest

from osmosis_grpc.serve.workers.plan import plan
from osmosis_grpc.settings.settings import RolloutServerSettings
from tests.ports import quiet_port


def test_a_taken_port_of_a_worker_that_only_finishes_has_the_reason_and_the_folder(tmp_path):
    state = tmp_path / "state"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", quiet_port()))
        first = taken.getsockname()[1] - 3
        options = RolloutServerSettings(workers=2, grpc_port=first, state_dir=str(state))
        with pytest.raises(ValueError) as refused:
            plan(options, [3])
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1:{first + 3}: the port is in use; worker 3 needs it to finish the rollouts of an "
        f"earlier run, which are in {state}/workers/3: --grpc-port chooses the first of 3 ports"
    )
    assert not state.exists()
