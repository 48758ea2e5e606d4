"""``hiertrain presets``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hiertrain.output import emit


def command(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """List the models and clusters that come with hiertrain, with the source of their numbers.

    Example: hiertrain presets
    """
    from problem.presets import list_presets

    found = list_presets()
    rows = [(preset.name, preset.kind, preset.summary, preset.source) for preset in found]
    emit(
        as_json,
        {"presets": [asdict(preset) for preset in found]},
        lambda: "\n".join(
            f"{name:20} {kind:8} {summary}\n{'':29} source: {source}" for name, kind, summary, source in rows
        ),
    )
