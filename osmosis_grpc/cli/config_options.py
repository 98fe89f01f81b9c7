"""Options for the configurations of workflows and graders. Imports only typer."""

from typing import Annotated

import typer

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="TOML file with [workflow.config] and [grader.config].")
]
WorkflowConfig = Annotated[
    list[str] | None,
    typer.Option("--workflow-config", metavar="KEY=VALUE", help="A value of the workflow's configuration; repeatable."),
]
GraderConfig = Annotated[
    list[str] | None,
    typer.Option("--grader-config", metavar="KEY=VALUE", help="A value of the grader's configuration; repeatable."),
]
GraderClass = Annotated[
    str | None,
    typer.Option("--grader", metavar="MODULE:CLASS", help="The grader, instead of the one in the workflow's file."),
]
