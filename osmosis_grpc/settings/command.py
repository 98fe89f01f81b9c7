"""Makes a typer command from the declared options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import typer.core

from osmosis_grpc.settings.help import help_text
from osmosis_grpc.settings.line import Line, fields_for
from osmosis_grpc.settings.option import Field


@dataclass(frozen=True, slots=True)
class Command:
    """A command made from declared options."""

    function: Callable[..., None]
    cls: type[typer.core.TyperCommand]

    def add_to(self, app: typer.Typer, name: str) -> None:
        """Add this command to a typer application."""
        app.command(name, cls=self.cls)(self.function)


def command(name: str, usage: str, run: Callable[[Line], None]) -> Command:
    """Return the command `name`, serve or gateway, with its options. The command calls `run` with its Line."""
    fields = [field for field in fields_for(name) if field.option.flags]

    def called(**values: Any) -> None:
        run(Line(name, values))

    called.__doc__ = run.__doc__
    hints = {field.key: _hint(field) for field in fields}
    called.__annotations__ = {**hints, "return": None}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(key, kind, default=None, annotation=hint) for key, hint in hints.items()]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    class Helped(typer.core.TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            """Write our help text."""
            formatter.write(help_text(f"{ctx.command_path} {usage}", self.help or "", fields_for(name)))

    return Command(called, Helped)


def _hint(field: Field) -> Any:
    flags = field.option.flags
    if field.switch:
        return Annotated[bool | None, typer.Option("/".join((flags[-1], field.off)))]
    kind = list[str] if field.several else str
    return Annotated[kind | None, typer.Option(*flags, metavar=field.option.metavar)]
