"""The page of a plan: one HTML file with everything in it, which a browser opens from the file system.

Knows the order of what is shown: what is predicted, where everything is, timelines, group sizes, what would change it, what
went in. Style and script are files beside this module, folded into the page; nothing is fetched when it is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from executor.run import RunResult
from experiments.report.charts import curve_chart, timelines
from experiments.report.markup import Html, element, folded, join, milliseconds, rate, section, size, table
from experiments.report.picture import picture
from placement.explain import Explanation, explain
from placement.planfile import LoadedPlan, plan_to_json
from problem.whole_file import whole_file
from programs.timeline import Timeline
from programs.transform import transform
from simulator.result import SimulationResult


@dataclass(frozen=True)
class ReportInput:
    """What a page is made of.

    Parameters
    ----------
    loaded : LoadedPlan
        The plan, its costs, and what its file says of the search.
    simulated : SimulationResult
        Its simulation, with a timeline.
    measured : RunResult or None
        A run of it, if there was one.
    """

    loaded: LoadedPlan
    simulated: SimulationResult
    measured: RunResult | None = None


def write_report(path: str | Path, found: ReportInput) -> None:
    """Write the page of a plan; the file appears complete or not at all.

    Parameters
    ----------
    path : str or Path
        File to write.
    found : ReportInput
        What is shown.

    Raises
    ------
    BadInput
        When the folder does not exist.
    """
    text = page(found)
    with whole_file(path) as file:
        file.write(text)


def page(found: ReportInput) -> str:
    """Return the page of a plan as HTML."""
    loaded = found.loaded
    why = explain(loaded.plan, loaded.costs, loaded.result)
    sections = [
        section("where", "Where everything is", picture(loaded.plan, transform(loaded.plan), why)),
        section("when", "A few steps", _timelines(found)),
        section("size", "Group sizes", curve_chart(why.curve, loaded.plan.group_size)),
        section("why", "What binds, and what would change it", *_changes(why, loaded.result)),
        section("left-out", "What the prediction leaves out", _list(found.simulated.left_out)),
        section("inputs", "What went in", *_inputs(loaded)),
    ]
    title = f"Plan of {loaded.plan.model.name}"
    head = join(
        [
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width"),
            element("title", title),
            element("style", Html(_resource("page.css"))),
        ]
    )
    main = element("main", element("h1", title), _navigation(), _figures(found, why), *sections)
    body = element("body", main, element("script", Html(_resource("page.js"))))
    return f"<!doctype html>\n{element('html', element('head', head), body, lang='en')}\n"


def _resource(name: str) -> str:
    return files("experiments.report").joinpath(name).read_text(encoding="utf-8")


def _navigation() -> Html:
    names = (("where", "Where"), ("when", "Timelines"), ("size", "Group sizes"), ("why", "Why"), ("inputs", "Inputs"))
    return element("nav", *(element("a", words, href=f"#{anchor}") for anchor, words in names), aria_label="Page")


def _figures(found: ReportInput, why: Explanation) -> Html:
    """Return the main numbers."""
    items = [element("li", element("b", value), name) for name, value in _numbers(found, why)]
    return element("ul", *items, class_="figures")


def _numbers(found: ReportInput, why: Explanation) -> Iterator[tuple[str, str]]:
    plan, result = found.loaded.plan, found.loaded.result
    groups = f"{len(plan.groups)} of {plan.group_size} nodes"
    yield "samples/s, planned", rate(why.evaluation.samples_per_second)
    simulated = found.simulated.samples_per_second
    yield f"samples/s, simulated (+- {100 * found.simulated.ci95 / simulated:.1f} %)", rate(simulated)
    if found.measured is not None:
        yield "samples/s, measured here (cpu clock)", rate(found.measured.samples_per_second)
    if result.get("samples_per_second_bound"):
        yield f"samples/s, proven bound (gap {100 * result['gap']:.2f} %)", rate(result["samples_per_second_bound"])
    yield "groups", groups
    yield "threads a rank, samples a batch", f"{plan.hogwild} x {plan.batch}"
    yield "embedding and sync servers", f"{len(plan.servers)} + {len(plan.sync_servers)}"
    yield "tables", f"{len(plan.model.tables)}, {size(sum(t.total_bytes for t in plan.model.tables))}"


def _timelines(found: ReportInput) -> Html:
    shown: list[tuple[str, Timeline]] = []
    if found.simulated.timeline is not None:
        shown.append(("predicted", found.simulated.timeline))
    if found.measured is not None:
        shown.append((f"measured ({found.measured.clock.value} clock)", found.measured.timeline))
    words = "Predicted from the costs in the plan file. "
    if found.measured is None:
        words += "The plan has not been run for this page; --measure does that."
    else:
        words += "The two are comparable if these were measured on this machine (hiertrain profile)."
    return join([element("p", words), timelines(shown)])


def _changes(why: Explanation, result: Mapping[str, Any]) -> Iterator[Html]:
    yield element("p", element("strong", why.evaluation.bottleneck))
    rows = [(r.change, rate(r.samples_per_second), f"{r.ratio:.2f}", r.bottleneck) for r in why.what_if]
    yield table("What if", ("change", "samples/s", "ratio", "then binds"), rows)
    loads = [
        (row.node, row.role, row.resource, milliseconds(row.seconds), f"{100 * row.utilization:.0f} %")
        for row in why.loads
        if row.seconds > 0
    ]
    yield table("Loads", ("machine", "role", "resource", "ms a step", "busy"), loads)
    baselines = result.get("baselines") or []
    if baselines:
        rules = [(b["name"], rate(b["samples_per_second"]), b.get("reason") or "-") for b in baselines]
        yield table("Simple rules", ("rule", "samples/s", "why it does not fit"), rules)


def _list(sentences: Sequence[str]) -> Html:
    return element("ul", *(element("li", sentence) for sentence in sentences))


def _inputs(loaded: LoadedPlan) -> Iterator[Html]:
    model = loaded.plan.model
    ops = [(op.name, op.kind.value, ", ".join(op.inputs), op.width, f"{op.parameters:,}") for op in model.graph]
    yield folded(
        f"Operators of {model.name} ({len(ops)})",
        table("Operators", ("operator", "kind", "inputs", "width", "parameters"), ops),
    )
    tables = [(t.name, f"{t.rows:,}", t.dim, t.pooling_factor, t.optimizer, size(t.total_bytes)) for t in model.tables]
    yield folded(
        f"Tables ({len(tables)})",
        table("Tables", ("table", "rows", "dim", "ids a sample", "optimizer", "bytes"), tables),
    )
    yield folded("Assumptions", _list([*model.notes, *loaded.result.get("assumptions", [])]))
    yield folded("Plan file", element("pre", json.dumps(plan_to_json(loaded.plan), indent=1)))
