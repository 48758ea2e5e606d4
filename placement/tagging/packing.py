"""Whether the operators of a group fit its nodes at all: memory alone, as a packing problem.

What an item holds is counted, the buffers of messages are not, so where there is no packing there is no placement. Where
there is one, it is changed until messages find room as well (``easing``), and the exact count of memory judges it. Equal
items are counted, not named. Knows sizes, and no times.

    minimise    sum of (m_c + b_c) n_cp + R r_c n_c,DP           all memory, all neighbours of MP items being elsewhere
    subject to  sum over p of n_cp = items of class c            (P1)
                sum of c: m_c n_cp + r_c n_c,DP <= room of p     (P2) DP items on ranks only
                n_cp = 0 where p is forbidden for class c        (P3)
                at most k of those that hold more than 1/(k + 1) of the room of p are on p,  k = 1, 2, 3    (P4)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ortools.sat.python import cp_model

from cost_models.memory import parameter_bytes, resident_bytes
from placement.deadline import Deadline
from placement.evaluation.group import GroupProblem
from placement.evaluation.loads import fixed_tally, session_memory, tally
from placement.plan import DP, Tag
from placement.tagging.easing import eased, nearest
from placement.tagging.nets import Contracted

#: Solver work for one packing, in OR-tools' deterministic seconds, and the gap that is good enough.
WORK, GOOD_GAP = 2.0, 0.05
#: How many large items a node may hold (P4).
MANY = (1, 2, 3)
#: Bytes that the solver counts in; sizes are rounded down, and room up.
UNIT = 4096

#: Bytes of an item as an MP operator, of its copy on each rank as a DP operator, and of the buffers of its messages as an MP
#: operator whose neighbours are all elsewhere.
Size = tuple[int, int, int]
#: Items of one size and one set of tags.
Class = tuple[Size, tuple[Tag, ...]]


@dataclass(frozen=True, slots=True)
class Packing:
    """What is known about a group's memory.

    Parameters
    ----------
    tags : dict of str to Tag or None
        A placement that fits, if one was found.
    impossible : bool
        Whether it is proven that there is none.
    interrupted : bool
        Whether the user stopped the solver.
    """

    tags: dict[str, Tag] | None = None
    impossible: bool = False
    interrupted: bool = False


def pack(contracted: Contracted, deadline: Deadline, seed: int = 0, start: Mapping[str, Tag] | None = None) -> Packing:
    """Find a placement that fits, or prove that there is none, by sizes alone.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    deadline : Deadline
        When to stop; a first packing is made in any case.
    seed : int
        Of the solver.
    start : Mapping of str to Tag, optional
        A placement that might be near one that fits; tags that items may not have are changed.
    """
    if overfull(contracted):
        return Packing(impossible=True)
    packer = _Packer(contracted)
    status, tags = packer.solved(deadline, seed)
    if status == cp_model.INFEASIBLE:
        return Packing(impossible=True)
    for known in (start, packer.gaining(tags or {}), tags):
        found = eased(contracted, nearest(contracted, known), deadline, seed) if known is not None else None
        if found is not None and has_room(contracted.problem, found):
            return Packing(found)
    return Packing()


def overfull(contracted: Contracted) -> bool:
    """Whether an item has no tag, or those that have no other tag are too much for a node: it takes no solver to see."""
    return bool(contracted.barred) or min(_Packer(contracted).room) < 0


def impossible(contracted: Contracted, deadline: Deadline, seed: int = 0) -> bool:
    """Whether it is proven that no placement fits.

    Parameters
    ----------
    contracted : Contracted
        The group problem.
    deadline : Deadline
        When to stop.
    seed : int
        Of the solver.
    """
    if overfull(contracted):
        return True
    return _Packer(contracted).solved(deadline, seed, any_will_do=True)[0] == cp_model.INFEASIBLE


def has_room(problem: GroupProblem, tags: Mapping[str, Tag]) -> bool:
    """Whether every node of a group has the memory that a placement needs."""
    held = tally(problem, tags).memory
    return all(held[at] <= node.memory_bytes for at, node in enumerate(problem.nodes))


class _Packer:
    """The packing problem of one group."""

    def __init__(self, contracted: Contracted) -> None:
        self.data, self.problem = contracted, contracted.problem
        fixed = fixed_tally(self.problem).memory
        self.room = [node.memory_bytes - fixed[at] for at, node in enumerate(self.problem.nodes)]
        for index, item in enumerate(contracted.items):
            if item.fixed is not None:
                self._hold(index, item.fixed)

    def _hold(self, index: int, tag: Tag) -> None:
        alone, copy, _ = self.sizes[index]
        for at in range(self.problem.ranks) if tag == DP else (int(tag),):
            self.room[at] -= copy if tag == DP else alone

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        """Sizes of all items."""
        return tuple(self._size(item.ops) for item in self.data.items)

    def _size(self, names: tuple[str, ...]) -> Size:
        problem, ops = self.problem, [self.problem.model.graph[name] for name in names]
        resident = sum(resident_bytes(op, problem.model) for op in ops)
        session = sum(session_memory(problem, op) for op in ops)
        reduced = sum(parameter_bytes(op) for op in ops) if problem.ranks > 1 else 0
        ends = {*names, *(name for op in ops for name in op.inputs)}
        passed = 2 * sum(problem.bytes_of(name) for name in ends)
        alone = resident + problem.sessions * session
        return alone, resident + problem.hogwild * (session + reduced), problem.sessions * passed

    def _total(self, size: Size, tag: Tag) -> int:
        """Bytes of an item on all nodes together, at most."""
        return self.problem.ranks * size[1] if tag == DP else size[0] + size[2]

    def gaining(self, tags: Mapping[str, Tag]) -> dict[str, Tag]:
        """Return tags of items that hold less on a node than on all ranks, whoever their neighbours are."""
        gain = [i for i in self.data.free if self._total(self.sizes[i], 0) < self._total(self.sizes[i], DP)]
        return {op: tags[op] for i in gain for op in self.data.items[i].ops if op in tags}

    @cached_property
    def classes(self) -> Mapping[Class, list[int]]:
        """Open items by class."""
        found: dict[Class, list[int]] = {}
        for index, tags in self.data.allowed.items():
            found.setdefault((self.sizes[index], tags), []).append(index)
        return found

    def solved(
        self, deadline: Deadline, seed: int, *, any_will_do: bool = False
    ) -> tuple[cp_model.CpSolverStatus, dict[str, Tag] | None]:
        """Return the solver's status and a packing: a good one, or any."""
        model, counts = cp_model.CpModel(), dict[tuple[Class, Tag], cp_model.IntVar]()
        for number, (kind, members) in enumerate(self.classes.items()):
            for tag in kind[1]:
                counts[kind, tag] = model.new_int_var(0, len(members), f"n[{number},{tag}]")
            model.add(sum(counts[kind, tag] for tag in kind[1]) == len(members)).with_name(f"(P1) class {number}")
        for at, room in enumerate(self.room):
            self._fill(model, counts, at, max(-1, int(room // UNIT + 1)))
        if not any_will_do:
            held = [self._total(kind[0], tag) // UNIT * count for (kind, tag), count in counts.items()]
            model.minimize(sum(held))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False
        solver.parameters.random_seed = seed
        solver.parameters.linearization_level = 2
        solver.parameters.relative_gap_limit = GOOD_GAP
        solver.parameters.max_deterministic_time = WORK
        solver.parameters.max_time_in_seconds = min(3600.0, max(0.1, deadline.left))
        status = solver.solve(model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return status, None
        return status, self._tags({key: solver.value(count) for key, count in counts.items()})

    def _fill(
        self, model: cp_model.CpModel, counts: Mapping[tuple[Class, Tag], cp_model.IntVar], at: int, room: int
    ) -> None:
        """(P2) A node holds no more than it has room for; (P4) nor too many large items, which says no more, but sooner."""
        units = {key: self._units(key[0][0], key[1], at) for key in counts}
        held = sum(units[key] * count for key, count in counts.items())
        model.add(held <= room).with_name(f"(P2) memory {at}")
        for most in MANY:
            large = [count for key, count in counts.items() if units[key] * (most + 1) > room]
            model.add(sum(large) <= most).with_name(f"(P4) {most} of node {at}")

    def _units(self, size: Size, tag: Tag, at: int) -> int:
        """What an item of a size holds on a node."""
        if (at >= self.problem.ranks) if tag == DP else (tag != at):
            return 0
        most = self.problem.nodes[at].memory_bytes // UNIT + 2  # more than the node has is too much, whatever it is
        return min((size[1] if tag == DP else size[0]) // UNIT, most)

    def _tags(self, counts: Mapping[tuple[Class, Tag], int]) -> dict[str, Tag]:
        """Tags of all operators."""
        tags = {op: item.fixed for item in self.data.items if item.fixed is not None for op in item.ops}
        left = {kind: list(members) for kind, members in self.classes.items()}
        for (kind, tag), count in counts.items():
            for index in left[kind][:count]:
                tags |= dict.fromkeys(self.data.items[index].ops, tag)
            del left[kind][:count]
        return self.data.canonical(tags)
