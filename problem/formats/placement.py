"""A placement of tables that another tool decided: which part of which table is on which device.

Pure data. A part may be given by rows, by columns, or not at all (the whole table); ``placement.foreign`` turns it into a
plan of ours once model and machines are known.
"""

from __future__ import annotations

from dataclasses import dataclass

from problem.model import Model


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """A part of a table on a device.

    Parameters
    ----------
    table : str
        Name of the table.
    device : int
        Number of the device (rank).
    rows, columns : (int, int) or None
        Begin and end (exclusive); None for all of them.
    """

    table: str
    device: int
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None


@dataclass(frozen=True)
class Placement:
    """Where another tool put the tables of a model.

    Parameters
    ----------
    name : str
        Name of the placement.
    devices : int
        Number of devices.
    shards : tuple of PlacedShard
        Parts of the tables.
    model : Model or None
        The model, where the file describes the tables too.
    notes : tuple of str
        What was dropped or interpreted, for printing.
    """

    name: str
    devices: int
    shards: tuple[PlacedShard, ...]
    model: Model | None = None
    notes: tuple[str, ...] = ()
