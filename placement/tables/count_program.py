"""The integer program of table sharding, (S1)-(S6), over counts of equal pieces.

Problem, sets and data: see ``sharding``. Variables: x_jp, how many pieces of class j (equal demand and bytes, no rules)
are on server p; Z. A piece with rules is a class of its own. Coefficients are rounded down to 1e-7 of the best known
load, so the bound holds, and what is proposed is judged by the state's own arithmetic.
"""

from __future__ import annotations

from collections import Counter
from math import floor

from ortools.sat.python import cp_model

from placement.tables.pieces import Piece
from placement.tables.shard_state import Sharding

#: Units in which the best known load is counted.
SCALE = 10**7


class CountProgram:
    """The program for pieces that are placed already, and their places as the start.

    Parameters
    ----------
    state : Sharding
        All pieces are placed; cut tables stay where they are.
    bound : float
        Seconds that are proven already.
    gap : float
        Relative gap at which to stop.
    """

    def __init__(self, state: Sharding, bound: float, gap: float) -> None:
        self.state, self.gap = state, gap
        self.best = state.seconds
        self.classes = classes_of(state)
        self.servers = range(len(state.nodes))
        self.model = cp_model.CpModel()
        self.z = self.model.new_int_var(floor(bound / self.best * SCALE), SCALE, "Z")
        self.x = {
            (j, p): self.model.new_int_var(0, len(members), f"x[{j},{p}]")
            for j, members in enumerate(self.classes)
            for p in self.servers
        }
        self._placed()
        self._loads()
        self._rules()
        self.model.minimize(self.z)

    def _placed(self) -> None:
        """(S1) Every piece is placed; the start is where it is now."""
        for j, members in enumerate(self.classes):
            total = sum(self.x[j, p] for p in self.servers)
            self.model.add(total == len(members)).with_name(f"(S1) {members[0].key}")
            had = Counter(self.state.at[piece.key] for piece in members)
            for p in self.servers:
                self.model.add_hint(self.x[j, p], had[p])

    def _loads(self) -> None:
        """(S2) Each resource of a server takes at most Z; (S3) memory."""
        state = self.state
        demands = [state.demand(members[0]) for members in self.classes]
        sizes = [state.bytes_of(members[0]) for members in self.classes]
        fixed, room = state.load.copy(), state.room.copy()
        for j, members in enumerate(self.classes):
            for piece in members:
                fixed[state.at[piece.key]] -= demands[j]
                room[state.at[piece.key]] += sizes[j]
        for p in self.servers:
            for part, rate in enumerate(state.rates[p]):
                units = [floor(d[part] / rate / self.best * SCALE) for d in demands]
                rest = max(0, floor(fixed[p, part] / rate / self.best * SCALE))
                total = sum(u * self.x[j, p] for j, u in enumerate(units) if u)
                self.model.add(total + rest <= self.z).with_name(f"(S2) {part},{p}")
            held = sum(size * self.x[j, p] for j, size in enumerate(sizes))
            self.model.add(held <= int(room[p])).with_name(f"(S3) {p}")

    def _rules(self) -> None:
        """(S4) Pinned pieces are on their server; (S5) of tables kept apart, a server holds pieces of one only.

        (S6) No piece is on a server that is forbidden.
        """
        rules = self.state.rules
        for j, members in enumerate(self.classes):
            for p in self.state.barred(members[0]).nonzero()[0].tolist():
                self.model.add(self.x[j, p] == 0).with_name(f"(S6) {members[0].key},{p}")
        for j, members in enumerate(self.classes):
            pinned = rules.server_of(table.name for table in members[0].tables)
            for p in self.servers if pinned is not None else ():
                if p != pinned:
                    self.model.add(self.x[j, p] == 0).with_name(f"(S4) {members[0].key},{p}")
        for apart in rules.apart:
            here = [j for j, members in enumerate(self.classes) if any(t.name in apart for t in members[0].tables)]
            taken = {shard.server for shard in self.state.cuts if shard.table in apart}
            for p in self.servers:
                most = 0 if p in taken else 1
                self.model.add(sum(self.x[j, p] for j in here) <= most).with_name(f"(S5) {','.join(apart)},{p}")

    def solve(
        self, deterministic_seconds: float, seconds: float = float("inf")
    ) -> tuple[dict[tuple[str, int], int], float]:
        """Return the server of each piece (empty if nothing was found) and the proven bound in seconds.

        Parameters
        ----------
        deterministic_seconds, seconds : float
            Limits of the solver's work, and of the clock.
        """
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = deterministic_seconds
        if seconds < float("inf"):
            solver.parameters.max_time_in_seconds = max(0.0, seconds)
        solver.parameters.relative_gap_limit = self.gap
        status = solver.solve(self.model)
        bound = max(0.0, solver.best_objective_bound) / SCALE * self.best
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return {}, bound if status == cp_model.UNKNOWN else 0.0
        chosen: dict[tuple[str, int], int] = {}
        for j, members in enumerate(self.classes):
            places = [p for p in self.servers for _ in range(solver.value(self.x[j, p]))]
            chosen.update((piece.key, p) for piece, p in zip(members, places, strict=True))
        return chosen, bound


def classes_of(state: Sharding) -> list[list[Piece]]:
    """Return the placed pieces, equal ones together; one with rules is alone."""
    classes: dict[tuple[object, ...], list[Piece]] = {}
    for piece in state.pieces:
        if piece.key in state.at:
            ruled = any(table.name in state.rules.ruled for table in piece.tables)
            alike = (*state.demand(piece).tolist(), state.bytes_of(piece), *state.barred(piece).tolist())
            kind = piece.key if ruled else alike
            classes.setdefault(kind, []).append(piece)
    return list(classes.values())
