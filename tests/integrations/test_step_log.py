"""StepLog without the libraries. tests/trainers/test_loggers.py has them."""

import sys

import pytest

from osmosis_grpc.integrations.step_log import StepLog
from osmosis_grpc.trainer import MissingExtraError


@pytest.mark.parametrize("library", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_library_that_is_missing_is_named_with_its_extra(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError) as caught:
        StepLog(library, run="run-1")
    assert f"[{library}]" in str(caught.value)


@pytest.mark.parametrize("libraries", [(), ("tensorbord",)])
def test_an_unknown_library_is_refused(libraries):
    with pytest.raises(ValueError, match="tensorboard"):
        StepLog(*libraries, run="run-1")
