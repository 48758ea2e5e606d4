"""The net transformation: properties of the programs of random plans, and counts worked out by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from placement.plan import Plan, Sync
from problem.graph import FLOAT_BYTES, Kind
from problem.model import Model
from programs.exchanges import sync_server_of
from programs.instructions import (
    AllReduce,
    Average,
    Compute,
    Instruction,
    Lookup,
    Metric,
    Place,
    Reduce,
    Role,
    Send,
    SyncStep,
    Update,
)
from programs.text import to_json, to_text
from programs.transform import Session, backward_order, summation_order, transform
from programs.verify import memory_needed, tensor_bytes, verify
from programs.workers import workers
from tests.executor.tiny import dlrm, tables
from tests.programs import plans
from tests.programs.strategies import random_plans


def instructions(session: Session) -> Iterator[tuple[Place, Instruction]]:
    """All instructions of a session with their places."""
    return ((program.place, i) for program in session.programs for i in program.instructions)


def sends(session: Session) -> Iterator[tuple[Place, Send]]:
    """All Sends of a session with their places."""
    return ((place, i) for place, i in instructions(session) if isinstance(i, Send))


@settings(max_examples=60, deadline=None)
@given(plan=random_plans())
def test_programs_of_any_plan_pass_the_verifier(plan: Plan) -> None:
    """Whatever the graph, the tags and the shards, the transformation gives programs without a fault, and the same
    ones each time."""
    job = verify(transform(plan))
    assert job == transform(plan)
    assert [session.rank for session in job.sessions] == list(range(plan.ranks))


@settings(max_examples=60, deadline=None)
@given(plan=random_plans())
def test_every_operator_runs_once_where_its_tag_says(plan: Plan) -> None:
    """In a session each operator runs forward once and backward once if it needs a gradient, on the place of its tag;
    every trained parameter and every shard is updated once, and every shard pooled once for each feature of its table."""
    graph = plan.model.graph
    for session in transform(plan).sessions:
        found = list(instructions(session))
        computed = [(place, i) for place, i in found if isinstance(i, Compute)]
        expected = [(op.name, "forward") for op in graph if op.kind is not Kind.LOOKUP]
        trained = [op for op in graph if op.kind is not Kind.LOOKUP and graph.needs_gradient[op.name]]
        expected += [(op.name, "backward") for op in trained]
        assert Counter((i.op, i.phase) for _, i in computed) == Counter(expected)
        for place, i in computed:
            assert place.index == (session.rank if plan.tags[i.op] == "dp" else plan.tags[i.op])
        updates = [i for _, i in found if isinstance(i, Update)]
        assert Counter(n for i in updates for n in i.ops) == Counter(op.name for op in graph if op.parameters)
        shards = [s for s, shard in enumerate(plan.shards) if shard.rows]
        assert sorted(s for i in updates for s in i.shards) == shards
        reads = sorted(s for s in shards for _ in plan.model.readers[plan.shards[s].table])
        assert sorted(s for _, i in found if isinstance(i, Lookup) for s in i.shards) == reads


@settings(max_examples=60, deadline=None)
@given(plan=random_plans())
def test_a_tensor_is_sent_once_to_each_place_that_consumes_it(plan: Plan) -> None:
    """Between the places of operators, a session sends an output exactly once to each other place with a consumer;
    nothing else; pooled tables with the same consumers go in one message; and a message has the bytes of its tensors."""
    job, graph = transform(plan), plan.model.graph
    for session in job.sessions:

        def home(name: str, session: Session = session) -> int:
            tag = plan.tags.get(name, "dp")
            return session.rank if tag == "dp" else int(tag)

        wanted = Counter(
            (home(op.name), place, op.name)
            for op in graph
            for place in {home(consumer) for consumer in graph.consumers[op.name]} - {home(op.name)}
        )
        among_nodes = [(p, i) for p, i in sends(session) if Role.SERVER not in {p.role, i.peer.role}]
        found = Counter((p.index, i.peer.index, name) for p, i in among_nodes for name in i.tensors if name in graph)
        assert found == wanted
        for _, i in among_nodes:
            assert [_base(name, plan.model) for name in i.tensors] == list(
                graph.message_of(_base(i.tensors[0], plan.model))
            )
        for _, i in sends(session):
            assert i.bytes == sum(tensor_bytes(job, name) for name in i.tensors)
        for p, i in among_nodes:
            widths = [graph[_base(name, plan.model)].width for name in i.tensors]
            assert i.bytes == plan.batch * sum(widths) * FLOAT_BYTES, (p, i)


def _base(tensor: str, model: Model) -> str:
    return tensor if tensor in model.graph else tensor.removeprefix("d.").split("@")[0]


@settings(max_examples=60, deadline=None)
@given(plan=random_plans())
def test_backward_messages_mirror_the_forward_ones(plan: Plan) -> None:
    """A tensor that needs a gradient and went from a to b is answered by one gradient of as many bytes from b to a, pooled
    rows and ids included; other tensors by none."""
    graph = plan.model.graph
    for session in transform(plan).sessions:
        forward, backward, ids = Counter(), Counter(), []
        for place, i in sends(session):
            name = i.tensors[0]
            if name.startswith("ids."):
                ids.append(i.peer)
            elif name.startswith("d."):
                backward[i.peer, place, i.bytes] += 1
            elif graph.needs_gradient[name.split("@")[0]]:
                forward[place, i.peer, i.bytes] += 1
        assert forward == backward
        holders = sorted({shard.server for shard in plan.shards if shard.rows})
        assert [peer.index for peer in ids] == holders


@settings(max_examples=40, deadline=None)
@given(plan=random_plans())
def test_programs_print_as_text_and_as_json(plan: Plan) -> None:
    """Each instruction is one line of the text and one record of the JSON, which survives a round trip."""
    job = transform(plan)
    text, data = to_text(job), to_json(job)
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(data, sort_keys=True))
    count = sum(len(program.instructions) for session in job.sessions for program in session.programs)
    assert count == sum(len(p["instructions"]) for s in data["sessions"] for p in s["programs"])
    assert sum(line.startswith("  ") for line in text.splitlines()) == count + len(job.shadows)


@settings(max_examples=40, deadline=None)
@given(plan=random_plans())
def test_order_of_sums_names_every_consumer_once_own_place_first(plan: Plan) -> None:
    """What the oracle is told about the order of additions is a partition of each tensor's consumers by place."""
    graph, visited = plan.model.graph, [op.name for op in backward_order(plan.model.graph)]
    for rank in range(plan.ranks):
        for name, groups in summation_order(plan, rank).items():
            flat = [consumer for group in groups for consumer in group]
            assert sorted(flat) == sorted(graph.consumers[name])
            for group in groups:
                assert list(group) == sorted(group, key=visited.index)
                assert len({plan.tags[consumer] if plan.tags[consumer] != "dp" else rank for consumer in group}) == 1


def test_messages_of_the_all_dp_plan_are_three_a_server(all_dp_plan: Plan) -> None:
    """Ids out, pooled rows back, gradients out: B * 2 ids * 4 B and B * 4 floats for each of the two tables."""
    (session,) = transform(all_dp_plan).sessions
    assert [i.bytes for _, i in sends(session)] == [4 * 2 * 4 * 2, 4 * 4 * 4 * 2, 4 * 4 * 4 * 2]


def test_one_cut_costs_one_message_each_way(cut_plan: Plan) -> None:
    """A cut behind the interaction (width 7) and one behind the logit (width 1) add 2 messages each way, B floats per
    element of width."""
    (session,) = transform(cut_plan).sessions
    among_nodes = [i for p, i in sends(session) if Role.SERVER not in {p.role, i.peer.role}]
    assert [(i.tensors[0], i.bytes) for i in among_nodes] == [
        ("interaction", 4 * 7 * 4),
        ("d.top1", 4 * 4),
        ("top1", 4 * 4),
        ("d.interaction", 4 * 7 * 4),
    ]


def test_a_tensor_with_consumers_on_two_nodes_is_summed_where_it_was_consumed(tiny_dcn: Model) -> None:
    """x0 feeds cross0 (here, twice), cross1 and deep (both on node 1): node 1 adds two parts and sends one gradient, the
    producer adds two."""
    plan = plans.plan(tiny_dcn, nodes=2, tags={"cross1": 1, "deep": 1})
    (session,) = transform(plan).sessions
    found = [(str(place), i.target, i.parts) for place, i in instructions(session) if isinstance(i, Reduce)]
    assert found == [
        ("n0", "d.x0", ("d.x0@n0", "d.x0@n1")),
        ("n1", "d.x0@n1", ("d.x0 <- deep", "d.x0 <- cross1")),
    ]
    assert summation_order(plan, 0)["x0"] == (("cross0",), ("deep", "cross1"))


def test_all_reduce_has_every_dp_parameter(tiny_dlrm: Model) -> None:
    """Two ranks all-reduce the DP operators in graph order, 4 bytes a parameter; an MP operator is left out."""
    plan = plans.plan(tiny_dlrm, nodes=2, ranks=2, tags={"top0": 1})
    for session in transform(plan).sessions:
        (found,) = [i for _, i in instructions(session) if isinstance(i, AllReduce)]
        assert found.ops == ("bottom0", "bottom1", "top1")
        assert found.bytes == 4 * (4 * 8 + 9 * 4 + 9)


@pytest.mark.parametrize("synchronous", [False, True])
def test_updates_of_shared_parameters_wait_for_their_turn_in_synchronous_plans(synchronous: bool) -> None:
    """With two ranks, MP and table updates are ordered in synchronous plans; a DP copy is one rank's own, never ordered."""
    plan = plans.plan(
        dlrm([3, 4], tables(1, 9, 4), [1]), nodes=2, ranks=2, tags={"bottom0": 0}, synchronous=synchronous
    )
    for session in transform(plan).sessions:
        ordered = {(i.ops, i.shards): i.ordered for _, i in instructions(session) if isinstance(i, Update)}
        assert ordered == {(("top0",), ()): False, (("bottom0",), ()): synchronous, ((), (0,)): synchronous}


def test_exchange_covers_every_parameter_once_and_is_balanced() -> None:
    """In a group with EASGD each dense operator is exchanged by exactly one node, DP ones by node 0, which passes them on
    to the other ranks; centres are dealt largest first."""
    job = transform(plans.easgd_plan())
    exchanged = Counter(name for step in job.shadows.values() for names in step.exchange for name in names)
    assert exchanged == Counter(op.name for op in job.plan.model.graph if op.parameters)
    assert job.shadows[0].followers == (1,)
    assert job.shadows[1].follow == job.shadows[0].forward == job.plan.dp_ops
    size = {name: job.plan.model.graph[name].parameters for name in exchanged}
    load = [sum(size[n] for n, server in sync_server_of(job.plan).items() if server == s) for s in range(2)]
    assert load == [32 + 64, 36 + 7 + 54]


def test_one_group_has_no_exchange(cut_plan: Plan) -> None:
    """Sync settings of a plan with one group are not used: there is nobody to keep together."""
    assert transform(cut_plan).shadows == {}


def test_workers_have_one_program_each_and_tell_their_place() -> None:
    """Two groups of two ranks with Hogwild 2: names, roles, machines and programs of all workers."""
    base = plans.easgd_plan("background")
    job = transform(base)
    found = workers(job)
    assert len({worker.name for worker in found}) == len(found)
    # per session: the rank, its MP copies (2 for rank 0, 1 for rank 1), 2 servers; 3 shadows per group; 2 sync servers
    assert Counter(worker.role for worker in found) == {"rank": 4, "node": 6, "server": 8, "shadow": 6, "sync": 2}
    by_name = {worker.name: worker for worker in found}
    assert by_name["g1/n2/serves-n0t0"].node.name == "g1n2"
    assert by_name["ps1/serves-g0n1t0"].node.name == "server1"
    assert by_name["sync1"].node.name == "centre1"
    assert by_name["sync0"].program == ()


def test_foreground_exchange_is_in_one_thread_of_each_node() -> None:
    """Without shadow workers, thread 0 of a rank's own session, or the copy that serves rank 0, ends with the exchange
    (before the metric)."""
    found = workers(transform(plans.easgd_plan("foreground")))
    ends = {worker.name: type(worker.program[-1]).__name__ for worker in found if worker.program}
    assert [name for name, last in ends.items() if last == "SyncStep"] == ["g0/n2/serves-n0t0", "g1/n2/serves-n0t0"]
    before = {worker.name for worker in found if len(worker.program) > 1 and "Sync" in str(worker.program[-2])}
    assert before == {"g0/n0/t0", "g0/n1/t0", "g1/n0/t0", "g1/n1/t0"}
    assert not [worker for worker in found if worker.role == "shadow"]


def test_memory_counts_parameters_state_and_the_tensors_of_a_step() -> None:
    """One table of 9 rows and one LINEAR layer: worked by hand for the trainer and for the server."""
    plan = plans.plan(dlrm([3, 4], tables(1, 9, 4), [1]), batch=2)
    needed = {name: size for name, (size, _) in memory_needed(transform(plan)).items()}
    # layers: bottom0 3+1 -> 4, top0 (4 + 1) + 1 -> 1; parameters, and one gradient buffer of the thread
    dense = (16 + 6) * 4 * 2
    # widths: ids 1, dense 3, bottom0 4, t0 4, interaction 5, top0 1, loss 1, and d. of all but ids, dense and loss
    tensors = 2 * 4 * (1 + 3 + 4 + 4 + 5 + 1 + 1 + 4 + 4 + 5 + 1)
    assert needed["g0n0"] == dense + tensors
    assert needed["server0"] == 9 * 4 * 4 + 2 * 4 * (1 + 4 + 4)


@pytest.mark.parametrize("servers", [0, 1])
def test_bug_copies_of_a_node_went_on_while_it_exchanged(servers: int) -> None:
    """In synchronous mode with two ranks, the copy of an MP operator that serves the other rank began its next step while
    the first still exchanged the operator's parameters: two runs differed. Now a node's copies meet after the exchange."""
    sync = Sync("foreground", 2, 1.0, "ma")
    model, tags = dlrm([3, 8, 4], [], [8, 6, 1]), {"top0": 2, "top1": 1}
    plan = plans.plan(
        model, nodes=3, ranks=2, groups=2, sync_servers=servers, tags=tags, sync=sync, synchronous=True, servers=1
    )
    ends = {w.name: [type(i) for i in w.program if not isinstance(i, Metric)][-2:] for w in workers(transform(plan))}
    kind = SyncStep if servers else Average
    assert ends["g0/n2/serves-n0t0"] == ends["g0/n1/t0"] == [kind, Update]
    assert ends["g0/n2/serves-n1t0"][-1] == ends["g0/n1/serves-n0t0"][-1] == Update
    meets = [i for w in workers(transform(plan)) for i in w.program if i == Update(ordered=True)]
    assert len(meets) == 2 * 4  # two groups of two nodes with two copies each; node 0 has no MP operator
    verify(transform(plan))
