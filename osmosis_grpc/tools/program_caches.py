"""Keeps programs from reading results of older files.

Python, pytest, mypy and others compare a file with their caches by its size and the second of its last change. A model
edits a file and runs it within a second, and many corrections leave the size as it is: the cache then has the old code.
"""

from collections.abc import Mapping

WRITES_NOTHING: Mapping[str, str] = {"PYTHONDONTWRITEBYTECODE": "1", "MYPY_CACHE_DIR": "/dev/null"}
"""The variables that switch caches off. A value of the caller wins."""
PYTEST = "PYTEST_ADDOPTS"
"""The variable with options of pytest. Options of the caller stay."""


def own_pytest_cache(run: str) -> str:
    """Return the options that give pytest a new cache folder in each run.

    The plugin stays, because other plugins and the options of a repository use it. pytest replaces the variables.

    Args:
        run: the name of a variable that has another value in each run
    """
    return f"-o cache_dir=$TMPDIR/pytest-cache-${run}"


def without_caches(environment: Mapping[str, str], run: str) -> dict[str, str]:
    """Return the variables of a program, and those that keep it from using caches. See own_pytest_cache()."""
    theirs = environment.get(PYTEST, "")
    options = theirs if "cache" in theirs else f"{theirs} {own_pytest_cache(run)}".strip()
    return {**WRITES_NOTHING, **environment, PYTEST: options}
