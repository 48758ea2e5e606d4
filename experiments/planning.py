"""Plans for figures, benchmarks and the demo: a search that Ctrl-C cut short gives no row, it ends the whole.

Knows the search only; what is asked of a plan is its callers'.
"""

from __future__ import annotations

from cost_models.sources import CostsFor
from placement.result import PlacementResult
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster import Cluster
from problem.model import Model


def planned(model: Model, cluster: Cluster, costs_for: CostsFor | None, options: SolveOptions) -> PlacementResult:
    """Return a plan whose search came to its own end.

    Parameters
    ----------
    model, cluster, costs_for, options
        As of :func:`placement.search.job.solve`.

    Raises
    ------
    KeyboardInterrupt
        If the search was interrupted: the best plan so far is not what was asked for.
    """
    result = solve(model, cluster, costs_for, options)
    if result.interrupted:
        raise KeyboardInterrupt
    return result
