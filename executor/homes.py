"""On which machine of a plan a worker runs, and which machine holds a parameter.

Workers of one machine see one copy of what it holds, so they must be able to share memory. Knows nothing of processes.
"""

from __future__ import annotations

from programs.instructions import Role
from programs.workers import Worker

#: A machine of a plan: ``("node", group, node)``, ``("server", index, 0)`` or ``("sync", index, 0)``.
Home = tuple[str, int, int]


def node_home(group: int, node: int) -> Home:
    """Machine ``node`` of a group."""
    return ("node", group, node)


def server_home(server: int) -> Home:
    """Machine of an embedding server."""
    return ("server", server, 0)


def sync_home(server: int) -> Home:
    """Machine of a sync server."""
    return ("sync", server, 0)


def home_of(worker: Worker) -> Home:
    """Machine that a worker runs on."""
    if worker.role == "sync":
        return sync_home(worker.rank)
    if worker.place is None:
        return node_home(worker.group, worker.rank)
    if worker.place.role is Role.SERVER:
        return server_home(worker.place.index)
    return node_home(worker.group, worker.place.index)


def show_home(home: Home) -> str:
    """Return a machine as people read it: ``g0/n1``, ``ps0``, ``sync0``."""
    kind, first, second = home
    return {"node": f"g{first}/n{second}", "server": f"ps{first}", "sync": f"sync{first}"}[kind]
