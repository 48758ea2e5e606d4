"""``hiertrain profile``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from executor.coretype import settle
from hiertrain.output import emit, progress, table
from problem.whole_file import check_target

if TYPE_CHECKING:
    from cost_models.fit import Residual
    from cost_models.profile import Profile


def command(
    model: Annotated[str, typer.Argument(help="Preset, or a file (.toml, .csv, .json, .onnx, ..).")],
    out: Annotated[Path, typer.Option("--out", help="File to write the profile to.")],
    max_rows: Annotated[int | None, typer.Option(min=1, help="Cap the rows of every table (ids are hashed).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer batch sizes, and no other shapes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure what the model's operators, lookups and messages cost on this machine, and how far the fit is off.

    Example: hiertrain profile dlrm-kaggle --max-rows 100000 --out costs.json
    """
    with progress("looking for the fastest kernels of OpenBLAS"):
        settle(measured=True)
    from cost_models.profile import save_profile
    from executor.profiler import BATCHES, QUICK, measure_machine
    from hiertrain.loading import read_model, shapes_to_fit

    check_target(out)
    with progress("measuring") as watch:
        loaded = read_model(model, max_rows)
        profile = measure_machine(loaded, () if quick else shapes_to_fit(), QUICK if quick else BATCHES, watch=watch)
    save_profile(profile, out)
    residuals = {name: asdict(found) for name, found in sorted(profile.batch_residuals.items())}
    shapes = {name: asdict(found) for name, found in sorted(profile.shape_residuals.items())}
    document = {
        "machine": profile.machine,
        "date": profile.date,
        "batches": residuals,
        "shapes": shapes,
        "out": str(out),
    }
    emit(as_json, document, lambda: _text(profile, out))


def _text(profile: Profile, out: Path) -> str:
    names = sorted(profile.batch_residuals)
    rows = [
        (name, *_errors(profile.batch_residuals.get(name)), *_errors(profile.shape_residuals.get(name)))
        for name in names
    ]
    head = ["held-out error of", "batch: median", "95 %", "shape: median", "95 %"]
    lines = [f"machine  {profile.machine}", f"date     {profile.date}", "", table(head, rows), "", f"written to {out}"]
    return "\n".join(lines)


def _errors(residual: Residual | None) -> tuple[str, str]:
    return ("-", "-") if residual is None else (f"{100 * residual.median:.1f} %", f"{100 * residual.p95:.1f} %")
