"""How closely time is followed: three levels, one scenario.

========  ==========================================================================================
``bound``  closed form: bottleneck bound and mean value analysis; milliseconds (``simulator.bound``)
``fifo``   discrete events; cores and NICs pass one job after the other (``simulator.fifo``)
``fluid``  discrete events; cores and NICs are shared fairly (``simulator.shared``, ``simulator.network``)
``auto``   fluid where that is affordable, else fifo
========  ==========================================================================================
"""

from __future__ import annotations

from enum import StrEnum

from programs.instructions import AllReduce, Recv, Send
from programs.transform import JobPrograms
from simulator.folding import Folding


class Fidelity(StrEnum):
    """Level of a simulation."""

    AUTO = "auto"
    BOUND = "bound"
    FIFO = "fifo"
    FLUID = "fluid"


#: Classes of flows times messages, over a run, above which ``auto`` takes fifo: about a minute at most. Measured: 0.06 to
#: 0.4 us each, from 64 servers to 8 (docs/simulation.md, "Speed").
AFFORDABLE = 100_000_000
#: Where ``fluid`` is asked for above that, shares of messages are worked out so many times in the core time of a step: a
#: message is late by two time steps at most in each of the three stages of its way to a server and back
#: (docs/simulation.md, "Large plans").
TIME_STEPS = 1000
#: Steps by which that is judged at most: a run to an interval ends long before.
JUDGED_STEPS = 60


def choose(fidelity: Fidelity, job: JobPrograms, folding: Folding, steps: int) -> Fidelity:
    """Return the level that is used: the one asked for, or what ``auto`` finds affordable."""
    if fidelity is not Fidelity.AUTO:
        return fidelity
    return Fidelity.FLUID if fluid_work(job, folding) * steps <= AFFORDABLE else Fidelity.FIFO


def fluid_work(job: JobPrograms, folding: Folding) -> int:
    """Messages of a step times the classes of flows (pairs of machines) that may be active together."""
    plan, slices = job.plan, 1 if folding.merged else job.plan.ranks - 1
    messages, classes = 0, 0
    for session in job.sessions[:: folding.ranks]:
        for program in session.programs:
            ends = [i for i in program.instructions if isinstance(i, Send | Recv)]
            reduces = sum(isinstance(i, AllReduce) for i in program.instructions)
            messages += sum(isinstance(i, Send) for i in ends) + 2 * slices * reduces
            classes += len({(type(i), i.peer) for i in ends if isinstance(i, Send)}) + min(1, reduces) * slices
    groups = folding.simulated_groups(plan)
    return messages * plan.hogwild * groups * classes * groups
