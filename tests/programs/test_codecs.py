"""Codecs in plans and programs: where they stand, what bytes they promise, what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from cost_models.codecs import Codec, Message
from cost_models.roofline import roofline_costs
from hiertrain.cli import app
from placement.codecs import EVERY_ELEMENT, parse_codec
from placement.errors import InvalidPlan
from placement.plan import Plan
from placement.planfile import load_plan, plan_to_json, save_plan
from problem.readers import model_from_spec
from programs.instructions import AllReduce, Recv, Send
from programs.reduction import reduction
from programs.text import to_text
from programs.transform import JobPrograms, transform
from programs.verify import BrokenProgram, verify
from programs.workers import workers
from simulator.engine import Engine
from simulator.folding import Folding
from simulator.lowering import Lowering
from simulator.machines import Sharing, build_machines, nodes_of
from simulator.primitives import Emit, busy_ns
from tests.executor.tiny import dlrm, tables
from tests.programs import plans
from tests.programs.strategies import random_plans
from tests.programs.test_verify import changed, edited, index_of


def coded(**codecs: str) -> Plan:
    """Batches of 32; interaction and top MLP on node 1, so that ``bottom1`` and two tables, 16 wide, are sent there."""
    model = dlrm([3, 8, 16], tables(2, 40, 16), [8, 1])
    tags = {"interaction": 1, "top0": 1, "top1": 1}
    return plans.plan(model, nodes=2, tags=tags, batch=32, codecs=codecs)


def messages(job: JobPrograms) -> dict[str, tuple[int, str]]:
    """Bytes and codec of every Send by channel; both ends are checked by the verifier."""
    return {
        i.channel: (i.bytes, i.codec) for p in job.sessions[0].programs for i in p.instructions if isinstance(i, Send)
    }


def test_a_codec_is_on_the_tensor_its_gradient_and_nothing_else() -> None:
    """DCT-MP of ``bottom1`` keeping 10 %: 2 of 16 a sample with a bitmask there, values back; the rest is float32."""
    plain, found = messages(verify(transform(coded()))), messages(verify(transform(coded(bottom1="dct-mp:0.1"))))
    changes = {channel: found[channel] for channel in found if found[channel] != plain[channel]}
    forward, backward = Message(32, 16, Codec.BITMASK, 0.1).bytes, Message(32, 16, Codec.VALUES, 0.1).bytes
    assert changes == {
        "n0>n1:bottom1": (forward, "dct-mp:0.1"),
        "n1>n0:d.bottom1": (backward, "dct-mp:0.1"),
    }
    assert (forward, backward) == (32 * 2 * 4 + 64, 32 * 2 * 4)


def test_messages_of_embedding_servers_have_codecs_of_their_own() -> None:
    """Pooled rows and their gradients, one message for two tables each: the bytes of both; ids stay as they are."""
    found = messages(verify(transform(coded(pooled="fp16", push="rowwise4"))))
    assert found["n0>ps0:ids"] == (2 * 32 * 4, "")
    assert found["ps0>n0:pooled"] == (2 * 32 * 16 * 2, "fp16")
    assert found["n0>ps0:grads"] == (2 * 32 * (10 + 8), "rowwise4")


def test_a_table_can_be_coded_on_its_way_to_another_node() -> None:
    """Rows that the rank passes on to the interaction on node 1 are a cut like any other."""
    found = messages(verify(transform(coded(t0="bf16"))))
    assert {channel for channel, (_, codec) in found.items() if codec} == {"n0>n1:t0", "n1>n0:d.t0"}


def test_fp32_is_no_codec() -> None:
    """Saying what is the case anyway changes no program."""
    assert transform(coded(bottom1="fp32", push="fp32")).sessions == transform(coded()).sessions


def test_programs_show_codecs() -> None:
    """In the text form, behind the bytes."""
    text = to_text(transform(coded(bottom1="bf16")))
    assert "Send bottom1 to n1 (1024 B as bf16)" in text
    assert "Recv bottom1 from n0 (1024 B as bf16)" in text


def test_ends_that_disagree_on_the_codec_are_named() -> None:
    """A Recv that would decode fp16 as bf16: same bytes, other numbers."""
    job = verify(transform(coded(bottom1="bf16")))
    broken = edited(job, 0, 1, changed(index_of(job, 1, Recv, "bottom1"), codec="fp16"))
    with pytest.raises(BrokenProgram, match=r"place n1, instruction \d+: Recv.*expected the codec of Send"):
        verify(broken)


def test_bytes_that_are_not_the_codecs_are_named() -> None:
    """Both ends agree on bf16 with the bytes of float32."""
    job = verify(transform(coded(bottom1="bf16")))
    index = index_of(job, 0, Send, "bottom1")
    broken = edited(edited(job, 0, 0, changed(index, bytes=2048)), 0, 1, changed(0, bytes=2048))
    with pytest.raises(BrokenProgram, match="expected 1024 bytes, the size of its tensors"):
        verify(broken)


@given(
    random_plans(),
    st.sampled_from([*EVERY_ELEMENT, "dct-mp:0.3", "dct-mp:1:laplace", "top-k:0.3:feedback", "sketch:0.2"]),
    st.sampled_from(EVERY_ELEMENT),
)
def test_any_plan_with_any_codec_is_a_valid_job(plan: Plan, cut: str, server: str) -> None:
    """Every operator's output and both server messages coded: the verifier agrees with the transformation."""
    edges = {op.name: cut for op in plan.model.graph} | {"pooled": server, "push": server}
    verify(transform(dataclasses.replace(plan, codecs=edges)))


@pytest.mark.parametrize(
    ("codecs", "message"),
    [
        (
            {"middle": "bf16"},
            "edge 'middle': no such edge: allowed are pooled, push, allreduce, exchange and the names of operators",
        ),
        ({"bottom1": "zip"}, "edge 'bottom1': codec 'zip': allowed are fp32, bf16, fp16, rowwise8"),
        (
            {"bottom1": "dct-mp"},
            r"edge 'bottom1': codec 'dct-mp': .*, dct-mp:KEEP\[:RULE\], dct-dp:.* KEEP above 0 and up to 1",
        ),
        ({"bottom1": "dct-mp:0"}, "KEEP above 0"),
        ({"bottom1": "dct-mp:many"}, "KEEP above 0"),
        ({"bottom1": "dct-mp:0.1:best"}, "RULE exact, laplace, laplace_one_sided"),
        ({"bottom1": "bf16:0.1"}, "codec 'bf16:0.1'"),
        ({"push": "dct-mp:0.1"}, "edge 'push': codec 'dct-mp:0.1': allowed are fp32"),
        ({"push": "dct-dp:0.1"}, "edge 'push': codec 'dct-dp:0.1': allowed are fp32"),
        ({"bottom1": "dct-dp:0.1"}, "edge 'bottom1': codec 'dct-dp:0.1': for allreduce and exchange only"),
        (
            {"exchange": "rowwise1"},
            "edge 'exchange': codec 'rowwise1': allowed are fp32, bf16, fp16, rowwise8, rowwise4,",
        ),
        ({"exchange": "dct-mp:0.1"}, "edge 'exchange': codec 'dct-mp:0.1': allowed are fp32, bf16, fp16, rowwise8"),
        ({"allreduce": "rowwise8"}, "codec 'rowwise8': allowed are fp32, bf16, fp16 and dct-dp:KEEP"),
        ({"allreduce": "dct-mp:0.1"}, "codec 'dct-mp:0.1': allowed are fp32, bf16, fp16"),
        ({"allreduce": "top-k:0.1"}, "codec 'top-k:0.1': allowed are fp32, bf16, fp16"),
        ({"push": "sketch:0.1"}, "codec 'sketch:0.1': allowed are fp32"),
        ({"exchange": "top-k:0.1"}, r"codec 'top-k:0.1': allowed are fp32, .* and, of push, dct-dp:KEEP\[:EVERY\]"),
        ({"bottom1": "top-k:0.1:always"}, r"top-k:KEEP\[:feedback\]"),
        ({"bottom1": "sketch"}, "KEEP above 0"),
        ({"allreduce": "dct-dp:0.1:0"}, "EVERY a number of steps"),
        ({"allreduce": "dct-dp:0.1:often"}, "EVERY a number of steps"),
    ],
)
def test_codecs_that_do_not_exist_are_refused(codecs: dict[str, str], message: str) -> None:
    """Unknown edges, unknown names, shares out of range, and masks where no cut gives them."""
    with pytest.raises(InvalidPlan, match=message):
        coded(**codecs)


def test_a_name_says_formats_share_and_rule() -> None:
    """The parts of a codec's name."""
    found = parse_codec("dct-mp:0.05:laplace_one_sided")
    assert (found.forward, found.backward, found.keep) == (Codec.BITMASK, Codec.VALUES, 0.05)
    assert found.rule == "laplace_one_sided"
    assert found.is_sparse
    assert not parse_codec("rowwise2").is_sparse


def test_an_all_reduce_has_a_codec() -> None:
    """It stands on the instruction, whose bytes stay those of the buffer, and in the text form; one rank has none."""
    model = dlrm([3, 8, 16], tables(1, 9, 16), [8, 1])
    job = verify(transform(plans.plan(model, nodes=2, ranks=2, codecs={"allreduce": "dct-dp:0.01:100"})))
    (reduce,) = [i for i in job.sessions[0].programs[0].instructions if isinstance(i, AllReduce)]
    assert (reduce.codec, reduce.bytes) == ("dct-dp:0.01:100", 4 * model.graph.dense_parameters)
    assert f"({reduce.bytes} B as dct-dp:0.01:100)" in to_text(job)


@pytest.mark.parametrize(
    ("elements", "keep", "codec"), [(10_000, 0.01, Codec.IDX16), (10_000, 0.1, Codec.BITMASK), (255, 0.01, Codec.COO32)]
)
def test_dct_dp_takes_the_format_of_the_fewest_bytes(elements: int, keep: float, codec: Codec) -> None:
    """16-bit positions where little is kept, a bitmask where more is; small tensors are sent whole anyway."""
    assert parse_codec(f"dct-dp:{keep}").gradient_message(elements).codec is codec


def test_plan_files_keep_codecs(tmp_path: Path) -> None:
    """Written and read again they are the same; a file from before there were any has none; a wrong one is named."""
    spec = {"kind": "dlrm", "name": "x", "dense_features": 3, "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [1]}
    model = model_from_spec(spec | {"tables": [{"name": "user", "rows": 9}]})
    plan, path = plans.plan(model, codecs={"bottom_0": "dct-mp:0.5", "push": "bf16"}), tmp_path / "plan.json"
    save_plan(path, plan, roofline_costs(model, plan.batch, plan.servers[0]))
    assert load_plan(path).plan == plan
    document = json.loads(path.read_text())
    assert document["plan"]["codecs"] == plan_to_json(plan)["codecs"] == {"bottom_0": "dct-mp:0.5", "push": "bf16"}
    del document["plan"]["codecs"]
    path.write_text(json.dumps(document))
    assert load_plan(path).plan.codecs == {}
    document["plan"]["codecs"] = {"bottom_0": "zip"}
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidPlan, match=r"plan\.json: edge 'bottom_0': codec 'zip'"):
        load_plan(path)


def test_the_simulator_counts_bytes_and_seconds_of_codecs() -> None:
    """Both ends of a coded message take what encoding and decoding take besides sending and receiving fewer bytes."""
    codec, plain = "rowwise8", coded()
    plan, message = coded(bottom1=codec), Message(32, 16, Codec.ROWWISE8)
    costs = roofline_costs(plan.model, plan.batch, plan.servers[0])
    machines = build_machines(Engine(), nodes_of(plan), Sharing.NODE, {})
    by_name = {machine.node.name: machine for machine in machines}
    seconds: dict[tuple[str, type], float] = {}
    for name, found in (("plain", plain), ("coded", plan)):
        for worker in workers(transform(found)):
            lowered = Lowering(found, costs, by_name).lower(worker)
            for instruction, primitives in zip(worker.program, lowered, strict=True):
                if isinstance(instruction, Send | Recv) and instruction.tensors == ("bottom1",):
                    seconds[name, type(instruction)] = busy_ns(primitives) * 1e-9
                    sent = [primitive.bytes for primitive in primitives if isinstance(primitive, Emit)]
                    assert sent in ([], [message.bytes if name == "coded" else 32 * 16 * 4])
    less = 32 * 16 * 4 - message.bytes
    cost = costs.message
    sending, receiving = cost.send_variable(less, 0), cost.receive_variable(less, 0)
    for kind, extra in ((Send, message.encode_seconds - sending), (Recv, message.decode_seconds - receiving)):
        slowness = costs.slowdown(plan.groups[0][0])
        assert seconds["coded", kind] - seconds["plain", kind] == pytest.approx(extra * slowness, abs=2e-9)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "dct-dp:0.01"])
def test_the_simulator_moves_what_a_compressed_all_reduce_moves(codec: str, merged: bool) -> None:
    """Four ranks: 2 (R - 1) / R of the buffer in float32, half of that in bf16, R - 1 times what is kept under DCT-DP; core
    time is that of messages, additions and the codec, in slices and merged alike."""
    model = dlrm([13, 64, 16], tables(1, 9, 16), [63, 1])
    plan = plans.plan(model, nodes=4, ranks=4, codecs={"allreduce": codec})
    rank = next(worker for worker in workers(transform(plan)) if worker.role == "rank")
    reduce = next(i for i in rank.program if isinstance(i, AllReduce))
    costs = roofline_costs(model, plan.batch, plan.servers[0])
    machines = build_machines(Engine(), nodes_of(plan), Sharing.NODE, {})
    by_name = {machine.node.name: machine for machine in machines}
    lowered = Lowering(plan, costs, by_name, Folding(merged=merged)).lower_one(rank, reduce)
    sent, moves = sum(p.bytes for p in lowered if isinstance(p, Emit)), reduction(plan, reduce)
    kept = sum(parse_codec("dct-dp:0.01").gradient_message(model.graph[op].parameters).bytes for op in reduce.ops)
    expected = {"fp32": 6 * reduce.bytes / 4, "bf16": 3 * reduce.bytes / 4, "dct-dp:0.01": 3 * kept}
    assert sent == pytest.approx(expected[codec], abs=64)
    phases, message = 1 + moves.gathers, costs.message
    ends = message.send(moves.wire[0], moves.tensors) + message.receive(moves.wire[0], moves.tensors)
    seconds = 3 * phases * (ends + moves.decode[0])
    seconds += (
        3 * costs.sum_seconds_per_byte * (moves.adds[0] + moves.places[0])
        + 3 * moves.encode[0]
        + moves.gathers * moves.encode[0]
    )
    assert busy_ns(lowered) * 1e-9 == pytest.approx(seconds * costs.slowdown(plan.groups[0][0]), rel=0.02)


def test_the_command_line_puts_codecs_into_the_plan(tmp_path: Path) -> None:
    """``solve --codec`` twice: the plan file has both; a codec or edge that does not exist is refused before anything is
    solved."""

    def solve(*codecs: str) -> Result:
        options = ["--cluster", "local:2", "--hogwild", "1", "--max-rows", "500", "--max-replicas", "1"]
        named = [word for codec in codecs for word in ("--codec", codec)]
        return CliRunner().invoke(app, ["solve", "demo", *options, *named, "--out", str(tmp_path / "plan.json")])

    done = solve("top_0=dct-mp:0.25", "push=bf16")
    assert done.exit_code == 0, done.output
    assert load_plan(tmp_path / "plan.json").plan.codecs == {"top_0": "dct-mp:0.25", "push": "bf16"}
    for wrong, message in (("top_9=bf16", "no such edge"), ("top_0=zip", "codec 'zip'"), ("bf16", "EDGE=CODEC")):
        refused = solve(wrong)
        assert refused.exit_code == 2
        assert message in refused.stderr
