"""The evaluator by hand, against the programs of the net transformation, and its properties."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.costs import CostTable, MessageCost, OpCost, PhaseCost, TableCost
from placement.evaluation.evaluate import evaluate
from placement.evaluation.latency import Session
from placement.explain import problem_of
from placement.plan import DP, Plan, Shard, Sync
from placement.tagging.baselines import baselines
from placement.tagging.nets import Contracted
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable, Model
from programs.instructions import (
    AllReduce,
    Compute,
    Lookup,
    Metric,
    NextBatch,
    Program,
    Recv,
    Reduce,
    Role,
    Send,
    Update,
)
from programs.reduction import reduction
from programs.transform import transform
from programs.verify import memory_needed
from programs.wire import coding_seconds, exchanged_messages
from simulator.machines import Sharing
from simulator.paths import idle_paths, loads
from simulator.scenario import stage
from tests.instances import linear, node, nodes, op_cost, random_group, two_layers

BATCH = 4


def test_two_layers_all_data_parallel() -> None:
    """By hand: 7 ms of cores, 4 MB of all-reduce in 4 ms each way, a critical path of 7 ms and two rounds of 2 MB."""
    problem = two_layers()
    found = evaluate(problem, dict.fromkeys(("x", "wide", "small", "loss"), DP))
    first = found.loads[0]
    assert first.cores_seconds == pytest.approx(7e-3)
    assert first.tx_seconds == pytest.approx(4e-3, rel=1e-5)
    assert first.rx_seconds == pytest.approx(4e-3, rel=1e-5)
    assert found.latency_seconds == pytest.approx(7e-3 + 4e-3, rel=1e-5)
    assert found.samples_per_second == pytest.approx(2 / 7e-3)
    assert found.bottleneck.startswith("cores of group node n0")


def test_two_layers_wide_on_node_0() -> None:
    """By hand: node 0 does its own small layer and the wide layer twice, 8 ms.

    Rank 1 exchanges 3 tensors with node 0 (x there, wide back, its gradient there), and ``small`` is all-reduced in 2
    messages each way: 3 + 4 messages sent or received at either end.
    """
    found = evaluate(two_layers(), {"x": DP, "wide": 0, "small": DP, "loss": DP})
    assert [load.cores_seconds for load in found.loads] == pytest.approx([8e-3, 6e-3])
    assert [load.messages for load in found.loads] == pytest.approx([3 + 4, 3 + 4])


def _dlrm(
    draw: random.Random, ranks: int, size: int, groups: int, *, batch: int = BATCH, algorithm: str = "easgd"
) -> tuple[Plan, CostTable]:
    """A small two-tower model, tables in random strips and row ranges on two servers, one of them shared; random tags."""
    bags = EmbeddingTable("t1", 10, 8, 3.0, 0.0, optimizer=draw.choice(["sgd", "adam"]), pooling="weighted", max_ids=5)
    tables = (EmbeddingTable("t0", 10, 8, skew=0.0), bags)
    shared = (replace(bags, name="f1", pooling_factor=2.0, pooling="mean", shares="t1"),)
    graph = Graph(
        (
            Operator("x", Kind.DENSE_INPUT, (), 4),
            linear("bottom", "x", 8, 40),
            Operator("t0", Kind.LOOKUP, (), 8, table="t0"),
            Operator("t1", Kind.LOOKUP, (), 8, table="t1"),
            Operator("f1", Kind.LOOKUP, (), 8, table="t1"),
            Operator("interaction", Kind.CONCAT, ("bottom", "t0", "t1", "f1"), 32),
            Operator("side", Kind.CONCAT, ("bottom", "t1"), 16),
            linear("top", "interaction", 5, 165),
            Operator("all", Kind.CONCAT, ("top", "side"), 21),
            linear("logit", "all", 1, 22),
            Operator("loss", Kind.LOSS, ("logit",), 1),
        )
    )
    placed = [op.name for op in graph if op.kind not in {Kind.LOOKUP, Kind.DENSE_INPUT, Kind.LOSS}]
    tags = {name: draw.choice([DP, *range(size)]) for name in placed} | {"x": DP, "loss": DP}
    cut = (Shard("t1", 0, 0, 4), Shard("t1", 1, 4, 10))
    strips = (Shard("t1", 0, 0, 10, (0, 3)), Shard("t1", 1, 0, 7, (3, 8)), Shard("t1", 0, 7, 10, (3, 8)))
    shards = (Shard("t0", 0, 0, 10), *draw.choice([cut, strips, strips[::-1], (Shard("t1", 1, 0, 10),)]))
    plan = Plan(
        Model("small", graph, tables, batch=batch, shared=shared),
        tuple(tuple(node(f"g{g}n{i}") for i in range(size)) for g in range(groups)),
        (node("ps0"), node("ps1")),
        batch,
        tags,
        shards,
        (node("sync0"), node("sync1")) if groups > 1 else (),
        hogwild=2,
        ranks=ranks,
        sync=Sync(gap=4, algorithm=algorithm) if groups > 1 else None,  # type: ignore[arg-type]
    )
    ops = {op.name: op_cost(draw.uniform(1e-4, 1e-3)) for op in graph if op.kind is not Kind.LOOKUP}
    table = TableCost(PhaseCost(1e-4), PhaseCost(3e-4), PhaseCost(4e-5), PhaseCost(5e-5))
    other = TableCost(PhaseCost(2e-4), PhaseCost(5e-4), PhaseCost(6e-5), PhaseCost(7e-5))
    message = MessageCost(1e-5, 1e-8, 2e-5, 3e-8, 3e-6, 4e-6)
    return plan, CostTable(
        batch,
        ops,
        {"t0": table, "t1": table, "f1": other},
        message,
        1e-5,
        2e-5,
        5e-8,
        1e-8,
        "tiny",
        1e9,
        sum_seconds=3e-6,
    )


def _busy(plan: Plan, costs: CostTable, program: Program) -> float:
    """Core-seconds of a program, instruction by instruction."""
    total = 0.0
    for instruction in program.instructions:
        match instruction:
            case NextBatch():
                total += costs.next_batch_seconds
            case Metric():
                total += costs.metric_seconds
            case Compute(op, phase):
                total += getattr(costs.ops[op], phase).core_seconds
            case Reduce(parts=parts, bytes=size):
                strips = Counter(part.split("@")[1] if ":" in part else "0:8" for part in parts)
                for strip, count in strips.items():
                    begin, end = (int(column) for column in strip.split(":"))
                    total += max(1, count - 1) * (end - begin) / 8 * costs.summing(size)
            case Send(bytes=size, tensors=tensors):
                total += costs.message.send(size, len(tensors)) + coding_seconds(plan, instruction)
            case Recv(bytes=size, tensors=tensors):
                total += costs.message.receive(size, len(tensors)) + coding_seconds(plan, instruction)
            case Lookup(shards, outputs):
                for shard, output in zip(shards, outputs, strict=True):
                    cost = costs.tables[output.split("@")[0]]
                    total += _taken(plan.shards[shard], cost.lookup, cost.shard_lookup)
            case Update(shards=shards) if shards:
                for shard in (plan.shards[i] for i in shards):
                    for feature in ("t1", "f1") if shard.table == "t1" else ("t0",):
                        cost = costs.tables[feature]
                        total += _taken(shard, cost.update, cost.shard_update)
            case Update(ops):
                total += sum(costs.ops[op].update.core_seconds for op in ops)
            case AllReduce():
                moves, me, peers = reduction(plan, instruction), program.place.index, plan.ranks - 1
                others = [rank for rank in range(plan.ranks) if rank != me]
                total += sum(
                    costs.message.send(moves.wire[rank], moves.tensors) + moves.encode[rank] for rank in others
                )
                total += peers * (costs.message.receive(moves.wire[me], moves.tensors) + moves.decode[me])
                total += peers * costs.sum_seconds_per_byte * moves.adds[me]
                total += costs.sum_seconds_per_byte * sum(moves.places[rank] for rank in others)
                if moves.gathers:
                    total += peers * costs.message.send(moves.wire[me], moves.tensors) + moves.encode[me]
                    total += sum(
                        costs.message.receive(moves.wire[rank], moves.tensors) + moves.decode[rank] for rank in others
                    )
    return total


def _reduced_bytes(plan: Plan, instruction: AllReduce, rank: int) -> tuple[int, int]:
    """Bytes that a rank sends and receives in an all-reduce."""
    wire, peers = reduction(plan, instruction).wire, plan.ranks - 1
    others = sum(wire) - wire[rank]
    if not reduction(plan, instruction).gathers:
        return others, peers * wire[rank]
    return others + peers * wire[rank], peers * wire[rank] + others


def _codecs(draw: random.Random, plan: Plan) -> dict[str, str]:
    """Codecs at random, on cuts, pooled rows, their gradients, the all-reduce and the exchange."""
    cuts = ("fp32", "bf16", "rowwise4", "dct-mp:0.25", "top-k:0.2", "sketch:0.5")
    found = {op.name: draw.choice(cuts) for op in plan.model.graph if op.kind is not Kind.LOSS}
    pulled = {edge: draw.choice(("fp32", "fp16", "rowwise8")) for edge in ("pooled", "push")}
    reduced = {"allreduce": draw.choice(("fp32", "bf16", "dct-dp:0.1:10"))}
    pushed = {"exchange": draw.choice(("fp32", "bf16", "rowwise4"))} if len(plan.groups) > 1 else {}
    return found | pulled | reduced | pushed


def _taken(shard: Shard, whole: PhaseCost, each: PhaseCost) -> float:
    """Seconds of a shard: what each takes, and of the rest its share of the elements of a table of 10 rows and 8 columns.

    (Strips below 64 columns all have one penalty.)
    """
    begin, end = shard.columns or (0, 8)
    share = (shard.row_end - shard.row_begin) * (end - begin) / 80
    return each.core_seconds + share * (whole.core_seconds - each.core_seconds)


@pytest.mark.parametrize("seed", range(24))
def test_loads_are_those_of_the_programs(seed: int) -> None:
    """Core-seconds, bytes sent and bytes received of every machine are what the transformed programs add up to."""
    draw = random.Random(seed)
    size = draw.randint(1, 4)
    plan, costs = _dlrm(draw, draw.randint(1, size), size, groups=1)
    _check_loads(plan, costs)


@pytest.mark.parametrize("seed", range(24))
def test_loads_with_codecs_are_those_of_the_programs(seed: int) -> None:
    """The same with random codecs on every edge, in batches that are large enough to be made sparse.

    An all-reduce is cut in slices of whole elements, so a rank's part differs by an element for each message.
    """
    draw = random.Random(seed)
    size = draw.randint(1, 4)
    plan, costs = _dlrm(draw, draw.randint(1, size), size, groups=1, batch=64)
    _check_loads(replace(plan, codecs=_codecs(draw, plan)), costs)


def _check_loads(plan: Plan, costs: CostTable) -> None:
    busy, sent, got = (defaultdict[str, float](float) for _ in range(3))
    for session in transform(plan).sessions:
        for program in session.programs:
            machines = plan.servers if program.place.role is Role.SERVER else plan.groups[0]
            name = machines[program.place.index].name
            busy[name] += _busy(plan, costs, program)
            for instruction in program.instructions:
                if isinstance(instruction, Send):
                    sent[name] += instruction.bytes
                elif isinstance(instruction, Recv):
                    got[name] += instruction.bytes
                elif isinstance(instruction, AllReduce):
                    there, back = _reduced_bytes(plan, instruction, program.place.index)
                    sent[name], got[name] = sent[name] + there, got[name] + back
    slack = 4 * 2 * plan.ranks * len(plan.groups[0])  # a float32 for each message of the all-reduce
    for load in evaluate(problem_of(plan, costs), plan.tags).loads:
        assert sum(load.core_seconds.values()) == pytest.approx(busy[load.node], rel=1e-9, abs=1e-7 * slack)
        assert load.tx_seconds * 1e9 == pytest.approx(sent[load.node], rel=1e-9, abs=slack)
        assert load.rx_seconds * 1e9 == pytest.approx(got[load.node], rel=1e-9, abs=slack)


@pytest.mark.parametrize("seed", range(12))
def test_memory_covers_what_the_verifier_counts(seed: int) -> None:
    """No machine is said to need less memory than the verifier of the programs counts on it."""
    draw = random.Random(seed)
    size, groups = draw.randint(1, 3), draw.randint(1, 2)
    plan, costs = _dlrm(draw, draw.randint(1, size), size, groups)
    needed = {load.node: load.memory_needed for load in evaluate(problem_of(plan, costs), plan.tags).loads}
    for name, (counted, _) in memory_needed(transform(plan)).items():
        if name in needed:
            assert needed[name] >= counted


@pytest.mark.parametrize("seed", range(8))
def test_sync_loads_are_those_of_the_exchanges(seed: int) -> None:
    """Bytes between groups are those of the SyncSteps, divided by the steps between two of them."""
    draw = random.Random(seed)
    size = draw.randint(1, 3)
    plan, costs = _dlrm(draw, draw.randint(1, size), size, groups=2)
    alone = replace(plan, groups=plan.groups[:1], sync=None, sync_servers=())
    with_sync = evaluate(problem_of(plan, costs), plan.tags)
    without = evaluate(problem_of(alone, costs), plan.tags)
    often = 1 / (4 * plan.hogwild)
    for index, step in transform(plan).shadows.items():
        moved = sum(step.exchange_bytes) + step.forward_bytes * len(step.followers)
        extra = with_sync.loads[index].tx_seconds - without.loads[index].tx_seconds
        assert extra * 1e9 == pytest.approx(often * moved, rel=1e-6)
    parameters = 4 * plan.model.graph.dense_parameters
    servers = [load for load in with_sync.loads if load.role == "sync"]
    assert sum(load.rx_seconds for load in servers) * 1e9 == pytest.approx(often * 2 * parameters, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_a_compressed_push_is_what_the_sync_steps_send(seed: int) -> None:
    """Under DCT-DP on the exchange, nodes send the planned bytes of the SyncSteps, encode them, and get float32 back."""
    draw = random.Random(seed)
    size = draw.randint(1, 3)
    plan, costs = _dlrm(draw, draw.randint(1, size), size, groups=2, algorithm="push")
    large = {op.name: replace(op, parameters=100 * op.parameters) for op in plan.model.graph}
    graph = Graph(tuple(large.values()))
    plan = replace(plan, model=replace(plan.model, graph=graph))
    coded = replace(plan, codecs={"exchange": "dct-dp:0.1"})
    now, then = (evaluate(problem_of(one, costs), one.tags) for one in (plan, coded))
    often = 1 / (4 * plan.hogwild)
    for index, step in transform(coded).shadows.items():
        saved = sum(step.exchange_bytes) - sum(step.pushed_bytes)
        less = now.loads[index].tx_seconds - then.loads[index].tx_seconds
        assert less * 1e9 == pytest.approx(often * saved, rel=1e-6)
        assert then.loads[index].rx_seconds == now.loads[index].rx_seconds
        coding = sum(part.encode_seconds for names in step.exchange for part, _ in exchanged_messages(coded, names))
        more = then.loads[index].core_seconds["sync"] - now.loads[index].core_seconds["sync"]
        sending = costs.message.send_seconds_per_byte * saved
        assert more == pytest.approx(often * (coding - sending), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("codec", ["fp16", "rowwise8", "rowwise2"])
@pytest.mark.parametrize("seed", range(4))
def test_rounded_exchanges_are_what_the_sync_steps_move(seed: int, codec: str) -> None:
    """Nodes and servers move the bytes of the SyncSteps both ways; nodes encode what goes and decode what comes."""
    draw = random.Random(seed)
    size = draw.randint(1, 3)
    plan, costs = _dlrm(draw, draw.randint(1, size), size, groups=2)
    coded = replace(plan, codecs={"exchange": codec})
    now, then = (evaluate(problem_of(one, costs), one.tags) for one in (plan, coded))
    often, received = 1 / (4 * plan.hogwild), 0
    for index, step in transform(coded).shadows.items():
        fewer = [sum(step.exchange_bytes) - sum(part) for part in (step.pushed_bytes, step.answered_bytes)]
        less = [
            getattr(now.loads[index], f"{way}_seconds") - getattr(then.loads[index], f"{way}_seconds") for way in WAYS
        ]
        assert [1e9 * seconds for seconds in less] == pytest.approx([often * each for each in fewer], rel=1e-6)
        messages = [pair for names in step.exchange for pair in exchanged_messages(coded, names)]
        coding = sum(there.encode_seconds + back.decode_seconds for there, back in messages)
        moving = costs.message.send_seconds_per_byte * fewer[0] + costs.message.receive_seconds_per_byte * fewer[1]
        more = then.loads[index].core_seconds["sync"] - now.loads[index].core_seconds["sync"]
        assert more == pytest.approx(often * (coding - moving), rel=1e-6, abs=1e-12)
        received += 2 * sum(step.pushed_bytes)
    servers = [load for load in then.loads if load.role == "sync"]
    assert sum(load.rx_seconds for load in servers) * 1e9 == pytest.approx(often * received, rel=1e-6)
    assert sum(load.tx_seconds for load in servers) * 1e9 == pytest.approx(often * received, rel=1e-6)


WAYS = ("tx", "rx")


@pytest.mark.parametrize("seed", range(12))
def test_the_simulators_bound_agrees_about_codecs(seed: int) -> None:
    """Busiest resource, and path of a thread alone, are those of the simulator's closed forms, with codecs on all edges.

    The path is that of a first step: in the steady state the evaluator waits for the copies' last updates besides. Within
    2 %: in the evaluator only pooled rows take turns on the network.
    """
    draw = random.Random(seed)
    size = draw.randint(1, 3)
    plan, costs = _dlrm(draw, draw.randint(1, size), size, groups=1, batch=64)
    plan = replace(plan, codecs=_codecs(draw, plan), hogwild=1)
    lane = stage(transform(plan), costs, Sharing.NODE, 0.0)
    load, found = loads(lane, 1), evaluate(problem_of(plan, costs), plan.tags)
    assert (load.work.sum(axis=0) / load.capacity).max() == pytest.approx(1e9 * found.step_seconds, rel=1e-3)
    first = max(Session(problem_of(plan, costs), plan.tags, rank).step() for rank in range(plan.ranks))
    assert max(idle_paths(lane)) == pytest.approx(1e9 * first, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 400), factor=st.floats(1.1, 8.0))
def test_cost_does_not_fall_as_anything_grows(seed: int, factor: float) -> None:
    """Slower cores, NICs or longer latencies never make a placement faster."""
    problem = replace(random_group(seed), forbids={})
    tags = baselines(Contracted(problem))[seed % 5].tags
    now = evaluate(problem, tags).seconds
    for change in (
        lambda n: replace(n, nic_bytes_per_second=n.nic_bytes_per_second / factor),
        lambda n: replace(n, latency_seconds=n.latency_seconds * factor + 1e-6),
        lambda n: replace(n, kind="other", flops_per_core_second=min(1e9, n.flops_per_core_second) / factor),
        lambda n: replace(n, memory_bandwidth_bytes_per_second=n.memory_bandwidth_bytes_per_second / factor),
    ):
        worse = replace(problem, nodes=tuple(change(n) for n in problem.nodes))
        assert evaluate(worse, tags).seconds >= now * (1 - 1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 400))
def test_step_is_bounded_by_path_and_by_the_busiest_resource(seed: int) -> None:
    """The step is at least the busiest resource, and at least one thread's critical path over the threads."""
    problem = replace(random_group(seed), forbids={})
    found = evaluate(problem, baselines(Contracted(problem))[seed % 5].tags)
    assert found.seconds >= max(max(load.resources) for load in found.loads)
    assert found.seconds * problem.hogwild >= found.latency_seconds * (1 - 1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 400))
def test_twice_every_time_is_twice_the_step(seed: int) -> None:
    """Half the speed of everything and twice the latency double the step exactly."""
    problem = replace(random_group(seed), forbids={})
    tags = baselines(Contracted(problem))[seed % 5].tags

    def half(n):
        return replace(
            n,
            kind="half",
            flops_per_core_second=problem.costs.flops_per_core_second / problem.costs.slowdown(n) / 2,
            nic_bytes_per_second=n.nic_bytes_per_second / 2,
            memory_bandwidth_bytes_per_second=n.memory_bandwidth_bytes_per_second / 2,
            latency_seconds=2 * n.latency_seconds,
        )

    slow = replace(
        problem,
        nodes=tuple(half(n) for n in problem.nodes),
        sync_servers=tuple(half(n) for n in problem.sync_servers),
        servers=tuple(replace(link, node=half(link.node)) for link in problem.servers),
    )
    assert evaluate(slow, tags).seconds == pytest.approx(2 * evaluate(problem, tags).seconds, rel=1e-9)


def test_foreground_synchronisation_stops_a_thread() -> None:
    """Foreground exchanges lengthen the critical path, background ones do not."""
    plan, costs = _dlrm(random.Random(0), 1, 1, 2)
    background = evaluate(problem_of(plan, costs), plan.tags)
    foreground = evaluate(problem_of(replace(plan, sync=Sync("foreground", 4)), costs), plan.tags)
    assert foreground.latency_seconds > background.latency_seconds
    assert foreground.step_seconds == pytest.approx(background.step_seconds)


def test_messages_on_one_host_load_no_nic() -> None:
    """Nodes of one host exchange memory copies: cores are busy, NICs are not."""
    problem = two_layers()
    local = replace(problem, nodes=nodes(2, host="here", cores=1))
    found = evaluate(local, {"x": DP, "wide": 0, "small": DP, "loss": DP})
    assert all(load.tx_seconds == 0 for load in found.loads)
    assert found.loads[0].messages > 0


def test_a_slower_machine_takes_longer_for_the_same_work() -> None:
    """A node of another kind scales core-seconds by its speed."""
    problem = two_layers()
    slow = replace(problem, nodes=(problem.nodes[0], replace(problem.nodes[1], kind="old", flops_per_core_second=5e8)))
    found = evaluate(slow, dict.fromkeys(("x", "wide", "small", "loss"), DP))
    assert found.loads[1].cores_seconds == pytest.approx(2 * found.loads[0].cores_seconds)


def test_zero_costs_are_no_division_by_zero() -> None:
    """A placement that costs nothing has an infinite rate."""
    problem = two_layers()
    free = replace(problem.costs, ops={name: OpCost() for name in problem.costs.ops})
    found = evaluate(replace(problem, costs=free, nodes=nodes(1, host="h"), ranks=1), dict.fromkeys(free.ops, DP))
    assert found.samples_per_second == float("inf")
