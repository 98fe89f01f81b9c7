"""The daemon of the tests."""

from tests.tools.docker.conftest import daemon, machine  # noqa: F401 - fixtures
