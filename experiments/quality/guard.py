"""Makes the table of ``cost_models.quality``: ``python -m experiments.quality.guard``.

Each codec at each place alone, on the task of the other studies; what those measured of DCT is taken from their rows.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cost_models.quality import FIELDS, TABLE
from experiments.quality.study import Study, run_study
from experiments.quality.tables import BASE, STEPS, measured
from experiments.quality.task import TOP_CUT, Planted, dlrm
from experiments.quality.trainer import Cell

Row = dict[str, Any]

#: Place, edge of a plan, codecs, ranks.
PLACES = (
    ("top cut", TOP_CUT, ("bf16", "rowwise8", "rowwise4", "rowwise2"), 1),
    ("pooled", "pooled", ("bf16", "rowwise8", "rowwise4"), 1),
    ("push", "push", ("bf16", "rowwise8", "rowwise4"), 1),
    ("allreduce", "allreduce", ("bf16",), 2),
)
#: Which rows of a figure are about which place: figure, families.
FIGURES = (
    (
        "dct-mp",
        {"DCT-MP, one cut": "bottom cut", "DCT-MP, one cut, Laplace": "bottom cut", "DCT-MP, two cuts": "two cuts"},
    ),
    ("dct-ablations", {"sketch of activations": "bottom cut", "top-k of their gradient": "bottom cut"}),
    ("dct-dp", {"DCT-DP": "allreduce", "DCT-DP, threshold of 1,000 steps": "allreduce"}),
    ("exchange-codecs", {"exchange": "exchange"}),
)


def measured_here() -> Iterator[Row]:
    """Train every place and codec."""
    points = [
        (place, codec, Cell(f"{place} {codec}", {e: codec}, r)) for place, e, codecs, r in PLACES for codec in codecs
    ]
    study = Study(Planted(dlrm(), STEPS), (BASE, *(cell for _, _, cell in points)))
    runs = run_study(study, lambda news: print(news, file=sys.stderr))
    for place, codec, cell in points:
        yield {"place": place, "codec": codec, "steps": STEPS} | measured(runs, cell.name)


def taken_from(folder: Path) -> Iterator[Row]:
    """Rows of figures that were made before into a folder."""
    for figure, places in FIGURES:
        with (folder / f"{figure}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if row["family"] in places:
                    yield row | {
                        "place": places[row["family"]],
                        "codec": row["codecs"].split(", ")[0].partition("=")[2],
                    }


def main() -> None:
    """Write the table; the argument is the folder of the figures."""
    rows = [*measured_here(), *taken_from(Path(sys.argv[1]))]
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            row | {key: f"{float(row[key]):.3f}" for key in ("wire", "change", "low", "high")} for row in rows
        )


if __name__ == "__main__":
    main()
