"""Makes the query for the rollouts of a list.

The query reads an index that has all columns of the filter. So its time grows with the number of rollouts, but not with
their size, and it is short for every filter. It reads the rows of the rollouts that it returns, and no other rows.
"""

from typing import Any

from osmosis_grpc.protocol.types import RolloutFilter

Conditions = list[tuple[str, tuple[Any, ...]]]


def selection(
    owner: str | None, after: int, where: RolloutFilter, *, newest_first: bool
) -> tuple[str, tuple[Any, ...]]:
    """Return a query, and its values but the last, which is the largest number of rows.

    The rows have all rollouts that match the filter, and possibly unsettled rollouts that do not. See Journal.entries.
    """
    known = _known(owner, after, where, newest_first=newest_first)
    order = f"ORDER BY sequence{' DESC' if newest_first else ''}"
    parts = [_part("rollouts_unsettled", "NOT settled", known)]
    if not where.only_unsettled:
        parts.append(_part("rollouts_listed", "settled", known + _of_the_end(where)))
    found = " UNION ALL ".join(part for part, _ in parts)
    values = [value for _, conditions in parts for value in conditions]
    query = f"SELECT * FROM rollouts WHERE sequence IN ({found} {order} LIMIT ?) {order}"  # noqa: S608
    return query, tuple(values)


def _part(index: str, which: str, conditions: Conditions) -> tuple[str, list[Any]]:
    text = " AND ".join([which, *(condition for condition, _ in conditions)])
    values = [value for _, values in conditions for value in values]
    return f"SELECT sequence FROM rollouts INDEXED BY {index} WHERE {text}", values  # noqa: S608


def _known(owner: str | None, after: int, where: RolloutFilter, *, newest_first: bool) -> Conditions:
    """Return the conditions that are known from the acceptance on."""
    found: Conditions = []
    if after or not newest_first:
        found.append((f"sequence {'<' if newest_first else '>'} ?", (after,)))
    if owner is not None:
        found.append(("owner = ?", (owner,)))
    if where.group_id:
        found.append(("group_id = ?", (where.group_id,)))
    if where.forked_from:
        found.append(("forked_from = ?", (where.forked_from,)))
    if where.agent_loop:
        found.append(("agent_loop = ?", (where.agent_loop,)))
    if where.accepted_after is not None:
        found.append(("accept_time >= ?", (where.accepted_after,)))
    if where.accepted_before is not None:
        found.append(("accept_time < ?", (where.accepted_before,)))
    return found


def _of_the_end(where: RolloutFilter) -> Conditions:
    """Return the conditions that are known from the end on."""
    found: Conditions = []
    if where.states:
        found.append(_one_of("state", [state.value for state in where.states]))
    if where.failure_reasons:
        found.append(_one_of("failure_reason", [str(reason) for reason in where.failure_reasons]))
    if where.finish_reason:
        found.append(("finish_reason = ?", (where.finish_reason,)))
    if where.min_reward is not None:
        found.append(("reward >= ?", (where.min_reward,)))
    if where.max_reward is not None:
        found.append(("reward <= ?", (where.max_reward,)))
    return found


def _one_of(column: str, values: list[str]) -> tuple[str, tuple[Any, ...]]:
    return f"{column} IN ({', '.join('?' * len(values))})", tuple(values)
