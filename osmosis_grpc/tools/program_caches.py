"""Keeps programs from using cached results of older files.

Python, pytest, mypy and others recognize a changed file by its size and the second of its last change. But a model
often edits a file and runs it within a second, and many edits do not change the size. The caches would then return old
results.
"""

from collections.abc import Mapping

WRITES_NOTHING: Mapping[str, str] = {"PYTHONDONTWRITEBYTECODE": "1", "MYPY_CACHE_DIR": "/dev/null"}
"""The variables that switch caches off. The caller's values are kept."""
PYTEST = "PYTEST_ADDOPTS"
"""The variable with options for pytest. Options of the caller are kept."""


def own_pytest_cache(run: str) -> str:
    """Return the options that give pytest a new cache folder in each run.

    The cache plugin stays on, because other plugins and the options of repositories use it. pytest expands the
    variables.

    Args:
        run: the name of a variable whose value differs in each run
    """
    return f"-o cache_dir=$TMPDIR/pytest-cache-${run}"


def without_caches(environment: Mapping[str, str], run: str) -> dict[str, str]:
    """Return the variables of a program, plus those that switch caches off. For `run`, see own_pytest_cache()."""
    theirs = environment.get(PYTEST, "")
    options = theirs if "cache" in theirs else f"{theirs} {own_pytest_cache(run)}".strip()
    return {**WRITES_NOTHING, **environment, PYTEST: options}
