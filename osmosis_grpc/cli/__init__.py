"""osmosis-grpc: serve, validate, demo, replay, doctor."""

import sys
from typing import Any

from osmosis_grpc.serve.entrypoint import run


def main() -> None:
    """Run the console script."""
    sys.exit(run(build))


def build() -> Any:
    """Return the typer application. The commands import heavy modules when they run."""
    import typer

    from osmosis_grpc import __version__
    from osmosis_grpc.cli.demo import demo
    from osmosis_grpc.cli.doctor import doctor
    from osmosis_grpc.cli.replay import replay
    from osmosis_grpc.cli.validate import validate
    from osmosis_grpc.serve.command import serve

    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Remote agent rollouts over gRPC.",
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"osmosis-grpc {__version__}")
            raise typer.Exit

    @app.callback()
    def top(
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Show the version."
        ),
    ) -> None:
        """Remote agent rollouts over gRPC."""

    serve.add_to(app, "serve")
    app.command()(validate)
    app.command()(demo)
    app.command()(replay)
    app.command()(doctor)
    return app
