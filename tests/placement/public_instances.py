"""Tiny instances of the public formats, and where the published ones are."""

from pathlib import Path

import pytest

from problem.public_graphs import MsrInstance

WORKLOADS = Path(__file__).resolve().parents[2].parent / "shared" / "workloads"


def published(*parts: str) -> Path:
    """A published file; the test is skipped where there is none."""
    path = WORKLOADS.joinpath(*parts)
    if not path.exists():
        pytest.skip("the public workloads are not beside the repository")
    return path


def chain(
    times: list[float],
    output_ms: float | tuple[float, ...] = 1.0,
    accelerators: int = 2,
    cpus: int = 0,
    memory_bytes: int = 10**9,
    **changes: object,
) -> MsrInstance:
    """Nodes in a row; a CPU is ten times slower."""
    n = len(times)
    fields: dict[str, object] = {
        "name": "chain",
        "ids": tuple(map(str, range(n))),
        "accelerators": accelerators,
        "cpus": cpus,
        "memory_bytes": memory_bytes,
        "accelerator_ms": tuple(times),
        "cpu_ms": tuple(10 * time for time in times),
        "output_ms": output_ms if isinstance(output_ms, tuple) else (output_ms,) * n,
        "size_bytes": (1,) * n,
        "on_accelerator": (True,) * n,
        "backward": (False,) * n,
        "colour": tuple(map(str, range(n))),
        "edges": tuple((i, i + 1) for i in range(n - 1)),
    }
    return MsrInstance(**{**fields, **changes})
