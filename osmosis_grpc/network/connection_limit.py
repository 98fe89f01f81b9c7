"""How many connections a server accepts at once. The default leaves most of the process's files to its own work."""

LEAST, MOST = 16, 4096
"""The default is never lower and never higher."""
_SHARE = 4
"""The default is this part of the files that the process may open, for each port."""


def default_connections() -> int:
    """Return how many connections a server accepts at once, from the limit of open files (RLIMIT_NOFILE)."""
    return max(LEAST, min(MOST, _files() // _SHARE))


def agent_connections() -> int:
    """Return how many connections of agents a port accepts at once: the same part, without a maximum."""
    return max(LEAST, _files() // _SHARE)


def _files() -> int:
    most = MOST * _SHARE
    try:
        import resource
    except ModuleNotFoundError:  # not on Unix
        return most
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if files == resource.RLIM_INFINITY else files
