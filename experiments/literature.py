"""Published numbers beside ours: what ``hiertrain figure literature`` does.

Every scenario file (``experiments/scenarios``) is simulated as it stands; nothing is fitted here. A row says what was
published, what we predict, how far off that is and what it may be, how many settings nobody published (``free``), and, of
a miss, why. Anchors are judged one by one: a setting that mends one and spoils another is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.scenario_file import FOLDER, Anchor, Scenario, job_of, scenarios
from simulator.result import SimulationResult
from simulator.simulate import simulate

#: Steps of a session; the level is fifo, which knows no lock-step of fair shares (docs/simulation.md, "Levels").
STEPS = 24


@dataclass(frozen=True)
class LiteratureRow:
    """One anchor.

    Parameters
    ----------
    anchor : int
        Its number in the project's list of published numbers.
    scenario, what, evidence : str
        File, what was measured, how it was read: ``read``, ``digitised``, ``raster`` (by eye).
    published, ours : float
        The numbers, in the unit that ``what`` says.
    other : float or None
        Ours under the other reading of what was not published.
    tolerance : float
        How far off ours may be.
    free : int
        Settings of the scenario that nobody published.
    miss : str
        Why ours is off; empty within the tolerance.
    """

    anchor: int
    scenario: str
    what: str
    evidence: str
    published: float
    ours: float
    other: float | None
    tolerance: float
    free: int
    miss: str

    @property
    def deviation(self) -> float:
        """Ours minus the published number."""
        return self.ours - self.published

    @property
    def met(self) -> bool:
        """Whether ours is within the tolerance."""
        return abs(self.deviation) <= self.tolerance


def literature_rows(
    watch: Callable[[str], None] | None = None, folder: Path = FOLDER, only: str = ""
) -> list[LiteratureRow]:
    """Simulate all scenarios and compare.

    Parameters
    ----------
    watch : callable, optional
        Told what is going on.
    folder : Path
        Where the scenario files are.
    only : str
        Part of the name of the files that are taken; all by default.
    """
    rows: list[LiteratureRow] = []
    for path, scenario in scenarios(folder):
        if only in path.name:
            found: dict[str, SimulationResult] = {}
            for case in scenario.cases:
                if watch is not None:
                    watch(f"{path.stem}: {case}")
                found[case] = simulated(scenario, case)
            rows += [_row(path.name, scenario, anchor, found) for anchor in scenario.anchors]
    return sorted(rows, key=lambda row: row.anchor)


def simulated(scenario: Scenario, case: str) -> SimulationResult:
    """Simulate one case, every group and rank by itself."""
    plan, costs = job_of(scenario, case)
    return simulate(plan, costs, steps=STEPS, record=False, fidelity="fifo", fold=False)


def _row(name: str, scenario: Scenario, anchor: Anchor, found: Mapping[str, SimulationResult]) -> LiteratureRow:
    row = LiteratureRow(
        anchor=anchor.number,
        scenario=name,
        what=anchor.what,
        evidence=anchor.evidence,
        published=anchor.published,
        ours=measured(anchor, [found[case] for case in anchor.cases]),
        other=measured(anchor, [found[case] for case in anchor.other]) if anchor.other else None,
        tolerance=anchor.tolerance * (abs(anchor.published) if anchor.relative else 1.0),
        free=len(scenario.free),
        miss="",
    )
    return row if row.met else LiteratureRow(**(vars(row) | {"miss": anchor.miss}))


def measured(anchor: Anchor, results: Sequence[SimulationResult]) -> float:
    """Return our number for an anchor."""
    match anchor.measure:
        case "ratio":
            return results[0].samples_per_second / results[1].samples_per_second
        case "gain":
            return 100 * (1 - results[0].samples_per_second / results[1].samples_per_second)
        case "milliseconds":
            return 1e3 * sum(results[0].time_split.values())
        case "utilisation":
            role, _, resource = anchor.resource.partition(".")
            return sum(100 * result.utilization[role][resource] for result in results) / len(results)


def literature_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as an aligned table, then for each scenario what was assumed for it, then why misses are misses."""
    lines = [f"{'anchor':>6}  {'what':<64} {'published':>9} {'ours':>7} {'other':>7} {'off':>7} {'may be':>6}  free"]
    lines += [_line(row) for row in rows]
    for path, scenario in scenarios():
        lines += ["", f"{path.name}: {scenario.title}", f"  source: {scenario.source}"]
        for kind, items in (("preset", scenario.presets), ("free", scenario.free), ("left out", scenario.left_out)):
            lines += [f"  {kind}: {item}" for item in items]
    missed = {(row["anchor"], row["miss"]) for row in rows if not row["met"]}
    lines += ["", *(f"anchor {anchor} missed: {why}" for anchor, why in sorted(missed))]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    other = "" if row["other"] is None else f"{row['other']:.2f}"
    mark = "" if row["met"] else "  missed"
    return (
        f"{row['anchor']:>6}  {row['what']:<64} {row['published']:>9.2f} {row['ours']:>7.2f} {other:>7} "
        f"{row['deviation']:>+7.2f} {row['tolerance']:>6.2f}  {row['free']}{mark}"
    )
