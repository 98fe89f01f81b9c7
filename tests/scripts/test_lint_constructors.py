"""scripts/lint_constructors.py finds constructors that take too much."""

import importlib.util

import pytest

from tests.processes import ROOT, run

LINT = ROOT / "scripts" / "lint_constructors.py"


def problems(source):
    spec = importlib.util.spec_from_file_location("lint_constructors", LINT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [(name, count) for _, name, count in module.problems(source)]


def with_init(*parameters):
    return f"class Big:\n    def __init__(self, {', '.join(parameters)}): ..."


def with_fields(decorator, *fields):
    return f"@{decorator}\nclass Big:\n" + "\n".join(f"    {field}" for field in fields)


SEVEN = [f"p{n}: int" for n in range(7)]


@pytest.mark.parametrize(
    "source",
    [
        with_init(*SEVEN, "more: str = ''"),
        with_init(*SEVEN, "*", "more"),
        with_fields("dataclass", *SEVEN, "more: str"),
    ],
)
def test_eight_parameters_are_a_problem(source):
    assert problems(source) == [("Big", 8)]


@pytest.mark.parametrize(
    "source",
    [
        with_init(*SEVEN),
        with_init(*SEVEN, "config: EngineConfig | None = None"),
        with_fields("dataclass(slots=True)", *SEVEN, "state: int = 0"),
        with_fields("dataclass(frozen=True)", *SEVEN, "more: str"),
    ],
)
def test_what_is_allowed_is_not_found(source):
    assert problems(source) == []


def test_the_packages_have_no_problem():
    result = run(str(LINT))
    assert (result.stdout, result.returncode) == ("", 0)
