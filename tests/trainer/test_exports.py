"""What osmosis_grpc.trainer exports."""

import inspect
import re

from osmosis_grpc import trainer
from osmosis_grpc.protocol import errors

ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}


def docstrings(value):
    """Yield the docstrings of a public value and of its public methods and properties."""
    yield inspect.getdoc(value) or ""
    if inspect.isclass(value) and value.__module__.startswith("osmosis_grpc."):
        for name, member in vars(value).items():
            if not name.startswith("_"):
                yield inspect.getdoc(member) or ""


def test_errors_named_in_public_docstrings_are_exported():
    texts = [text for name in trainer.__all__ for text in docstrings(getattr(trainer, name))]
    named = {word for text in texts for word in re.findall(r"\b[A-Z]\w+", text)} & ERRORS
    assert {"InvalidArgument", "LedgerError"} <= named, "the docstrings are read"
    assert named <= set(trainer.__all__)


def test_exported_errors_are_those_of_the_errors_module():
    assert all(getattr(trainer, name) is getattr(errors, name) for name in ERRORS & set(trainer.__all__))
