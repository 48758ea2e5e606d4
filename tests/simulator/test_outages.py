"""Single losses, checkpoints, changes of the number of groups, NICs: each has its effect, in its direction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement.plan import Sync
from problem.errors import BadInput
from simulator.conditions import Checkpoints, Conditions, NodeLoss, Resize
from simulator.conditions_file import load_conditions
from simulator.engine import Engine
from simulator.outages import Outages
from simulator.simulate import simulate
from tests.simulator.instances import BATCH, US, chain_model, make_costs, make_plan, table

CHAIN, STEP = chain_model(2), 72
MS = 1e-3


def run(plan, steps=100, level="fluid", costs=None, **conditions):
    """A run without variation and warm-up."""
    settings = {"variation": 0.0, "steps": steps, "warmup": 0, "fidelity": level}
    return simulate(plan, costs or make_costs(plan.model), conditions=Conditions(**conditions), **settings)


def lose(node="g0n0", at=20.5, **settings):
    """A loss at so many steps of 72 us."""
    return NodeLoss(node, at * STEP * US, **settings)


@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_a_loss_costs_standstill_and_the_steps_since_the_checkpoint(level):
    """100 steps, the 21st of which ends while the node is gone; the checkpoint after the 20th; 1 ms to come back: 100 + 1
    steps and 1 ms less half a step."""
    every = Checkpoints(10 * STEP * US)
    result = run(make_plan(CHAIN), level=level, losses=(lose(restart_seconds=1 * MS),), checkpoints=every)
    assert result.simulated_seconds == pytest.approx((100 + 1) * STEP * US + 1 * MS - 0.5 * STEP * US)
    assert result.time_split["recovery"] == pytest.approx((1 * MS - 0.5 * STEP * US) / 100)
    assert result.happened[0].startswith("g0n0 was lost at")
    assert result.happened[0].endswith("made up to 1 steps again.")


def test_without_a_checkpoint_everything_is_lost():
    """The 21 steps made are made again."""
    result = run(make_plan(CHAIN), losses=(lose(),))
    assert result.simulated_seconds == pytest.approx(121 * STEP * US)


def test_detection_and_restart_add_up():
    """Noticing takes as long as it takes, then comes the restart."""
    split = run(make_plan(CHAIN), losses=(lose(detect_seconds=2 * MS, restart_seconds=3 * MS),))
    whole = run(make_plan(CHAIN), losses=(lose(restart_seconds=5 * MS),))
    assert split.simulated_seconds == whole.simulated_seconds


def test_rarer_checkpoints_lose_more():
    """The longer the interval, the more is made again, and the lower the throughput."""
    rates = [
        run(make_plan(CHAIN), losses=(lose(at=79.5),), checkpoints=Checkpoints(n * STEP * US)).samples_per_second
        for n in (5, 30, 50)
    ]
    assert rates[0] > rates[1] > rates[2]


def test_writing_checkpoints_stops_everybody():
    """Every 10 steps half a millisecond: nine of them in 100 steps, each after the step under way."""
    plain = run(make_plan(CHAIN)).simulated_seconds
    result = run(make_plan(CHAIN), checkpoints=Checkpoints(10 * STEP * US, 0.5 * MS))
    stops = (result.simulated_seconds - plain) / (0.5 * MS)
    assert 8 <= stops <= 10


GROUPS = {"groups": 2, "sync_servers": 1}


@pytest.mark.parametrize("whole_job", [False, True])
def test_other_groups_go_on_unless_the_job_starts_again(whole_job):
    """Two groups in the background: a loss in one leaves the other as fast as ever; a loss of the whole job does not."""
    plan = make_plan(CHAIN, **GROUPS, sync=Sync("background", 10))
    free = run(plan).samples_per_second
    loss = lose("g1n0", restart_seconds=20 * STEP * US, whole_job=whole_job)
    rate = run(plan, losses=(loss,), checkpoints=Checkpoints(20 * STEP * US)).samples_per_second / free
    assert rate == pytest.approx(0.83 if whole_job else 0.9, abs=0.03)


def test_averages_in_the_foreground_halt_everybody():
    """Groups that wait for each other in every exchange all start again, and exchanges stay in step."""
    plan = make_plan(CHAIN, **GROUPS, sync=Sync("foreground", 5, 1.0, "ma"))
    result = run(plan, losses=(lose("g1n0", restart_seconds=1 * MS),), checkpoints=Checkpoints(20 * STEP * US))
    assert "all 2 groups stood still" in result.happened[0]
    assert result.samples_per_second < run(plan).samples_per_second


def test_a_lost_server_halts_everybody():
    """Embedding servers serve all groups."""
    plan = make_plan(chain_model(2, (table(),)), servers=1, **GROUPS, sync=Sync("background", 10))
    result = run(plan, losses=(lose("ps0"),), checkpoints=Checkpoints(20 * STEP * US))
    assert "all 2 groups stood still" in result.happened[0]


@pytest.mark.parametrize("hogwild", [1, 3])
@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_messages_stay_in_step(level, hogwild):
    """Ranks that meet, a server, threads, losses, one while another is mended: the laws hold, nobody waits for ever."""
    plan = make_plan(chain_model(2, (table(),)), nodes=2, ranks=2, servers=1, hogwild=hogwild)
    losses = (lose(restart_seconds=2 * MS), lose("g0n1", at=25.5, restart_seconds=2 * MS), lose("ps0", at=70.2))
    every = Checkpoints(7 * STEP * US, 0.1 * MS)
    result = simulate(
        plan,
        make_costs(plan.model),
        steps=80,
        fidelity=level,
        conditions=Conditions(losses=losses, checkpoints=every, worker_sigma=0.1),
    )
    assert result.samples_per_second < run(plan, 80, level).samples_per_second
    assert result.time_split["recovery"] > 0
    assert len(result.happened) == 3


@pytest.mark.parametrize("sync", [Sync("background", 3), Sync("foreground", 1, 1.0, "ma")], ids=["apart", "together"])
@pytest.mark.parametrize("at", [4.7, 9.1, 13.3, 17.9])
def test_bug_a_checkpoint_while_only_some_stand_still(sync, at):
    """A checkpoint, or a loss, while some workers of a step had come to a hold and others had not changed the hold of the
    others alone: they made other steps again, waited for messages that never came, and the checkpoints went on for ever."""
    plan = make_plan(chain_model(2, (table(),)), servers=1, hogwild=2, **GROUPS, sync=sync)
    losses = tuple(lose("g0n0", at=at + more, restart_seconds=100 * US) for more in (0.0, 1.5, 2.7))
    for interval in (1.05, 1.4):
        every = Checkpoints(interval * STEP * US, 20 * US)
        settings = {"steps": 25, "warmup": 0, "fidelity": "fifo", "variation": 0.3}
        conditions = Conditions(losses=losses, checkpoints=every, worker_sigma=0.3)
        result = simulate(plan, make_costs(plan.model), conditions=conditions, **settings)
        assert result.time_split["recovery"] > 0


def test_bug_checkpoints_hid_a_deadlock():
    """With nothing else left to happen the next checkpoint is not planned, so that the run ends and says who waits."""
    engine = Engine()
    conditions = Conditions(checkpoints=Checkpoints(1.0, 0.5))
    Outages(engine, make_plan(CHAIN), conditions).start((), lambda _: None)
    engine.at(int(3.2e9), lambda _: None)
    assert not engine.run()
    assert engine.now == 4_000_000_000


def test_a_recorded_run_has_the_steps_that_count():
    """The timeline has each step once, the one that was not lost; times go up."""
    result = run(make_plan(CHAIN), losses=(lose(),), checkpoints=Checkpoints(10 * STEP * US))
    (worker,) = result.timeline.workers
    assert len(worker.ends) == 100
    assert (worker.ends[1:, -1] > worker.ends[:-1, -1]).all()


def test_a_loss_after_the_end_is_told():
    """A run that is too short says so instead of passing for one without a loss."""
    result = run(make_plan(CHAIN), losses=(NodeLoss("g0n0", 9.0),))
    assert "is lost at 9 s: the run ended at 0.0072 s, more steps are needed" in result.happened[0]


def test_a_changed_number_of_groups():
    """Three groups for 10 s, one for 20 s, of which 5 s are a pause: (3 x 10 + 15) / 30 = 1.5 groups on average."""
    plan = make_plan(CHAIN, groups=3, sync_servers=1, sync=Sync("background", 10))
    resizes = (Resize(10.0, 1, 5.0),)
    result = run(plan, resizes=resizes, duration_seconds=30.0)
    one = run(make_plan(CHAIN)).samples_per_second
    assert result.samples_per_second == pytest.approx(1.5 * one, rel=0.01)
    assert result.happened[0].startswith("0 to 10 s: 3 groups")
    assert "1 group after a pause of 5 s" in result.happened[1]


def test_more_groups_later_are_faster():
    """The earlier groups are added, the more is trained."""
    plan = make_plan(CHAIN, groups=4, sync_servers=1, sync=Sync("background", 10))
    rates = [
        run(plan, resizes=(Resize(0.0, 2), Resize(at, 4)), duration_seconds=30.0).samples_per_second
        for at in (5.0, 20.0)
    ]
    assert rates[0] > rates[1]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"resizes": (Resize(1.0, 3),), "duration_seconds": 2.0}, "resizes.groups"),
        ({"resizes": (Resize(3.0, 1),), "duration_seconds": 2.0}, "resizes.at_seconds"),
        ({"resizes": (Resize(3.0, 1),)}, "duration_seconds"),
        ({"resizes": (Resize(3.0, 1),), "losses": (lose(),), "duration_seconds": 4.0}, "losses"),
        ({"losses": (lose("nobody"),)}, "losses.node"),
        ({"slow_nics": {"nobody": 2.0}}, "slow_nics.nobody"),
        ({"slow_nics": {"g0n0": 0.0}}, "slow_nics.g0n0"),
    ],
)
def test_what_cannot_happen_is_refused(settings, field):
    """The field is named."""
    plan = make_plan(CHAIN, **GROUPS, sync=Sync("background", 10))
    with pytest.raises(BadInput, match=field):
        run(plan, **settings)


@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_nic_classes(level):
    """Ranks that meet go at the pace of the slowest NIC; one of twice the speed among three gains little."""
    model = chain_model(2, parameters=200_000)
    plan = make_plan(model, nodes=3, ranks=3)
    fast = replace(plan.groups[0][2], nic_bytes_per_second=2e9)
    mixed = replace(plan, groups=((*plan.groups[0][:2], fast),))
    same, slow = run(plan, 20, level), run(plan, 20, level, slow_nics={"g0n1": 4.0})
    assert 1.0 <= run(mixed, 20, level).samples_per_second / same.samples_per_second < 1.3
    assert 2.0 < same.samples_per_second / slow.samples_per_second <= 4.0
    assert slow.utilization["trainer"]["nic_tx"] < same.utilization["trainer"]["nic_tx"]


@pytest.mark.parametrize("level", ["fifo", "fluid"])
def test_servers_are_contended(level):
    """Twelve threads ask one server with two cores: slower cores there cost throughput, a second server gives it back."""
    model, costs = chain_model(2, (table("a"), table("b"))), None
    one = make_plan(model, servers=1, hogwild=12, changes={"cores": 2})
    one = replace(one, groups=((replace(one.groups[0][0], cores=12),),))
    two = replace(one, servers=(*one.servers, replace(one.servers[0], name="ps1", host="ps1")))
    two = replace(two, shards=(replace(one.shards[0]), replace(one.shards[1], server=1)))
    base = run(one, 40, level, costs, slow_nodes={"ps0": 4.0})
    assert base.samples_per_second < run(one, 40, level).samples_per_second
    shared = run(two, 40, level, costs, slow_nodes={"ps0": 4.0, "ps1": 4.0})
    assert shared.samples_per_second > 1.3 * base.samples_per_second
    assert base.time_split["ps_queue"] > 0


def test_bursts_of_stragglers_hold_up_those_that_meet():
    """One worker in a burst holds up all ranks: the more ranks, the more a burst of the same kind costs."""
    cost = []
    for ranks in (1, 6):
        plan = make_plan(CHAIN, nodes=ranks, ranks=ranks)
        bursts = {"burst_probability": 0.02, "burst_steps": 5, "burst_factor": 3.0}
        cost.append(run(plan, 300).samples_per_second / run(plan, 300, **bursts).samples_per_second)
    assert 1.0 < cost[0] < cost[1]


def test_events_come_from_a_file(tmp_path):
    """Losses, checkpoints, NICs and changes are fields of the file; a wrong key in a loss is named."""
    path = tmp_path / "faults.toml"
    path.write_text(
        "[slow_nics]\ng0n0 = 2.0\n[checkpoints]\ninterval_seconds = 5.0\n"
        '[[losses]]\nnode = "g0n0"\nat_seconds = 1.5\nrestart_seconds = 3.0\nwhole_job = true\n'
    )
    found = load_conditions(path)
    assert found.losses == (NodeLoss("g0n0", 1.5, 0.0, 3.0, whole_job=True),)
    assert found.checkpoints == Checkpoints(5.0)
    assert found.slow_nics == {"g0n0": 2.0}
    path.write_text('[[losses]]\nnode = "g0n0"\nat = 1.5\n')
    with pytest.raises(BadInput, match=r"losses\.at"):
        load_conditions(path)
    path.write_text("duration_seconds = 9.0\n[[resizes]]\nat_seconds = 3.0\ngroups = 2\n")
    assert load_conditions(path).resizes == (Resize(3.0, 2),)


def test_a_session_is_a_batch_however_often_it_is_made():
    """Throughput counts each step once: samples per second is steps times batch over the whole time."""
    result = run(make_plan(CHAIN), losses=(lose(),))
    assert result.samples_per_second == pytest.approx(100 * BATCH / result.simulated_seconds)
