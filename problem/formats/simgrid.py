"""SimGrid platforms (https://simgrid.org/doc/latest/XML_reference.html): hosts and clusters become machines.

Read: ``host`` (id, speed, core, ``memory`` property), ``cluster`` (prefix, radical, suffix, speed, core, bw, lat). A host
outside a cluster has the NIC of its best route: the slowest link of the route whose slowest link is fastest, latencies
added. Dropped, and said so: topologies (every node is as if on one switch), backbones, profiles of states and speeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.machines import Machines, host_name
from problem.formats.xml_tree import Element, read_xml

_PREFIX = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_PREFIX |= {f"{prefix}i": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)}
_TIME = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"(?P<number>[\d.]+(?:[eE][+-]?\d+)?)"
_RATE = re.compile(_NUMBER + r"(?P<prefix>[kKMGTPE]?i?)(?P<unit>Bps|bps|)")
_SPEED = re.compile(_NUMBER + r"(?P<prefix>[kKMGTPE]?)(?:f|flops|)")
_DELAY = re.compile(_NUMBER + r"(?P<unit>[a-z]*)")
_MACHINES = {"host", "cluster"}
_DROPPED = {"state_file", "state_profile", "speed_file", "availability_file", "speed_profile", "bandwidth_file"}
MAX_HOSTS = 100_000
SLOWEST_FLOPS = 1e9
"""Flop/s below which a speed is taken for a calibration unit: a core of 2 GHz multiplies and adds at 4e9 without SIMD."""


def read_machines(content: Content) -> Machines:
    """Return the machines of a platform.

    Raises
    ------
    BadInput
        When the file is broken, holds no host and no cluster, or a value has a unit that SimGrid does not define.
    """
    reader = _Platform(content.source, read_xml(content))
    nodes = [reader.machine(element) for element in reader.root.each() if element.tag in _MACHINES]
    if not nodes:
        raise BadInput(content.source, "platform", reader.root.tag, "at least one host or cluster element")
    return Machines(content.stem, nodes, tuple(reader.notes()))


class _Platform:
    """Reads elements of one platform."""

    def __init__(self, source: str, root: Element) -> None:
        self.root, self._source = root, source
        self._links = {link.attributes.get("id", ""): link for link in root.each("link")}
        self._nic = self._host_nics()

    def machine(self, element: Element) -> dict[str, Any]:
        """Return the node entry of a host or a cluster."""
        found = element.attributes
        node: dict[str, Any] = {
            "cores": int(self._number(element, "core", "1", r"\d+")),
            "flops_per_core": self._speed(element),
        }
        if element.tag == "host":
            node["name"] = host_name(found.get("id", ""))
            node |= self._nic.get(found.get("id", ""), {})
        else:
            node["names"] = [host_name(name) for name in self._cluster_names(element)]
            node |= {"nic_gbps": self._rate(element, "bw"), "link_latency_s": self._delay(element, "lat")}
        memory = [p.attributes.get("value") for p in element.each("prop") if p.attributes.get("id") == "memory"]
        return node | ({"memory": memory[0]} if memory else {})

    def notes(self) -> Iterator[str]:
        """Yield what the platform says and a cluster of ours cannot."""
        topologies = sorted({e.attributes["topology"] for e in self.root.each("cluster") if "topology" in e.attributes})
        if topologies:
            yield f"topology {', '.join(topologies)} is not modelled: every node as if on one switch"
        slow = [e for e in self.root.each() if e.tag in _MACHINES and self._speed(e) < SLOWEST_FLOPS]
        if slow:
            yield f"speed {slow[0].attributes['speed']} is below any core's: give flops_per_core=... to plan with it"
        if any("bb_bw" in e.attributes for e in self.root.each("cluster")):
            yield "backbones (bb_bw) are not modelled: only the nodes' own links limit"
        if any(True for _ in self.root.each("route")):
            yield "routes are not modelled: a host's NIC is its best route's slowest link"
        dropped = sorted({key for e in self.root.each() for key in e.attributes if key in _DROPPED})
        if dropped:
            yield f"{', '.join(dropped)} not read: speeds and states do not change"

    def _host_nics(self) -> dict[str, dict[str, Any]]:
        """Return NIC and latency of each host that a route begins or ends at."""
        best: dict[str, tuple[float, float]] = {}
        for route in self.root.each("route"):
            links = [self._links.get(c.attributes.get("id", "")) for c in route.each("link_ctn")]
            known = [link for link in links if link is not None]
            if known:
                rate = min(self._bytes_per_second(link, "bandwidth") for link in known)
                delay = sum(self._delay(link, "latency") for link in known)
                for end in (route.attributes.get("src", ""), route.attributes.get("dst", "")):
                    best[end] = max(best.get(end, (0.0, 0.0)), (rate, delay), key=lambda nic: (nic[0], -nic[1]))
        return {
            host: {"nic_gbps": f"{rate!r}B/s", "link_latency_s": delay} for host, (rate, delay) in best.items() if rate
        }

    def _cluster_names(self, element: Element) -> list[str]:
        """Return prefix, number and suffix of ``radical`` (``1-29,58``)."""
        found = element.attributes
        names: list[str] = []
        for part in found.get("radical", "").split(","):
            match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
            if match is None:
                raise self._refusal(element, "radical", "numbers and ranges, such as 1-29,58")
            first, last = int(match[1]), int(match[2] or match[1])
            if last - first + len(names) >= MAX_HOSTS:
                raise self._refusal(element, "radical", f"at most {MAX_HOSTS} hosts")
            names += [f"{found.get('prefix', '')}{i}{found.get('suffix', '')}" for i in range(first, last + 1)]
        return names

    def _speed(self, element: Element) -> float:
        """Return flop/s of a core; of several power states the first."""
        text = element.attributes.get("speed", "").split(",")[0].strip()
        match = _SPEED.fullmatch(text)
        if match is None:
            raise self._refusal(element, "speed", "a speed such as 98.095Mf")
        return float(match["number"]) * _PREFIX[match["prefix"]]

    def _rate(self, element: Element, key: str) -> str:
        return f"{self._bytes_per_second(element, key)!r}B/s"

    def _bytes_per_second(self, element: Element, key: str) -> float:
        match = _RATE.fullmatch(element.attributes.get(key, "").strip())
        if match is None or match["prefix"] not in _PREFIX:
            raise self._refusal(element, key, "a rate such as 125MBps (bytes) or 1Gbps (bits)")
        return float(match["number"]) * _PREFIX[match["prefix"]] / (8 if match["unit"] == "bps" else 1)

    def _delay(self, element: Element, key: str) -> float:
        match = _DELAY.fullmatch(element.attributes.get(key, "0").strip())
        if match is None or match["unit"] not in _TIME:
            raise self._refusal(element, key, f"a time with one of {', '.join(unit for unit in _TIME if unit)}")
        return float(f"{float(match['number']) * _TIME[match['unit']]:.15g}")

    def _number(self, element: Element, key: str, default: str, pattern: str) -> str:
        text = element.attributes.get(key, default)
        if not re.fullmatch(pattern, text):
            raise self._refusal(element, key, "a whole number")
        return text

    def _refusal(self, element: Element, key: str, allowed: str) -> BadInput:
        where = f"{element.tag}({element.attributes.get('id', '')}).{key}"
        return BadInput(f"{self._source}:{element.line}", where, element.attributes.get(key), allowed)
