"""THE DOOR: the public Python API.

    import hiertrain as ht

    model, cluster = ht.load_model("dlrm-kaggle"), ht.load_cluster("fb-1s-18c:32")
    result = ht.solve(model, cluster, options=ht.SolveOptions(max_replicas=4))
    prediction = ht.simulate(result.plan, result.costs)

Names are imported when they are first used, so that ``import hiertrain`` costs next to nothing; type checkers see them
all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models.profile import Profile, load_profile, save_profile
    from cost_models.roofline import roofline_costs as roofline
    from cost_models.sources import cost_source
    from executor.data.files import DataOptions, open_data
    from executor.data.rows import Passes
    from executor.profiler import measure_machine
    from executor.run import RunOptions, RunResult
    from executor.run import run as execute
    from experiments.compare import compare
    from placement.evaluation.evaluate import evaluate
    from placement.explain import explain
    from placement.plan import Plan
    from placement.planfile import load_plan, save_plan
    from placement.result import PlacementResult
    from placement.search.job import solve
    from placement.search.options import SolveOptions
    from problem.cluster import Cluster
    from problem.cluster_io import load_cluster
    from problem.errors import BadInput, HiertrainError
    from problem.model import Model
    from problem.presets import list_presets
    from problem.readers import load_model
    from programs.transform import transform
    from programs.verify import verify
    from simulator.result import SimulationResult
    from simulator.simulate import simulate

__version__ = "0.1.0"

_HOME = {
    "BadInput": "problem.errors",
    "Cluster": "problem.cluster",
    "DataOptions": "executor.data.files",
    "HiertrainError": "problem.errors",
    "Model": "problem.model",
    "Passes": "executor.data.rows",
    "PlacementResult": "placement.result",
    "Plan": "placement.plan",
    "Profile": "cost_models.profile",
    "RunOptions": "executor.run",
    "RunResult": "executor.run",
    "SimulationResult": "simulator.result",
    "SolveOptions": "placement.search.options",
    "compare": "experiments.compare",
    "cost_source": "cost_models.sources",
    "evaluate": "placement.evaluation.evaluate",
    "execute": "executor.run",
    "explain": "placement.explain",
    "list_presets": "problem.presets",
    "load_cluster": "problem.cluster_io",
    "load_model": "problem.readers",
    "load_plan": "placement.planfile",
    "load_profile": "cost_models.profile",
    "measure_machine": "executor.profiler",
    "open_data": "executor.data.files",
    "roofline": "cost_models.roofline",
    "save_plan": "placement.planfile",
    "save_profile": "cost_models.profile",
    "simulate": "simulator.simulate",
    "solve": "placement.search.job",
    "transform": "programs.transform",
    "verify": "programs.verify",
}
_RENAMED = {"execute": "run", "roofline": "roofline_costs"}

__all__ = [
    "BadInput",
    "Cluster",
    "DataOptions",
    "HiertrainError",
    "Model",
    "Passes",
    "PlacementResult",
    "Plan",
    "Profile",
    "RunOptions",
    "RunResult",
    "SimulationResult",
    "SolveOptions",
    "__version__",
    "compare",
    "cost_source",
    "evaluate",
    "execute",
    "explain",
    "list_presets",
    "load_cluster",
    "load_model",
    "load_plan",
    "load_profile",
    "measure_machine",
    "open_data",
    "roofline",
    "save_plan",
    "save_profile",
    "simulate",
    "solve",
    "transform",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hiertrain' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
