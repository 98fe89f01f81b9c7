"""The environments of the comparison, and what is said of its systems."""

import sys

import pytest

from comparison import environments
from comparison.cases import CASES
from comparison.findings import FINDINGS
from comparison.known import BY_NAME, REQUIREMENTS, SYSTEMS
from comparison.models import NAMES

OWN = {"ours"}
OTHERS = sorted({system.environment for system in SYSTEMS} - OWN)


@pytest.mark.parametrize("name", OTHERS)
def test_an_environment_pins_its_system_and_locks_the_rest(name):
    wanted = [line for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines() if line[:1] not in {"#", ""}]
    locked = (REQUIREMENTS / f"{name}.lock").read_text().splitlines()
    assert all(line.count("==") == 1 for line in locked)
    names = {line.partition("==")[0].lower().replace("_", "-") for line in locked}
    assert {line.partition("==")[0].lower() for line in wanted} <= names
    assert {line for line in wanted if "==" in line} <= {line.replace("_", "-") for line in locked}


def test_the_running_python_serves_its_own_version():
    assert environments.python(f"{sys.version_info.major}.{sys.version_info.minor}") == sys.executable


def test_a_version_of_python_that_is_nowhere_is_a_lookup_error():
    with pytest.raises(LookupError):
        environments.python("3.999")


@pytest.mark.parametrize("system", sorted(FINDINGS))
def test_a_finding_names_a_system_a_case_and_a_model_that_exist(system):
    assert system in BY_NAME
    cases = {case for finding in FINDINGS[system] for case in finding.cases}
    assert cases <= {*CASES, "every other case"}
    assert {model for finding in FINDINGS[system] for model in finding.models} <= set(NAMES)
