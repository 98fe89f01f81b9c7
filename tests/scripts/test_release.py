"""What a release builds has the files that belong into it, and a file that does not is named."""

import pytest

from scripts.release.contents import NEEDED, faults
from scripts.release.sources import ROOT, copy

WHEEL = [
    "osmosis_grpc/py.typed",
    "osmosis_gateway/py.typed",
    "osmosis_grpc/docs/agents.md",
    "osmosis_grpc/viewer/static/page.js",
    "osmosis_grpc-0.1.0.dist-info/licenses/LICENSE",
    "osmosis_grpc-0.1.0.dist-info/sboms/bill-of-materials.cdx.json",
]


def test_a_wheel_with_what_it_needs_has_no_fault():
    assert faults(WHEEL, "wheel") == []


@pytest.mark.parametrize(
    "name",
    [
        "tests/ports.py",
        "osmosis_grpc/__pycache__/a.pyc",
        "osmosis_grpc/docs/images/learn.png",
        "osmosis_grpc/.osmosis/state/journal.db",
        "notes.txt",
    ],
)
def test_a_file_that_does_not_belong_into_a_wheel_is_named(name):
    (fault,) = faults([*WHEEL, name], "wheel")
    assert fault.startswith(f"{name} ")


@pytest.mark.parametrize("kind", NEEDED)
def test_an_empty_package_lacks_each_needed_file(kind):
    assert len(faults([], kind)) == len(NEEDED[kind])


def test_with_a_repository_the_readme_has_no_relative_link(tmp_path):
    text = (copy(tmp_path, "https://example.org/lab/project") / "README.md").read_text()
    assert "](docs/" in (ROOT / "README.md").read_text()
    assert "](docs/" not in text
    assert "](https://example.org/lab/project/raw/v0.1.0/docs/images/rollout.svg)" in text
    assert "](https://example.org/lab/project/blob/v0.1.0/docs/agents.md)" in text
