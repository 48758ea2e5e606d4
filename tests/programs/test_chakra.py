"""Chakra traces of a job, read by our own reader and by Google's protobuf runtime with a descriptor of the schema."""

from __future__ import annotations

import json

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from problem.errors import BadInput
from problem.formats import chakra, wire
from problem.formats.content import Content
from problem.readers import load_model
from programs.chakra import COMPUTATION, _whole_micros, write_chakra
from programs.instructions import AllReduce, Compute
from programs.timeline import Timeline, WorkerTimeline
from programs.transform import transform
from programs.workers import workers
from tests.programs.plans import easgd_plan

KINDS = {"uint64": 4, "string": 9, "enum": 5, "bool": 8, "int32": 5, "int64": 3}


def node_class():
    """Message class of ``Node`` with the fields that are written, numbered as in et_def.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="c", syntax="proto3")
    attribute = file.message_type.add(name="AttributeProto")
    for name, number, kind in (("name", 1, "string"), ("int32_val", 7, "int32"), ("int64_val", 9, "int64")):
        attribute.field.add(name=name, number=number, type=KINDS[kind], label=1)
    attribute.field.add(name="bool_val", number=27, type=KINDS["bool"], label=1)
    attribute.field.add(name="string_val", number=29, type=KINDS["string"], label=1)
    node = file.message_type.add(name="Node")
    for name, number, kind, label in (
        ("id", 1, "uint64", 1),
        ("name", 2, "string", 1),
        ("type", 3, "enum", 1),
        ("ctrl_deps", 4, "uint64", 3),
        ("duration_micros", 7, "uint64", 1),
    ):
        node.field.add(name=name, number=number, type=KINDS[kind], label=label)
    node.field.add(name="attr", number=10, type=11, label=3, type_name=".c.AttributeProto")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("c.Node"))


def timeline(job):
    """A timeline in which instruction i of every worker is busy for i milliseconds."""

    def times(worker):
        busy = np.tile(1e-3 * np.arange(len(worker.program)), (2, 1))
        return WorkerTimeline(worker.name, worker.node.name, worker.role, worker.program, busy, busy, busy)

    return Timeline(tuple(times(worker) for worker in workers(job)))


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Job with every instruction there is, and the files of its traces."""
    job = transform(easgd_plan("background", batch=4))
    return job, write_chakra(tmp_path_factory.mktemp("et") / "job", job, timeline(job))


def test_bug_a_worker_without_instructions_has_no_mean(tmp_path):
    """A sync server's timeline is empty; its mean was taken, with a warning of NumPy's on the terminal."""
    job = transform(easgd_plan("background", batch=4))
    none = np.zeros((0, 0))
    idle = WorkerTimeline("sync0", "s", "sync", (), none, none, none)
    paths = write_chakra(tmp_path / "job", job, Timeline((*timeline(job).workers, idle)))
    assert len(paths) == 9


def read(path):
    """Nodes of a trace by id, with attributes."""
    return {node.id: (node, attributes) for node, attributes in chakra.read_nodes(Content(path))}


def test_one_file_for_each_machine(traces):
    """Six trainers and two servers: traces 0 to 7, and ranks of each group as a process group."""
    _, paths = traces
    assert [path.name for path in paths] == [*(f"job.{i}.et" for i in range(8)), "job.groups.json"]
    assert json.loads(paths[-1].read_text()) == {"1": [0, 1], "2": [3, 4]}


def test_every_instruction_is_a_node(traces):
    """As many nodes as instructions of sessions, each computation with its busy time, messages without."""
    job, paths = traces
    found = [node for path in paths[:-1] for node, _ in read(path).values()]
    programs = [worker.program for worker in workers(job) if worker.place is not None]
    assert len(found) == sum(len(program) for program in programs)
    computed = [1e3 * i for program in programs for i, one in enumerate(program) if isinstance(one, Compute)]
    named = [node.microseconds or 0 for node in found if ": Compute" in node.name]
    assert sorted(named) == sorted(computed)
    assert all(node.microseconds is None for node in found if node.communicates)


def test_messages_have_two_ends(traces):
    """Each send has one receive with the same ends, bytes and tag, in the trace of the other machine."""
    _, paths = traces
    ends = {chakra.SEND: [], chakra.RECV: []}
    for number, path in enumerate(paths[:-1]):
        for message in raw(path):
            if message.type in ends:
                values = {a.name: a.int64_val or a.int32_val for a in message.attr}
                ends[message.type].append(
                    tuple(values[key] for key in ("comm_src", "comm_dst", "comm_size", "comm_tag"))
                )
                assert number == values["comm_src" if message.type == chakra.SEND else "comm_dst"]
    assert ends[chakra.SEND]
    assert sorted(ends[chakra.SEND]) == sorted(ends[chakra.RECV])
    assert len({end[3] for end in ends[chakra.SEND]}) == len(ends[chakra.SEND])


def raw(path):
    """Nodes as Google's runtime reads them, the metadata left out."""
    kind = node_class()
    with path.open("rb") as file:
        messages = list(wire.delimited(file, str(path)))
    return [kind.FromString(message) for message in messages[1:]]


def test_google_reads_what_we_read(traces):
    """Ids, names, types, dependencies and durations are the same for both readers; attributes have ASTRA-sim's types."""
    _, paths = traces
    for path in paths[:-1]:
        ours = read(path)
        for message in raw(path):
            node, attributes = ours[message.id]
            assert (node.name, node.depends) == (message.name, tuple(message.ctrl_deps))
            assert node.communicates == (message.type != COMPUTATION)
            assert {a.name for a in message.attr} == set(attributes)
            if message.type == chakra.COLLECTIVE:
                assert {a.name: a.string_val for a in message.attr}["pg_name"] in {"1", "2"}


def test_traces_read_back_as_models(traces):
    """A trace is a model of ours: no cycle, no dependency on a node that is not there, the collectives' bytes kept."""
    job, paths = traces
    model = load_model(paths[0])
    assert not [note for note in model.notes if "not operators of the trace" in note]
    program = next(worker.program for worker in workers(job) if worker.name == "g0/n0/t0")
    reduce = next(one for one in program if isinstance(one, AllReduce))
    sizes = [op.output_bytes_per_sample for op in model.graph if "g0/n0/t0: AllReduce" in op.name]
    assert sizes == [reduce.bytes]


def test_nothing_waits_for_a_send(traces):
    """Transfers run in the background: no node depends on a send to another machine."""
    _, paths = traces
    for path in paths[:-1]:
        messages = raw(path)
        sends = {message.id for message in messages if message.type == chakra.SEND}
        assert not sends & {number for message in messages for number in message.ctrl_deps}


def test_rounding_does_not_add_up():
    """A thousand instructions of 0.4 us are 400 us in whole microseconds, not none."""
    found = _whole_micros(np.full(1000, 0.4e-6))
    assert found.sum() == 400
    assert set(found) == {0, 1}


def test_a_missing_folder_is_named(tmp_path):
    """The folder has to be there; nothing is written otherwise."""
    job = transform(easgd_plan("background"))
    with pytest.raises(BadInput, match="existing folder"):
        write_chakra(tmp_path / "none" / "job", job, timeline(job))
