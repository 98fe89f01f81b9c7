"""The command of the simulation."""

import subprocess
import sys

import pytest

from tests.processes import ROOT


@pytest.mark.slow
def test_the_command_ends_in_silence_when_the_reader_of_its_output_has_ended():
    command = [sys.executable, "-m", "tests.simulation", "--seed", "1", "--rollouts", "1", "--history"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, b"")
