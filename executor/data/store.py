"""Rows of a click log kept on disk as arrays, for files that are larger than memory and are read many times.

A store is a folder: ``labels.f32`` (N,), ``dense.f32`` (N, F), ``ids.i32`` (N, tables), and ``store.json``, which is
written last and says of which file, for which tables. Reading maps the files into memory, so that processes that read one
store share its pages. Knows Criteo's layouts alone, whose rows all have the same number of ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from executor.data.criteo import CATEGORIES, COUNTS, criteo_chunks
from executor.data.rows import Rows
from problem.errors import BadInput
from problem.model import Model
from problem.whole_file import made_folder, whole_file

_NAMES = ("labels.f32", "dense.f32", "ids.i32")


def store_criteo(
    path: str | Path, model: Model, folder: Path, limit: int | None = None, watch: Callable[[str], None] | None = None
) -> int:
    """Keep the rows of a file in Criteo's layout in ``folder``; return how many. What is there of the same file is kept.

    Parameters
    ----------
    path : str or Path
        The file.
    model : Model
        Its tables have the rows that categories are hashed to.
    folder : Path
        Where to.
    limit : int, optional
        Keep at most so many rows.
    watch : callable, optional
        Told how far it is.

    Raises
    ------
    BadInput
        The file is not as ``data.criteo`` says, or there can be no such folder.
    """
    made_folder(folder)
    described, meta = described_store(path, model, limit), folder / "store.json"
    if (known := _read(meta)) is not None and known["of"] == described:
        return int(known["rows"])
    meta.unlink(missing_ok=True)
    rows = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in _NAMES]
        for chunk in criteo_chunks(path, model, limit):
            for file, array in zip(files, chunk, strict=True):
                file.write(np.ascontiguousarray(array).data)
            rows += len(chunk[0])
            if watch is not None:
                watch(f"{rows:,} rows read")
    with whole_file(meta) as out:
        json.dump({"of": described, "rows": rows}, out)
    return rows


def open_store(folder: Path, model: Model) -> Rows:
    """Return the rows of a store.

    Raises
    ------
    BadInput
        There is no complete store.
    """
    known = _read(folder / "store.json")
    if known is None:
        raise BadInput(folder, "store", "store.json", "a folder that was filled by store_criteo")
    rows = known["rows"]
    labels, dense, ids = (folder / name for name in _NAMES)
    return Rows(
        _mapped(dense, np.float32, (rows, COUNTS)),
        dict(_columns(model, _mapped(ids, np.int32, (rows, CATEGORIES)))),
        _mapped(labels, np.float32, (rows,)),
    )


def _mapped(path: Path, kind: type[np.generic], shape: tuple[int, ...]) -> Any:
    return np.memmap(path, kind, "r", shape=shape)


def _columns(model: Model, ids: Any) -> Iterator[tuple[str, Any]]:
    for number, name in enumerate(model.feature):
        yield name, ids[:, number : number + 1]


def described_store(path: str | Path, model: Model, limit: int | None) -> dict[str, Any]:
    """Return what decides about the contents of a store: the file as it is now, the tables, and the limit.

    Raises
    ------
    BadInput
        There is no such file.
    """
    try:
        found = Path(path).stat()
    except OSError as error:
        raise BadInput(path, "file", error.strerror, "must be a readable text file in Criteo's layout") from error
    sizes = [feature.rows for feature in model.feature.values()]
    return {
        "file": str(Path(path).resolve()),
        "bytes": found.st_size,
        "changed": found.st_mtime_ns,
        "tables": sizes,
        "limit": limit,
    }


def _read(meta: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(meta.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"of", "rows"} <= set(found) else None
