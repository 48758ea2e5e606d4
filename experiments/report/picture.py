"""The picture of a plan: machines of a group with their operators, servers with their shards, and what is sent between.

Machines are cards, operators and tables buttons in them; the page's script draws lines from a chosen one to its
neighbours, and says in words what the lines mean. Without the script the table of messages says it all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from experiments.report.markup import Html, element, join, size, table
from placement.explain import Explanation, LoadRow
from placement.plan import DP, Plan
from problem.graph import Kind, Operator
from programs.instructions import AllReduce, Place, Role, Send
from programs.transform import JobPrograms

MOST_MESSAGES = 400
"""Rows of the table of messages; the largest ones are kept."""


def picture(plan: Plan, job: JobPrograms, why: Explanation) -> Html:
    """Return the picture of a plan's first group.

    Parameters
    ----------
    plan : Plan
        The plan.
    job : JobPrograms
        Its programs, for the messages.
    why : Explanation
        Loads of the machines.
    """
    shared = _card("every rank", "data-parallel operators, a copy on each rank", _buttons(plan, DP), ())
    servers = [
        _card(f"ps{i}", f"embedding server {node.name}", _tables(plan, i), _loads(why, node.name))
        for i, node in enumerate(plan.servers)
    ]
    hint = (
        "Choose an operator or a table to see its neighbours on other machines. Tab and arrow keys move, Enter chooses."
    )
    return join(
        [
            element("p", hint, class_="hint"),
            element(
                "div",
                element("div", shared, *_nodes(plan, why), class_="row"),
                element("div", *servers, class_="row"),
                element("svg", id="lines", aria_hidden="true"),
                id="picture",
            ),
            element("p", "Nothing is chosen.", id="chosen", role="status", aria_live="polite"),
            element("script", Html(_neighbours(plan)), type="application/json", id="neighbours"),
            _messages(job),
        ]
    )


def _loads(why: Explanation, node: str) -> list[LoadRow]:
    return [row for row in why.loads if row.node == node]


def _nodes(plan: Plan, why: Explanation) -> Iterator[Html]:
    """Yield a card for each node of the group; neighbours that hold nothing of their own and are loaded alike share one."""
    alike: list[tuple[tuple[object, ...], list[int]]] = []
    for index, node in enumerate(plan.groups[0]):
        looks = [(row.resource, round(100 * row.utilization)) for row in _loads(why, node.name)]
        own = index if any(_buttons(plan, index)) else -1
        key = (own, index < plan.ranks, node.cores, node.memory_bytes, *sorted(looks))
        if alike and alike[-1][0] == key:
            alike[-1][1].append(index)
        else:
            alike.append((key, [index]))
    for _, indices in alike:
        first, last = indices[0], indices[-1]
        title = f"n{first}" if first == last else f"n{first} to n{last}"
        yield _card(title, _role(plan, first, last), _buttons(plan, first), _loads(why, plan.groups[0][first].name))


def _role(plan: Plan, first: int, last: int) -> str:
    """Return the machines, whether they are ranks, and what each has."""
    group, role = plan.groups[0], "rank" if first < plan.ranks else "no rank"
    names = group[first].name if first == last else f"{group[first].name} to {group[last].name}"
    each = "" if first == last else "each "
    return f"{names}, {role}, {each}{group[first].cores} cores, {size(group[first].memory_bytes)}"


def _card(title: str, subtitle: str, content: Iterable[Html], loads: Sequence[LoadRow]) -> Html:
    bars = [_bar(row) for row in sorted(loads, key=lambda row: row.resource) if row.seconds > 0]
    inside = list(content)
    return element(
        "article",
        element("h3", title),
        element("p", subtitle, class_="subtitle"),
        element("div", *bars, class_="bars"),
        element("div", *(inside or [element("p", "nothing of its own", class_="subtitle")]), class_="items"),
        class_="card",
    )


def _bar(row: LoadRow) -> Html:
    share = f"{100 * row.utilization:.0f} %"
    fill = element("span", class_="fill", style=f"width:{min(100.0, 100 * row.utilization):.1f}%")
    return element(
        "div", element("span", row.resource), element("span", fill, class_="bar"), element("span", share), class_="load"
    )


def _buttons(plan: Plan, tag: int | str) -> Iterator[Html]:
    """Yield the operators with a tag."""
    for op in plan.model.graph:
        if op.kind is not Kind.LOOKUP and plan.tags[op.name] == tag:
            yield element("button", op.name, type="button", data_item=op.name, class_=f"op {op.kind.value}")


def _tables(plan: Plan, server: int) -> Iterator[Html]:
    """Yield the shards on a server, largest first."""
    for shard in sorted(plan.server_shards(server), key=lambda found: -found.rows):
        whole = plan.model.table[shard.table].rows
        part = "" if shard.rows == whole else f" ({100 * shard.rows / whole:.0f} % of rows)"
        yield element("button", f"{shard.table}{part}", type="button", data_item=shard.table, class_="op table")


@dataclass(frozen=True)
class _Places:
    """Where an operator's output is made and read, in words."""

    plan: Plan

    def of(self, op: Operator) -> str:
        """Return the machines of an operator."""
        if op.kind is Kind.LOOKUP:
            servers = sorted({shard.server for shard in self.plan.shards if shard.table == op.table})
            return " and ".join(f"ps{server}" for server in servers)
        tag = self.plan.tags[op.name]
        return "every rank" if tag == DP else f"n{tag}"


def _neighbours(plan: Plan) -> str:
    """Return, by operator or table, what the script says and draws: a sentence, inputs and outputs."""
    graph, places = plan.model.graph, _Places(plan)
    found: dict[str, dict[str, object]] = {}
    for op in graph:
        item = op.table or op.name
        sent = size(op.output_bytes_per_sample * plan.batch)
        made = f"{item} ({op.kind.value}) on {places.of(op)}: {op.parameters:,} parameters, output {sent} a batch"
        entry = found.setdefault(item, {"says": made, "to": [], "from": []})
        for name in op.inputs:
            source = graph[name]
            _add(entry, "from", [source.table or source.name, places.of(source), places.of(source) != places.of(op)])
            _add(found[source.table or source.name], "to", [op.name, places.of(op), places.of(source) != places.of(op)])
    return json.dumps(found).replace("<", "\\u003c")


def _add(entry: dict[str, object], key: str, neighbour: list[object]) -> None:
    known = entry[key]
    assert isinstance(known, list)
    if neighbour not in known:
        known.append(neighbour)


def _messages(job: JobPrograms) -> Html:
    """Return what the first rank's session sends in a step, and the all-reduce, largest first."""
    session = job.sessions[0]
    rows = [
        (instruction.bytes, _place(program.place), _place(instruction.peer), ", ".join(instruction.tensors))
        for program in session.programs
        for instruction in program.instructions
        if isinstance(instruction, Send)
    ]
    rows += [
        (instruction.bytes, _place(program.place), "all other ranks", "gradients of data-parallel operators")
        for program in session.programs
        for instruction in program.instructions
        if isinstance(instruction, AllReduce)
    ]
    kept = sorted(rows, key=lambda row: -row[0])[:MOST_MESSAGES]
    cells = [(what, source, target, size(count)) for count, source, target, what in kept]
    left = f"; the {MOST_MESSAGES} largest of {len(rows)}" if len(rows) > MOST_MESSAGES else ""
    return table(f"Messages of one step of the first rank{left}", ("what", "from", "to", "bytes"), cells)


def _place(place: Place) -> str:
    return f"ps{place.index}" if place.role is Role.SERVER else f"n{place.index}"
