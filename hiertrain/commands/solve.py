"""``hiertrain solve``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from hiertrain.output import emit, progress, say
from hiertrain.unused import each_once, refuse_unused
from problem.errors import BadInput
from problem.units import format_throughput
from problem.whole_file import check_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from placement.plan import Tag
    from placement.result import BaselineValue, PlacementResult
    from placement.search.guard import Guard
    from problem.model import Model


class Algorithm(StrEnum):
    """How groups are kept together."""

    EASGD = "easgd"
    MA = "ma"
    BMUF = "bmuf"
    PUSH = "push"


class Mode(StrEnum):
    """Who exchanges with the sync servers."""

    BACKGROUND = "background"
    FOREGROUND = "foreground"


#: Samples of a batch, and threads of a rank, above which a number can only be a slip.
MOST = 10**9


def command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Preset, or a file (.toml, .csv, .json, .onnx, ..).")],
    cluster: Annotated[str | None, typer.Option(help="Preset with a count (fb-1s-18c:32), local, or a file.")] = None,
    costs: Annotated[Path | None, typer.Option(help="Profile of the machines; default: roofline.")] = None,
    foreign_costs: Annotated[bool, typer.Option(help="Accept a profile of another machine, scaled.")] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Samples per thread, step; default: the model's.")
    ] = None,
    hogwild: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Threads per rank; default: 1.2 per core.")
    ] = None,
    group_size: Annotated[str, typer.Option(help="Nodes per group: auto, or a number.")] = "auto",
    ranks: Annotated[
        str | None, typer.Option(help="Data-parallel ranks per group: auto, or a number; default: all nodes.")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="Most groups that quality allows; default: 15, or the warm start's.")
    ] = None,
    max_elp: Annotated[
        int | None, typer.Option(min=1, help="Most batch * threads * ranks * groups; default: no limit.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(min=1, help="Cap the rows of every table (ids are hashed).")] = None,
    pin: Annotated[list[str] | None, typer.Option(help="OPERATOR=TAG: dp, or the index of a node. Repeatable.")] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(help="OPERATOR=WHAT: dp, mp, the index of a node, or a kind of machine. Repeatable."),
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="EDGE=CODEC, EDGE an operator, pooled, push, allreduce or exchange; or auto[:LIST]: choose."),
    ] = None,
    quality_loss: Annotated[
        float | None, typer.Option(min=0.0, help="Relative loss that --codec auto may risk at an edge; default 0.001.")
    ] = None,
    table_pin: Annotated[
        list[str] | None, typer.Option(help="TABLE=SERVER: a table whole on that embedding server. Repeatable.")
    ] = None,
    table_forbid: Annotated[
        list[str] | None, typer.Option(help="TABLE=WHAT: a server, a kind of machine, row or column. Repeatable.")
    ] = None,
    keep_together: Annotated[
        list[str] | None, typer.Option(help="TABLE,TABLE: tables whole on one embedding server. Repeatable.")
    ] = None,
    keep_apart: Annotated[
        list[str] | None, typer.Option(help="TABLE,TABLE: tables that share no embedding server. Repeatable.")
    ] = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="Plan file to start from, and to keep to where it can.")
    ] = None,
    lost_node: Annotated[list[str] | None, typer.Option(help="Machine to do without. Repeatable.")] = None,
    movement_weight: Annotated[
        float,
        typer.Option(
            min=0.0, max=1e6, help="Seconds of a step that moving a byte from the warm start's plan may cost."
        ),
    ] = 0.0,
    sync_algorithm: Annotated[Algorithm, typer.Option(help="How groups are kept together.")] = Algorithm.EASGD,
    sync_mode: Annotated[Mode, typer.Option(help="A worker beside the threads, or thread 0 stops.")] = Mode.BACKGROUND,
    sync_servers: Annotated[
        int | None, typer.Option(min=0, help="Default: none for ma and bmuf (an all-reduce of groups), else chosen.")
    ] = None,
    sync_gap: Annotated[int, typer.Option(min=1, help="Steps between two exchanges of a group.")] = 8,
    time_limit: Annotated[float, typer.Option(min=0.01, help="Seconds for the whole search.")] = 60.0,
    gap: Annotated[float, typer.Option(min=0.0, help="Relative gap that is good enough.")] = 0.005,
    seed: Annotated[int, typer.Option(help="Seed of the solver and of the plan.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Choose groups, operator placement and table shards for a model on a cluster.

    Example: hiertrain solve dlrm-terabyte --cluster fb-1s-18c:32 --max-replicas 4 --out plan.json
    """
    from hiertrain.loading import plan_cluster, read_cluster, read_costs, read_model, without_nodes
    from placement.planfile import load_plan, save_plan
    from placement.search.job import solve
    from placement.search.options import SolveOptions
    from placement.search.replan import check_model

    check_target(out)
    loaded, start = read_model(model, max_rows), load_plan(warm_start).plan if warm_start else None
    if start and warm_start:
        check_model(start, loaded, warm_start)
    machines = without_nodes(
        read_cluster(cluster, model) if cluster or not start else plan_cluster(start), lost_node or ()
    )
    codecs, guard = _codecs(codec or [], loaded, quality_loss)
    options = SolveOptions(
        batch=batch,
        hogwild=hogwild,
        group_size=_group_size(group_size),
        ranks=_ranks(ranks),
        max_replicas=max_replicas,
        max_elp=max_elp,
        pins=each_once("--pin", pin or (), _pin),
        forbids=tuple(_forbid("--forbid", text) for text in forbid or ()),
        table_forbids=tuple(_forbid("--table-forbid", text) for text in table_forbid or ()),
        table_pins=each_once("--table-pin", table_pin or (), _table_pin),
        keep_together=tuple(tuple(text.split(",")) for text in keep_together or ()),
        keep_apart=tuple(tuple(text.split(",")) for text in keep_apart or ()),
        warm_start=start,
        movement_seconds_per_byte=movement_weight,
        codecs=codecs,
        guard=guard,
        sync_algorithm=cast("Any", str(sync_algorithm)),
        sync_mode=cast("Any", str(sync_mode)),
        sync_gap=sync_gap,
        sync_servers=sync_servers,
        time_limit_seconds=time_limit,
        gap=gap,
        seed=seed,
    )
    refuse_unused(_given(context), options, loaded, profiled=costs is not None)
    costs_for = read_costs(costs, loaded, foreign_costs)
    with progress("solving") as news:
        told = _News(news)
        result = solve(loaded, machines, costs_for, options, told)
    told.assumed(result.assumptions)
    if out is not None:
        save_plan(out, result, costs_for(result.plan.batch, result.plan.groups[0][0]))
    emit(as_json, result.as_dict(), lambda: to_text(result))
    if result.interrupted:
        raise KeyboardInterrupt("interrupted; the best plan so far is kept")


class _News:
    """Says what is assumed, each once, and how far a search is.

    Parameters
    ----------
    tell : callable
        Shows a line until the next one.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.said = tell, set[str]()

    def assumed(self, sentences: tuple[str, ...]) -> None:
        for sentence in sentences:
            if sentence not in self.said:
                say(f"assumed: {sentence}")
            self.said.add(sentence)

    def standing(self, best: float, bound: float) -> None:
        gap = f", gap {100 * (bound - best) / bound:.2f} %" if 0 < bound < float("inf") else ""
        self.tell(f"{best:,.0f} samples/s, bound {bound:,.0f}{gap}")


def _given(context: typer.Context) -> list[str]:
    """Parameters that are on the command line."""
    return [name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]


def _group_size(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadInput("solve", "--group-size", text, "auto, or a number of nodes from 1")
    return int(text)


def _ranks(text: str | None) -> int | Literal["auto"] | None:
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise BadInput("solve", "--ranks", text, "auto, or a number of ranks from 1")
    return int(text)


def _pin(text: str) -> tuple[str, Tag]:
    """Read ``OPERATOR=TAG``; operator names may hold '='."""
    name, found, tag = text.rpartition("=")
    if not found or not name or not (tag == "dp" or tag.isdecimal()):
        raise BadInput("solve", "--pin", text, "OPERATOR=dp or OPERATOR=NODE, a node's index in its group")
    return name, "dp" if tag == "dp" else int(tag)


def _forbid(option: str, text: str) -> tuple[str, str | int]:
    """Read ``NAME=WHAT``; names may hold '='. What is no number is checked against model and cluster."""
    name, found, what = text.rpartition("=")
    if not found or not name or not what:
        allowed = "OPERATOR=dp, =mp, =NODE" if option == "--forbid" else "TABLE=SERVER, =row, =column"
        raise BadInput("solve", option, text, f"{allowed} or =KIND, a kind of machine of the cluster")
    return name, int(what) if what.isdecimal() else what


def _codecs(texts: list[str], model: Model, quality_loss: float | None) -> tuple[dict[str, str], Guard | None]:
    """Read what is decided about codecs, and what the solver may choose."""
    from placement.search.guard import QUALITY_LOSS, Guard

    asked = [text for text in texts if "=" not in text and text.partition(":")[0] == "auto"]
    decided = each_once("--codec", [text for text in texts if text not in asked], lambda text: _codec(text, model))
    if "auto" in asked and len(set(asked)) > 1:
        raise BadInput("solve", "--codec", "auto", f"either that, or {asked[1 - asked.index('auto')]}")
    if not asked:
        if quality_loss is not None:
            raise BadInput("solve", "--quality-loss", quality_loss, "only with --codec auto")
        return decided, None
    names = tuple(name for text in asked for name in text.partition(":")[2].split(",") if name)
    try:
        return decided, Guard(names, QUALITY_LOSS if quality_loss is None else quality_loss)
    except ValueError as error:
        raise BadInput("solve", "--codec", asked[0], str(error)) from None


def _codec(text: str, model: Model) -> tuple[str, str]:
    """Read ``EDGE=CODEC``; operator names may hold '='."""
    from placement.codecs import check_codec

    edge, found, name = text.rpartition("=")
    if not found or not edge:
        raise BadInput("solve", "--codec", text, "EDGE=CODEC, auto or auto:CODEC,CODEC")
    try:
        check_codec(edge, name, model)
    except ValueError as error:
        raise BadInput("solve", "--codec", text, str(error)) from None
    return edge, name


def _table_pin(text: str) -> tuple[str, int]:
    """Read ``TABLE=SERVER``; table names may hold '='."""
    name, found, server = text.rpartition("=")
    if not found or not name or not server.isdecimal():
        raise BadInput("solve", "--table-pin", text, "TABLE=SERVER, the number of an embedding server, from 0")
    return name, int(server)


def _baseline(best: BaselineValue | None) -> str:
    if best is None or best.samples_per_second is None:
        return "none fits"
    return f"{format_throughput(best.samples_per_second)} samples/s, {best.name}"


def to_text(result: PlacementResult) -> str:
    """Return plan, value, bound and the best baseline."""
    plan, best = result.plan, result.best_baseline
    mp = [f"{name} on n{tag}" for name, tag in plan.tags.items() if tag != "dp"]
    lines = [
        f"plan        groups: {len(plan.groups)}, nodes a group: {plan.group_size}, ranks a group: {plan.ranks}, "
        f"threads a rank: {plan.hogwild}, batch: {plan.batch}, embedding servers: {len(plan.servers)}, "
        f"sync servers: {len(plan.sync_servers)}" + (" (groups average by an all-reduce)" if plan.ring else ""),
        f"operators   {', '.join(mp) if mp else 'all data-parallel'}",
        *([f"codecs      {', '.join(f'{e}={c}' for e, c in plan.codecs.items())}"] if plan.codecs else []),
        f"throughput  {format_throughput(result.samples_per_second)} samples/s, bound {format_throughput(result.bound)}, "
        f"gap {100 * result.gap:.2f} %, {result.status} in {result.solve_seconds:.1f} s",
        f"bottleneck  {result.bottleneck}",
        *([f"moved       {result.moved_bytes:,} bytes"] if result.moved_bytes is not None else []),
        f"baseline    {_baseline(best)}",
    ]
    return "\n".join(lines)
