"""A sync agent: code that blocks, such as SQLite here, needs no async. Serve it from this folder:

osmosis-grpc serve -m agent:agent_loop
"""

import sqlite3
from contextlib import closing
from typing import Annotated, Any

from pydantic import Field

from osmosis_grpc.agent import RolloutAgentLoop, RolloutResult, SyncRolloutContext, tool

CITIES = [("Oslo", 709_000), ("Lisbon", 546_000), ("Turin", 848_000)]


@tool
def tables() -> list[str]:
    """List the tables of the database, with their columns."""
    return ["city(name, people)"]


@tool
def query(sql: Annotated[str, Field(examples=["select count(*) from city"])]) -> list[Any]:
    """Run an SQL query, and return its rows."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table city (name text, people integer)")
        database.executemany("insert into city values (?, ?)", CITIES)
        return database.execute(sql).fetchall()


class Analyst(RolloutAgentLoop):
    name = "analyst"
    tools = (tables, query)

    def run(self, ctx: SyncRolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            reply = ctx.chat(messages, **ctx.request.completion_params)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                break
            messages += ctx.run_tools(reply)
        return ctx.complete(messages, reward=float(str(ctx.request.label) in str(messages[-1].get("content"))))


agent_loop = Analyst()
