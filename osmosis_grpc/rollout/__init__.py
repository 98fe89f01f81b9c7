"""The API for agent authors, under the import paths of the Osmosis SDK.

Each name is imported when it is first used. So the import of this package is cheap, and an extra is needed only by the
names that use the extra. `__init__.pyi` lists the names, for this module and for type checkers. The modules below exist
while a program runs: osmosis_grpc.compat.older_paths makes them.
"""

from typing import Any

from osmosis_grpc.compat import older_paths

older_paths.install()
__all__ = older_paths.names_of("rollout")


def __getattr__(name: str) -> Any:
    """Return the object of a name. The errors are those of older_paths.get()."""
    return older_paths.get("rollout", name)


def __dir__() -> list[str]:
    """Return the names."""
    return __all__
