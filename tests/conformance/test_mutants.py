"""The suite finds each planted fault, and says which one it is."""

import sys

import pytest

from tests.conformance.mutants.faults import SERVER, TRAINER
from tests.conformance.suite import check_server, check_trainer, failed, served

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(120)]


def test_there_are_at_least_25_faults():
    assert len(SERVER) + len(TRAINER) >= 25


@pytest.mark.parametrize("name", SERVER)
async def test_a_fault_of_the_server_is_found(name):
    with served("--fault", name, module="tests.conformance.mutants.server") as target:
        results = await check_server(target, [f"{SERVER[name].found_by}@{SERVER[name].mode}"])
    assert len(failed(results)) == 1
    assert results[0].trace


@pytest.mark.parametrize("name", TRAINER)
async def test_a_fault_of_the_trainer_is_found(name):
    command = f"{sys.executable} -m tests.conformance.mutants.trainer --fault {name}"
    results = await check_trainer(command, [f"{TRAINER[name].found_by}@{TRAINER[name].mode}"])
    assert len(failed(results)) == 1
    assert "the trainer ended with exit code" not in results[0].reason
