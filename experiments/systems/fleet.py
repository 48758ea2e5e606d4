"""Parts of the literature table that deserve a picture of their own: utilisation of a fleet, time saved by compression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from experiments.literature import literature_rows

Row = dict[str, Any]
Watch = Callable[[str], None]


def utilisation(watch: Watch) -> list[Row]:
    """How busy are trainers and servers, beside the published fleet?"""
    return [asdict(row) for row in literature_rows(watch, only="acun-fleet")]


def gains(watch: Watch) -> list[Row]:
    """How much time does compression save, by sparsity and threshold life, beside the published runs?"""
    return [asdict(row) for row in literature_rows(watch, only="dct-production")]
