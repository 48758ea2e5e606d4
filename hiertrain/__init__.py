"""THE DOOR: the public Python API.

    import hiertrain as ht

    model, cluster = ht.load_model("dlrm-kaggle"), ht.load_cluster("fb-1s-18c:32")
    result = ht.solve(model, cluster, ht.roofline, ht.SolveOptions(max_replicas=4))
    prediction = ht.simulate(result.plan, result.costs)

Names are imported when they are first used, so that ``import hiertrain`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "load_model": "problem.readers",
    "load_cluster": "problem.cluster_io",
    "list_presets": "problem.presets",
    "Model": "problem.model",
    "Cluster": "problem.cluster",
    "Plan": "placement.plan",
    "SolveOptions": "placement.shapes",
    "solve": "placement.search",
    "save_plan": "placement.planfile",
    "load_plan": "placement.planfile",
    "roofline": "cost_models.roofline",
    "transform": "programs.transform",
    "verify": "programs.verify",
    "simulate": "simulator.simulate",
    "execute": "executor.run",
    "RunOptions": "executor.run",
    "measure_machine": "executor.profiler",
    "compare": "experiments.compare",
}
_RENAMED = {"execute": "run", "roofline": "roofline_costs"}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604 (names of the table above)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hiertrain' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
