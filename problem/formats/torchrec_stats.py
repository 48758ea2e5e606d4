"""The report that TorchRec's planner prints (torchrec/distributed/planner/stats.py): its table of parameters as rows.

The report is text between ``#``; columns are aligned to the right, and a line of dashes below their names says where each
ends. The rows get the column names of :mod:`problem.formats.torchrec_csv`; the summary by rank and the predicted times are
not read.
"""

from __future__ import annotations

import re

from problem.documents import Document, Location
from problem.errors import BadInput

_NAMES = {
    "FQN": "table",
    "Sharding": "sharding",
    "Sum Pooling Factor": "sum_pooling_factor",
    "Emb Dim (CW Dim)": "emb_dim",
    "Hash Size": "hash_size",
    "Ranks": "ranks",
}


def parse_report(text: str, source: str) -> Document:
    """Return the parameters of a report, as ``{"tables": [{column: text}]}`` with the line of each.

    Raises
    ------
    BadInput
        When there is no table of parameters, or a column that is needed is not in it.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if re.match(r"#\s+FQN\s", line)), None)
    if start is None or start + 1 >= len(lines):
        raise BadInput(source, "Parameter Info", None, "a table of parameters that begins with FQN")
    ends = [match.end() for match in re.finditer(r"-{2,}", lines[start + 1])]
    header = [_NAMES.get(name, "") for name in _cells(lines[start], ends)]
    missing = [name for name, ours in _NAMES.items() if ours not in header]
    if missing:
        raise BadInput(f"{source}:{start + 1}", "columns", missing[0], "a report with this column")
    rows: list[dict[str, str]] = []
    numbers: dict[Location, int] = {}
    for number, line in enumerate(lines[start + 2 :], start=start + 3):
        cells = _cells(line, ends)
        if not cells[0]:
            break
        numbers[("tables", len(rows))] = number
        rows.append(_row(dict(zip(header, cells, strict=True))))
    return Document(source, {"tables": rows}, numbers)


def _cells(line: str, ends: list[int]) -> list[str]:
    return [line[begin:end].strip("# ") for begin, end in zip([0, *ends], ends, strict=False)]


def _row(cells: dict[str, str]) -> dict[str, str]:
    """Return a row: the table's own name, and dim and strip (``1024 (128)``) apart."""
    dim, _, strip = cells["emb_dim"].partition(" ")
    row = {**cells, "table": cells["table"].rpartition(".")[2], "emb_dim": dim, "cw_dim": strip.strip("()")}
    return {key: value for key, value in row.items() if key and value}
