"""The daemon of the tests, and machines of it."""

from tests.tools.docker.conftest import machine  # noqa: F401 - a fixture
