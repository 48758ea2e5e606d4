"""The verifier: each kind of broken program is refused, and the message names place, instruction and expectation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from placement.errors import DoesNotFit
from placement.plan import Plan, Sync
from programs.instructions import AllReduce, Average, Compute, Instruction, NextBatch, Place, Program, Recv, Role, Send
from programs.transform import JobPrograms, transform
from programs.verify import BrokenProgram, memory_needed, verify
from tests.executor.tiny import dlrm, tables
from tests.programs import plans

Edit = Callable[[list[Instruction]], list[Instruction]]


def edited(job: JobPrograms, rank: int, place: int, edit: Edit) -> JobPrograms:
    """The job with the instructions of one program (by its number in the session) changed."""
    session = job.sessions[rank]
    programs = list(session.programs)
    programs[place] = Program(programs[place].place, tuple(edit(list(programs[place].instructions))))
    sessions = list(job.sessions)
    sessions[rank] = replace(session, programs=tuple(programs))
    return replace(job, sessions=tuple(sessions))


def index_of(job: JobPrograms, place: int, kind: type[Instruction], tensor: str, rank: int = 0) -> int:
    """Index of the first instruction of a class that carries a tensor."""
    code = job.sessions[rank].programs[place].instructions
    return next(n for n, i in enumerate(code) if isinstance(i, kind) and tensor in getattr(i, "tensors", (tensor,)))


def refused(job: JobPrograms) -> str:
    """The message with which the verifier refuses a job."""
    with pytest.raises(BrokenProgram) as caught:
        verify(job)
    assert re.match(r"rank \d, place \w+\d, instruction \d+: ", str(caught.value))
    return str(caught.value)


@pytest.fixture(scope="session")
def cut(cut_plan: Plan) -> JobPrograms:
    """Programs of the DLRM with the top MLP on node 1: the rank n0, the node n1, the server ps0."""
    return verify(transform(cut_plan))


def without(index: int) -> Edit:
    """Drop an instruction."""
    return lambda code: code[:index] + code[index + 1 :]


def changed(index: int, **fields: object) -> Edit:
    """Change fields of an instruction."""
    return lambda code: [*code[:index], replace(code[index], **fields), *code[index + 1 :]]  # type: ignore[type-var]


def test_a_missing_send_is_named_at_its_receive(cut: JobPrograms) -> None:
    """Without the Send of ``interaction`` the Recv on n1, instruction 0, has no partner."""
    broken = edited(cut, 0, 0, without(index_of(cut, 0, Send, "interaction")))
    message = refused(broken)
    assert message.startswith("rank 0, place n1, instruction 0: Recv(")
    assert message.endswith("expected one Send of this channel, found none")


def test_a_missing_receive_is_named_at_its_send(cut: JobPrograms) -> None:
    """Without the Recv on n1 the Send of the rank has no partner."""
    index = index_of(cut, 0, Send, "interaction")
    message = refused(edited(cut, 0, 1, without(0)))
    assert message.startswith(f"rank 0, place n0, instruction {index}: Send(")
    assert message.endswith("expected a Recv of this channel")


def test_a_channel_used_twice_is_named(cut: JobPrograms) -> None:
    """A second Send on a channel would overtake the first."""
    index = index_of(cut, 0, Send, "interaction")
    broken = edited(cut, 0, 0, lambda code: [*code[: index + 1], code[index], *code[index + 1 :]])
    message = refused(broken)
    assert f"place n0, instruction {index + 1}: Send(" in message
    assert message.endswith("a channel carries one message a step")


def test_other_bytes_are_named(cut: JobPrograms) -> None:
    """A Recv that expects other bytes than its Send brings."""
    message = refused(edited(cut, 0, 1, changed(0, bytes=4)))
    assert message.startswith("rank 0, place n1, instruction 0: Recv(")
    assert "expected the tensors and bytes of Send(" in message


def test_bytes_that_are_not_those_of_the_tensors_are_named(cut: JobPrograms) -> None:
    """Both ends agree on 4 bytes for a tensor of 4 samples by 7 floats."""
    index = index_of(cut, 0, Send, "interaction")
    broken = edited(edited(cut, 0, 0, changed(index, bytes=4)), 0, 1, changed(0, bytes=4))
    message = refused(broken)
    assert message.startswith(f"rank 0, place n0, instruction {index}: Send(")
    assert message.endswith("expected 112 bytes, the size of its tensors")


def test_swapped_peers_are_named(cut: JobPrograms) -> None:
    """A Recv on n1 that waits for the server, while the rank sends."""
    message = refused(edited(cut, 0, 1, changed(0, peer=Place(Role.SERVER, 0))))
    assert message.startswith("rank 0, place n1, instruction 0: Recv(")
    assert "expected peers to match" in message


def test_use_before_definition_is_named(cut: JobPrograms) -> None:
    """The first top layer is computed before its input was received."""
    message = refused(edited(cut, 0, 1, lambda code: [code[1], code[0], *code[2:]]))
    assert message.startswith("rank 0, place n1, instruction 0: Compute(")
    assert message.endswith("tensor 'interaction' is used before it is defined")


def test_a_tensor_defined_twice_is_named(cut: JobPrograms) -> None:
    """An operator that runs twice in a step."""
    code = cut.sessions[0].programs[1].instructions
    first = next(n for n, i in enumerate(code) if isinstance(i, Compute))
    message = refused(edited(cut, 0, 1, lambda code: [*code[: first + 1], code[first], *code[first + 1 :]]))
    assert f"place n1, instruction {first + 1}: Compute(" in message
    assert message.endswith("tensor 'top0' is defined twice")


@pytest.fixture(scope="session")
def two_ranks() -> JobPrograms:
    """Two ranks, everything DP, with one all-reduce each."""
    return verify(transform(plans.plan(dlrm([3, 4], tables(1, 9, 4), [1]), nodes=2, ranks=2)))


def test_another_collective_than_rank_0s_is_named(two_ranks: JobPrograms) -> None:
    """Rank 1 all-reduces other operators than rank 0."""
    index = index_of(two_ranks, 0, AllReduce, "", rank=1)
    message = refused(edited(two_ranks, 1, 0, changed(index, ops=("top0", "bottom0"))))
    assert message.startswith(f"rank 1, place n1, instruction {index}: AllReduce(")
    assert message.endswith("expected the collectives of rank 0 in its order")


def test_collectives_in_another_order_are_named(two_ranks: JobPrograms) -> None:
    """Two all-reduces, entered by rank 1 in the other order."""
    index = index_of(two_ranks, 0, AllReduce, "")
    halves = [AllReduce(("bottom0",), 64), AllReduce(("top0",), 24)]
    job = edited(two_ranks, 0, 0, lambda code: [*code[:index], *halves, *code[index + 1 :]])
    job = edited(job, 1, 0, lambda code: [*code[:index], *halves[::-1], *code[index + 1 :]])
    message = refused(job)
    assert message.startswith(f"rank 1, place n1, instruction {index}: AllReduce(ops=('top0',)")


def test_a_missing_collective_is_named(two_ranks: JobPrograms) -> None:
    """Rank 1 never enters the all-reduce that rank 0 waits in."""
    index = index_of(two_ranks, 0, AllReduce, "", rank=1)
    message = refused(edited(two_ranks, 1, 0, without(index)))
    assert "place n1, instruction " in message
    assert "end of the program: expected AllReduce(" in message


def test_a_cyclic_wait_is_named(cut: JobPrograms) -> None:
    """The rank waits for the logit before it sends what the logit is made of."""
    code = cut.sessions[0].programs[0].instructions
    send, receive = index_of(cut, 0, Send, "interaction"), index_of(cut, 0, Recv, "top1")
    order = [*range(send), receive, send, *(n for n in range(len(code)) if n not in (*range(send), send, receive))]
    message = refused(edited(cut, 0, 0, lambda code: [code[n] for n in order]))
    assert message.startswith(f"rank 0, place n0, instruction {send}: Recv(")
    assert message.endswith("waits for ever: its message is never sent")


def test_an_instruction_out_of_place_is_told_from_the_end(cut: JobPrograms) -> None:
    """A program without its NextBatch has no ids to send."""
    assert isinstance(cut.sessions[0].programs[0].instructions[0], NextBatch)
    message = refused(edited(cut, 0, 0, without(0)))
    assert "place n0, instruction 0: Send(" in message
    assert "'ids.t0' is used before it is defined" in message


@pytest.mark.parametrize("role", ["trainer", "server"])
def test_too_little_memory_is_refused_with_node_and_bytes(role: str) -> None:
    """A trainer of 1 kB cannot hold the dense part, a server of 1 kB not a table of 1,000 rows of 4 floats."""
    plan = plans.plan(dlrm([3, 16, 4], tables(1, 1000, 4), [8, 1]))
    small = plans.machine("small", memory_bytes=1000)
    plan = replace(plan, groups=((small,),)) if role == "trainer" else replace(plan, servers=(small,))
    with pytest.raises(DoesNotFit, match=r"does not fit on node small: needs [\d,]+ bytes, has 1,000") as caught:
        verify(transform(plan))
    assert caught.value.needed > (1000 * 4 * 4 if role == "server" else 1000)


def test_memory_grows_with_threads_and_groups() -> None:
    """A server serves every thread of every group: its buffers are counted for each; its rows once."""

    def server_bytes(groups: int, hogwild: int) -> int:
        plan = plans.plan(
            dlrm([3, 4], tables(1, 9, 4), [1]),
            groups=groups,
            hogwild=hogwild,
            sync=plans.Sync() if groups > 1 else None,
            sync_servers=groups - 1,
        )
        return memory_needed(transform(plan))["server0"][0]

    rows, one = 9 * 4 * 4, server_bytes(1, 1)
    assert server_bytes(1, 3) - rows == 3 * (one - rows)
    assert server_bytes(2, 3) - rows == 6 * (one - rows)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda step: {"pieces": (replace(step.pieces[0], begin=1), *step.pieces[1:])}, "from element 0 on"),
        (lambda step: {"bytes": step.bytes - 4}, "bytes, and a chunk of them for each group"),
        (lambda step: {"chunk_bytes": step.chunk_bytes // 2}, "and a chunk of them for each group"),
        (lambda step: {"taken": ((),)}, "expected to take from n1 what it passes on"),
    ],
)
def test_averages_that_do_not_fit_together_are_named(
    change: Callable[[Average], dict[str, object]], expected: str
) -> None:
    """A part that nobody averages, sizes that are not those of the pieces, a part that is not taken."""
    plan = plans.plan(dlrm([3, 8, 4], [], [8, 1]), nodes=2, ranks=2, groups=2, sync=Sync(alpha=1.0, algorithm="ma"))
    job = verify(transform(plan))
    step = job.shadows[0]
    assert isinstance(step, Average)
    fields = change(step)
    assert expected in refused(replace(job, shadows={**job.shadows, 0: replace(step, **fields)}))


def test_an_operator_that_nobody_averages_is_named() -> None:
    """The last piece of the last rank is left out: its operator is not averaged whole."""
    plan = plans.plan(dlrm([3, 8, 4], [], [8, 1]), groups=2, sync=Sync(alpha=1.0, algorithm="ma"))
    job = transform(plan)
    step = job.shadows[0]
    assert isinstance(step, Average)
    less = replace(step, pieces=step.pieces[:-1], bytes=step.bytes - 4 * step.pieces[-1].elements)
    assert "expected an average of all parameters of 'top1'" in refused(replace(job, shadows={0: less}))
