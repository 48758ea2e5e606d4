"""Conditions from a file: the fields of :class:`simulator.conditions.Conditions` in TOML, YAML or JSON.

worker_sigma = 0.1
nodes_per_rack = 8
oversubscription = 4.0

[slow_nodes]
g0-n1 = 2.0

[failures]
node_mtbf_seconds = 2.6e6
checkpoint_interval_seconds = 1800

[[losses]]
node = "g0-n1"
at_seconds = 120
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from cost_models.checked_json import build
from problem.documents import read_document
from problem.errors import BadInput
from problem.presets import nearest
from simulator.conditions import Checkpoints, Conditions, Failures, NodeLoss, Resize

_PARTS = {"failures": Failures, "losses": NodeLoss, "checkpoints": Checkpoints, "resizes": Resize}


def load_conditions(path: Path) -> Conditions:
    """Read a file of conditions.

    Raises
    ------
    BadInput
        The file cannot be read, a key is unknown, or a value is out of range; names file, field, value.
    """
    data = dict(read_document(path).data)
    _check_keys(path, "", data, Conditions)
    for name, kind in _PARTS.items():
        found = data.get(name)
        for part in found if isinstance(found, list) else [found]:
            if isinstance(part, dict):
                _check_keys(path, f"{name}.", part, kind)
    try:
        return build(Conditions, data, path)
    except BadInput as error:  # the checks of the classes do not know the file
        raise BadInput(path, error.field, error.value, error.allowed) from None


def _check_keys(path: Path, where: str, found: dict[str, object], kind: type) -> None:
    known = [field.name for field in fields(kind)]
    for key, value in found.items():
        if key not in known:
            raise BadInput(path, f"{where}{key}", value, f"unknown key; {nearest(key, known, 'keys')}")
