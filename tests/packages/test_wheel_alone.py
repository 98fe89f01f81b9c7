"""The wheel, in an empty folder, on each Python: demo, README, viewer, a coding program, a trainer.

The tests of this repository are run by the environment's own Python, in a copy that has tests and pages and no module
of the package. The checkout is hidden from them.
"""

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.coding_programs.install import FOLDER
from tests.packages.conftest import PYTHONS, ROOT, call, clean, hidden

pytestmark = [pytest.mark.packages, pytest.mark.parametrize("python", PYTHONS, indirect=True)]
NEEDS = (ROOT / "tests" / "trainers" / "requirements" / "tests.txt").read_text().split()
PARTS = {
    "the demo": ("tests/cli/test_demo.py", "not long", "again or kept_on_request"),
    "the README's blocks": ("tests/docs/test_pages.py", "slow", "blocks_of_a_page and README"),
    "view --demo": ("tests/cli/test_view.py", "slow", "the_demo_has"),
    "a coding program": ("tests/coding_programs/test_programs.py", "programs", "with_edits and claude-code"),
    "a trainer": ("tests/trainers/test_openenv.py", "trainers", "trace_has_the_tokens"),
}


@pytest.fixture(scope="module")
def python(request, wheel, environment):
    """The Python of an environment with the wheel; OpenEnv's own needs are not pinned here."""
    return environment(request.param, f"{wheel}[server,view,openenv]", *NEEDS, constrained=False)


@pytest.fixture
def folder(tmp_path):
    """A folder with the tests and the pages, and nothing of the package."""
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("images", "plots"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv-programs").symlink_to(FOLDER)
    return tmp_path


@pytest.mark.parametrize("part", PARTS)
def test_a_part_works_from_the_wheel_alone(python, folder, part):
    where, marks, names = PARTS[part]
    variables = clean() | {"OSMOSIS_TEST_PROGRAMS": "claude-code"}
    options = ["-q", "--timeout", "300", "-p", "no:cacheprovider", "-W", "ignore", "-m", marks, "-k", names]
    told = call(*hidden([str(python), "-m", "pytest", where, *options]), cwd=folder, env=variables)
    assert " passed" in told
    assert "skipped" not in told, told


def test_nothing_but_the_wheel_is_imported(python, folder):
    code = "import osmosis_grpc, osmosis_gateway; print(osmosis_grpc.__file__, osmosis_gateway.__file__)"
    told = call(*hidden([str(python), "-c", code]), cwd=folder, env=clean()).split()
    assert all(Path(name).is_relative_to(python.parents[1]) for name in told)


def test_the_pages_are_those_of_the_wheel(python, folder, wheel):
    listed = call(*hidden([str(python), "-m", "osmosis_grpc", "docs"]), cwd="/", env=clean()).splitlines()
    with zipfile.ZipFile(wheel) as archive:
        pages = [name for name in archive.namelist() if name.startswith("osmosis_grpc/docs/")]
    assert len(listed) == len(pages) == len(list((ROOT / "docs").glob("*.md")))
