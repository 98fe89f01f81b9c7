"""The API for agent authors, under the import paths of the Osmosis SDK.

Each name is imported when it is first used. So the import of this package is cheap, and an extra is needed only by the
names that use the extra. `__init__.pyi` lists the names, for this module and for type checkers. The modules below exist
while a program runs: osmosis_grpc.compat.older_paths makes them.
"""

from osmosis_grpc.compat import older_paths

older_paths.install()
globals().update(older_paths.contents("rollout"))
