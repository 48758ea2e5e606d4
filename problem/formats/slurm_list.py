"""A file of Slurm node lists, one a line, becomes machines that have only names; the rest is asked for."""

from __future__ import annotations

from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.machines import Machines
from problem.slurm import expand_nodelist


def read_machines(content: Content) -> Machines:
    """Return the hosts of all lists, each once.

    Raises
    ------
    BadInput
        On a line that is no node list.
    """
    hosts: dict[str, None] = {}
    for number, line in enumerate(content.text.splitlines(), start=1):
        try:
            hosts |= dict.fromkeys(expand_nodelist(line)) if line.strip() else {}
        except ValueError as error:
            raise BadInput(f"{content.source}:{number}", "node list", line.strip(), str(error)) from None
    return Machines(content.stem, [{"names": list(hosts)}], (f"{len(hosts)} hosts of Slurm node lists",))
