"""What ``hiertrain convert`` does: reads whatever it is given, and writes it as something else.

A plan becomes files for other tools, a placement of another tool a plan, a foreign model or cluster one of ours. What a
format becomes when nothing is asked for follows from the name of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.checked_json import write_json
from cost_models.kineto import load_kineto
from cost_models.roofline import roofline_costs
from hiertrain.output import say
from placement.exports.picture import to_dot, to_svg
from placement.exports.tables import placement_map, shards_csv, torchrec_plan
from placement.foreign import plan_of_placement
from placement.planfile import LoadedPlan, load_plan, save_plan
from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.formats import signatures
from problem.formats.content import Content, unwrap
from problem.formats.machines import parse_asked
from problem.formats.registry import Format, by_name, found_reader, sniff, split_forced
from problem.formats.writers import cluster_toml, graph_document, model_toml
from problem.presets import model_presets, nearest
from problem.readers import load_model
from problem.whole_file import check_parent, whole_file
from programs.chakra import write_chakra
from programs.transform import transform
from simulator.perfetto import write_trace
from simulator.simulate import simulate

Write = Callable[[Any, Path], None]


@dataclass(frozen=True)
class Found:
    """What was read: its kind, the thing itself, and what is to be said of it."""

    kind: str
    thing: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Parameters
    ----------
    source : str
        File, preset, or ``FORMAT:FILE``.
    out : Path
        File to write; the beginning of names for Chakra traces.
    to : str, optional
        Format to write; None: by the ending of ``out``.
    cluster, model : str, optional
        Machines and model of a placement; the model also where the placement describes its tables.
    costs : Path, optional
        Kineto trace, for the durations of an execution trace.
    """

    source: str
    out: Path
    to: str | None = None
    cluster: str | None = None
    model: str | None = None
    costs: Path | None = None


def convert(request: Request, form: str | None = None) -> tuple[str, str]:
    """Read, and write as something else.

    Parameters
    ----------
    request : Request
        What was asked for.
    form : str, optional
        Format of the source, forced.

    Returns
    -------
    (str, str)
        What was read and what was written.

    Raises
    ------
    HiertrainError
        When the source cannot be read or cannot become what was asked for.
    """
    check_parent(request.out)
    found = _read(request, form)
    writers = _WRITERS[found.kind]
    wanted = request.to or ("plan" if found.kind == "placement" else _by_ending(found.kind, request.out))
    if wanted not in writers:
        allowed = nearest(wanted, list(writers), f"a {found.kind} becomes")
        raise BadInput("convert", "--to", wanted or None, allowed)
    writers[wanted](found.thing, request.out)
    for note in found.notes:
        say(note)
    return found.kind, wanted


def _by_ending(kind: str, out: Path) -> str:
    endings = {
        ".toml": kind,
        ".json": "graph",
        ".csv": "shards",
        ".dot": "dot",
        ".gv": "dot",
        ".svg": "svg",
        ".et": "chakra",
    }
    return endings.get(out.suffix, "")


def _read(request: Request, form: str | None) -> Found:
    """Return what the source is: a plan, a placement (as a plan), a cluster or a model."""
    if request.source in model_presets():
        return _model(request, request.source)
    forced, path = (by_name(form), request.source) if form else split_forced(request.source)
    asked = parse_asked(path)
    content = unwrap(asked.path if asked else path)
    found = forced or sniff(content)
    if found.name == "plan":
        return Found("plan", load_plan(content.path))
    if "placement" in found.becomes and ("model" not in found.becomes or request.cluster or request.to == "plan"):
        return _plan(request, content, found)
    source = f"{forced.name}:{path}" if forced else path
    if "cluster" in found.becomes:
        cluster = load_cluster(source)
        return Found("cluster", cluster, _told(cluster.name, cluster.assumptions))
    if "model" not in found.becomes:
        raise BadInput(content.source, "format", found.name, signatures.reason(content) or found.refusal)
    return _model(request, source)


def _model(request: Request, source: str) -> Found:
    """Return the model, and the seconds that a Kineto trace gives its operators."""
    model = load_model(source)
    if request.costs is None:
        return Found("model", (model, {}), _told(model.name, model.notes))
    trace = load_kineto(request.costs)
    return Found(
        "model", (model, trace.seconds), _told(model.name, model.notes) + _told(request.costs.name, trace.notes)
    )


def _told(name: str, notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}: {note}" for note in notes)


def _plan(request: Request, content: Content, form: Format) -> Found:
    """Return the plan of another tool's placement, with the costs of its machines."""
    placement = found_reader(content, "placement", form)(content)
    if request.cluster is None:
        raise BadInput("convert", "--cluster", None, f"machines for the {placement.devices} devices of the placement")
    model = load_model(request.model) if request.model else placement.model
    if model is None:
        raise BadInput("convert", "--model", None, "a model: the placement does not say how large its tables are")
    cluster = load_cluster(request.cluster)
    plan = plan_of_placement(placement, model, cluster, content.source)
    notes = _told(placement.name, (*placement.notes, *model.notes)) + _told(cluster.name, cluster.assumptions)
    return Found("placement", LoadedPlan(plan, roofline_costs(model, plan.batch, plan.groups[0][0]), {}), notes)


def _text(make: Callable[[Any], str]) -> Write:
    def write(thing: Any, out: Path) -> None:
        made = make(thing)
        with whole_file(out) as file:
            file.write(made)

    return write


def _json(make: Callable[[Any], dict[str, Any]]) -> Write:
    return lambda thing, out: write_json(make(thing), out)


def _write_plan(loaded: LoadedPlan, out: Path) -> None:
    save_plan(out, loaded.plan, loaded.costs, loaded.result)


def _write_chakra(loaded: LoadedPlan, out: Path) -> None:
    timeline = simulate(loaded.plan, loaded.costs, steps=20).timeline
    assert timeline is not None
    write_chakra(out.with_suffix("") if out.suffix == ".et" else out, transform(loaded.plan), timeline)


def _write_perfetto(loaded: LoadedPlan, out: Path) -> None:
    timeline = simulate(loaded.plan, loaded.costs, steps=20).timeline
    assert timeline is not None
    write_trace(out, timeline)


_PLAN: dict[str, Write] = {
    "plan": _write_plan,
    "torchrec": _json(lambda loaded: torchrec_plan(loaded.plan)),
    "map": _json(lambda loaded: placement_map(loaded.plan)),
    "shards": _text(lambda loaded: shards_csv(loaded.plan)),
    "dot": _text(lambda loaded: to_dot(loaded.plan)),
    "svg": _text(lambda loaded: to_svg(loaded.plan)),
    "chakra": _write_chakra,
    "perfetto": _write_perfetto,
}
_WRITERS: dict[str, dict[str, Write]] = {
    "plan": _PLAN,
    "placement": _PLAN,
    "cluster": {"cluster": _text(cluster_toml)},
    "model": {
        "model": _text(lambda found: model_toml(found[0])),
        "graph": _json(lambda found: graph_document(*found)),
    },
}
