"""Makes a typer command from the declared options, with --help and --help-all."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
import typer.core

from osmosis_grpc.settings.command_line import Line, options_of
from osmosis_grpc.settings.option import Option

WIDEST = 80
_ORDER = (
    "The first of these wins: the option, its environment variable, the file .env of this folder, the file of "
    "--config, the default. In a variable, separate the items of a list by blanks and tokens by line breaks; a "
    "switch is true or false. --help-all shows every option and its variable."
)


def add_command(app: typer.Typer, name: str, usage: str, run: Callable[[Line], None], of: str = "") -> None:
    """Add the command `name` to an application. It calls `run` with its Line.

    Args:
        app: The application.
        name: The name of the command.
        usage: The arguments to show in the first line of --help.
        run: Runs the command. Its docstring is the description in --help.
        of: The name under which the options are declared, serve or gateway; by default `name`.
    """
    options = options_of(of or name)

    def called(**values: Any) -> None:
        run(Line(of or name, values))

    def show_all(context: typer.Context, wanted: bool) -> None:
        if wanted:
            context.meta["all"] = True
            typer.echo(context.get_help())
            raise typer.Exit

    help_all = Annotated[bool, typer.Option("--help-all", hidden=True, is_eager=True, callback=show_all)]
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(option.variable, kind, default=None, annotation=_hint(option))
        for option in options
        if option.flags
    ]
    parameters.append(inspect.Parameter("help_all", kind, default=False, annotation=help_all))
    called.__doc__ = run.__doc__
    called.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    class Helped(typer.core.TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            formatter.width = min(WIDEST, formatter.width + 2)  # click leaves two columns free
            formatter.write_usage(ctx.command_path, usage)
            for text in (*(self.help or "").split("\n\n"), _ORDER):
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write_text(text)
            shown = [each for each in options if each.common or of == "gateway" or "all" in ctx.meta]
            _write_options(formatter, shown)

    app.command(name, cls=Helped)(called)


def _hint(option: Option) -> Any:
    if option.switch:
        return Annotated[bool | None, typer.Option(f"{option.flag}/{option.off}")]
    kind = list[str] if option.several else str
    return Annotated[kind | None, typer.Option(*option.flags, metavar=option.metavar)]


def _write_options(formatter: Any, options: Sequence[Option]) -> None:
    for group in dict.fromkeys(option.group for option in options):
        with formatter.section(group):
            for option in options:
                if option.group == group:
                    _write_option(formatter, option)
    with formatter.section("Other"):
        formatter.write_text("--help, --help-all")


def _write_option(formatter: Any, option: Option) -> None:
    facts = [f"[default: {option.default}]"] if option.default else []
    facts += [f"[{option.range}]"] if option.range else []
    facts += ["[repeatable]"] if option.several else []
    formatter.write_text(option.usage + (f" / {option.off}" if option.switch else "") or option.variable)
    with formatter.indentation(), formatter.indentation():
        formatter.write_text(" ".join([option.help, *(fact.replace(" ", "\u00a0") for fact in facts)]))
        if option.usage:
            formatter.write_text(option.variable)
