"""Nothing that is imported wants a network."""

import shutil
import subprocess
import sys

import pytest

from tests.processes import ROOT

ALL = """
import importlib, pkgutil, warnings
warnings.simplefilter("error")
for top in ("osmosis_grpc", "osmosis_gateway"):
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, f"{top}."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            foreign = isinstance(error, ModuleNotFoundError) and not error.name.startswith("osmosis")
            if not foreign and type(error).__name__ != "MissingExtraError":
                raise
"""


@pytest.mark.long
def test_every_module_is_imported_without_a_network():
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-n", "true"], check=False).returncode:
        pytest.skip("may not make a network namespace")
    received = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", ALL], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert (received.returncode, received.stderr) == (0, "")
