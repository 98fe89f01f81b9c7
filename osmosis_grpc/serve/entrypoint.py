"""Runs the application of a command, and converts the way in which it ends to an exit code."""

import gc
import sys
from collections.abc import Callable
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError


def run(build: Callable[[], Any]) -> int:
    """Build a typer application, run it, and return the exit code: 0 success, 1 failure, 2 usage, 130 interrupt."""
    try:
        import typer  # noqa: F401
    except ImportError:
        print(MissingExtraError("the command line", "server"), file=sys.stderr)  # noqa: T201
        return 2
    try:
        build()()
    except MissingExtraError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    finally:
        gc.freeze()  # the process ends, and a last collection over all objects would take 0.1 s
    return 0


def single(name: str, add: Callable[[Any, str], None]) -> Any:
    """Return a typer application with one command. `add(app, name)` adds the command."""
    import typer

    app = typer.Typer(add_completion=False, name=name, pretty_exceptions_enable=False, rich_markup_mode=None)
    add(app, name)
    return app


def serve() -> Any:
    """Return the application of `python -m osmosis_grpc.serve`."""
    from osmosis_grpc.serve.command import add_serve

    return single("osmosis_grpc.serve", add_serve)
