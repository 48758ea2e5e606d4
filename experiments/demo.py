"""The main job on one machine: measure, plan, transform, simulate, run, compare. What ``hiertrain demo`` does.

One model, five plans on two nodes of this host: the one that the ILP chooses, and four by hand that show the kinds of
parallelism it chooses from. Each is simulated from measured costs and trained by real processes.
"""

from __future__ import annotations

import csv
import io
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.checked_json import write_json
from cost_models.profile import save_profile
from cost_models.profile_costs import profile_costs
from experiments.compare import Comparison, compare, measure_at, misranked
from experiments.planning import planned
from experiments.plots import plot_comparison
from placement.plan import DP, Plan, Sync
from placement.planfile import save_plan
from placement.result import PlacementResult
from placement.search.options import SolveOptions
from problem.cluster_io import load_cluster
from problem.local import this_node
from problem.readers import load_model
from problem.whole_file import made_folder
from programs.text import to_text
from programs.transform import transform
from simulator.perfetto import write_trace
from simulator.simulate import simulate

MODEL, CLUSTER = "demo", "local:2"
EASGD = Sync(mode="background", gap=8, alpha=0.45)  # alpha = 0.9 / groups (Zhang, Choromanska, LeCun, 2015)


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    Parameters
    ----------
    chosen : PlacementResult
        The ILP's plan with value, bound and gap.
    comparisons : tuple of Comparison
        All plans, the ILP's first.
    """

    chosen: PlacementResult
    comparisons: tuple[Comparison, ...]

    def to_json_dict(self) -> dict[str, Any]:
        """Return the figures, ready for ``json.dumps``."""
        return {
            "solve": self.chosen.as_dict(),
            "rows": [found.to_json_dict() for found in self.comparisons],
            "misranked": list(misranked(self.comparisons)),
        }


def demo(out: Path, *, rounds: int = 5, steps: int = 30, watch: Callable[[str], None] | None = None) -> Demo:
    """Run the whole chain and write its files into ``out``.

    Parameters
    ----------
    out : Path
        Folder for costs.json, plan.json and plan-N.json, programs.txt, timeline.json (Perfetto), rows.csv, manifest.json
        and comparison.png; the last three after every round.
    rounds, steps : int
        As in :func:`experiments.compare.compare`.
    watch : callable, optional
        Told what is going on.
    """
    tell = watch or (lambda news: None)
    made_folder(out)
    model, cluster = load_model(MODEL), load_cluster(CLUSTER)
    tell("measuring")
    profile = measure_at(model, model.batch)
    costs = profile_costs(profile, model, model.batch, this_node())
    tell("planning")
    chosen = planned(model, cluster, lambda batch, node: costs, SolveOptions(hogwild=1, max_replicas=1))
    tell("simulating")
    simulated = simulate(chosen.plan, costs)
    save_profile(profile, out / "costs.json")
    save_plan(out / "plan.json", chosen, costs)
    (out / "programs.txt").write_text(to_text(transform(chosen.plan)))
    if simulated.timeline is not None:
        write_trace(out / "timeline.json", simulated.timeline)
    plans = demo_plans(chosen.plan)
    for number, plan in enumerate(plans):
        save_plan(out / f"plan-{number}.json", plan, costs)

    def keep(comparisons: tuple[Comparison, ...]) -> None:
        document = Demo(chosen, comparisons).to_json_dict()
        write_rows(out, document, steps)
        plot_comparison(document["rows"], out / "comparison.png")

    return Demo(chosen, compare(plans, rounds=rounds, steps=steps, watch=watch, finished=keep))


def demo_plans(chosen: Plan) -> tuple[Plan, ...]:
    """Return the ILP's plan and four by hand, on the same two nodes, tables and batch."""
    nodes = next(group for group in chosen.groups)
    all_dp = dict.fromkeys(chosen.tags, DP)
    second_half = ("interaction", "top_0", "top_1", "top_2", "top_3")
    by_hand = replace(chosen, tags=all_dp, ranks=2, hogwild=1)
    return (
        replace(chosen, name="ILP's choice"),
        replace(by_hand, name="all-DP"),
        replace(by_hand, name="MP cut", ranks=1, tags=all_dp | dict.fromkeys(second_half, 1)),
        replace(by_hand, name="DP + MP, Hogwild 2", tags=all_dp | {"top_1": 1}, hogwild=2),
        replace(
            by_hand,
            name="two groups, EASGD",
            groups=tuple((node,) for node in nodes),
            ranks=1,
            sync=EASGD,
            sync_servers=chosen.servers[:1],
        ),
    )


def write_rows(out: Path, document: dict[str, Any], steps: int) -> None:
    """Write rows.csv and manifest.json: the figure can be rebuilt from them alone."""
    rows: Sequence[dict[str, Any]] = document["rows"]
    fields = [name for name, value in rows[0].items() if isinstance(value, str | int | float)]
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    (out / "rows.csv").write_text(text.getvalue())
    manifest = {
        "command": sys.argv,
        "model": MODEL,
        "cluster": CLUSTER,
        "steps": steps,
        "machine": this_node().kind,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **document,
    }
    write_json(manifest, out / "manifest.json")
