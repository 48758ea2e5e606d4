"""hwloc topologies (``lstopo machine.xml``, https://www.open-mpi.org/projects/hwloc/): one machine.

Cores, not hardware threads: a core counts when at least one of its PUs is online and allowed. Memory is the local memory
of the allowed NUMA nodes. hwloc knows no network rates, so ``nic_gbps`` is always asked for. Caches, distances, memory
attributes and PCI devices are dropped; several CPU kinds or memory kinds are said.
"""

from __future__ import annotations

from typing import Any

from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.machines import Machines
from problem.formats.xml_tree import Element, read_xml


def read_machines(content: Content) -> Machines:
    """Return the machine of a topology.

    Raises
    ------
    BadInput
        When the file is broken or has no PU that may be used.
    """
    root = read_xml(content)
    objects = list(root.each("object"))
    machine = next((element for element in objects if _type(element) == "Machine"), None)
    if machine is None:
        raise BadInput(content.source, "object", root.tag, "an object of type Machine (hwloc 1 or 2)")
    allowed = _bits(machine, "allowed_cpuset", _bits(machine, "cpuset", -1, content), content)
    cores, note = _cores(objects, allowed, content)
    node: dict[str, Any] = {"name": content.stem, "cores": cores}
    memory = _memory(objects, machine, content)
    if memory:
        node["memory"] = memory
    return Machines(content.stem, [node], tuple([note] if note else []) + tuple(_notes(root, objects)))


def _type(element: Element) -> str:
    return element.attributes.get("type", "")


def _bits(element: Element, key: str, default: int, content: Content) -> int:
    """Return a bitmap such as ``0x00ff,,0x1``: groups of 32 bits, the highest first, an empty one is 0."""
    text = element.attributes.get(key)
    if text is None:
        return default
    if text.startswith("0xf...f"):
        return -1
    try:
        value = 0
        for part in text.split(","):
            value = value << 32 | int(part or "0", 16)
    except ValueError:
        where = f"object({_type(element)}).{key}"
        raise BadInput(f"{content.source}:{element.line}", where, text, "groups of 32 bits, such as 0xff,0x1") from None
    return value


def _cores(objects: list[Element], allowed: int, content: Content) -> tuple[int, str]:
    """Return usable cores and what is to be said of them."""
    pus = [element for element in objects if _type(element) == "PU"]
    usable = sum(
        bool(_bits(pu, "cpuset", 1 << int(pu.attributes.get("os_index", "0")), content) & allowed) for pu in pus
    )
    if not usable:
        raise BadInput(content.source, "PU", usable, "at least one hardware thread that is online and allowed")
    cores = [element for element in objects if _type(element) == "Core"]
    if not cores:
        return usable, f"no Core objects: {usable} hardware threads count as cores"
    found = sum(bool(_bits(core, "cpuset", -1, content) & allowed) for core in cores)
    return found, f"{found} cores with {usable} hardware threads; cores count" if usable != found else ""


def _memory(objects: list[Element], machine: Element, content: Content) -> int:
    """Return bytes of the allowed NUMA nodes (hwloc 1 writes the memory of a machine without NUMA at the machine)."""
    allowed = _bits(machine, "allowed_nodeset", -1, content)
    nodes = [e for e in objects if _type(e) == "NUMANode" and _bits(e, "nodeset", -1, content) & allowed]
    sizes = [int(element.attributes.get("local_memory", "0")) for element in nodes or [machine]]
    return sum(sizes)


def _notes(root: Element, objects: list[Element]) -> list[str]:
    numa = [element for element in objects if _type(element) == "NUMANode"]
    kinds = sorted({element.attributes.get("subtype", "") for element in numa} - {""})
    notes = [f"memory is that of all kinds together: {', '.join(kinds)}"] if len(kinds) > 1 else []
    if len(numa) > 1:
        notes.append(f"{len(numa)} NUMA nodes are one memory; distances are not modelled")
    cpu_kinds = sum(1 for _ in root.each("cpukind"))
    if cpu_kinds > 1:
        notes.append(f"{cpu_kinds} kinds of CPU count as one")
    return notes
