"""A stranger's strict project: mypy --strict and pyright find nothing in its use of the package, and it runs."""

import re
import shutil
from pathlib import Path

import pytest

from tests.packages.conftest import ROOT, TOOLS, call, clean

pytestmark = pytest.mark.packages
PROJECT = Path(__file__).with_name("stranger")
CHECKERS = {
    "mypy": lambda python: [TOOLS / "mypy", "--strict", "--warn-unreachable", "--python-executable", python, "."],
    "pyright": lambda python: [TOOLS / "pyright", "--pythonpath", python, "."],
}


@pytest.fixture(scope="module")
def python(wheel, environment):
    """The Python of an environment with the wheel, and without stubs of other packages."""
    return environment("3.11", f"{wheel}[server]")


@pytest.fixture
def project(tmp_path):
    """The stranger's files, and the two of the README."""
    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert [name for name, _ in blocks] == ["agent.py", "train.py"]
    for name, text in blocks:
        (tmp_path / f"readme_{name}").write_text(text)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.11"}')
    return tmp_path


def test_the_project_has_no_ignore(project):
    assert [
        path.name for path in project.glob("*.py") if re.search(r"type: *ignore|pyright: *", path.read_text())
    ] == []


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_strict_type_checker_finds_nothing(checker, project, python):
    call(*CHECKERS[checker](python), cwd=project, env=clean())


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_wrong_type_is_found(checker, project, python):
    path = project / "agent.py"
    path.write_text(
        path.read_text().replace("total: float = await add(1.0, 2.0)", 'total: float = await add("1", 2.0)')
    )
    with pytest.raises(AssertionError, match=r"agent\.py"):
        call(*CHECKERS[checker](python), cwd=project, env=clean())


def test_the_project_runs(project, python):
    call(python, "-W", "error", "train.py", cwd=project, env=clean())
