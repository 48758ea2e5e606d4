"""PipeDream's and Piper's instances: judges, tiny optima by hand and by search, published values."""

import itertools
from dataclasses import replace

import pytest

from placement.errors import DoesNotFit, InvalidPlan
from placement.public import pipedream, piper
from placement.public.pipedream import Stage, pipeline_seconds, solve_pipedream
from placement.public.piper import PiperStage, piper_seconds, solve_piper
from problem.errors import BadInput
from problem.public_graphs import PipeDreamProfile, PiperInstance, PiperVariant, read_pipedream, read_piper
from tests.placement.public_instances import published

GIB = 1 << 30
PROFILE = PipeDreamProfile(
    name="diamond",
    layers=("a", "b", "c", "d"),
    compute_seconds=(4.0, 2.0, 2.0, 4.0),
    forward_seconds=(1.0, 1.0, 1.0, 1.0),
    activation_bytes=(0.0,) * 4,
    parameter_bytes=(0.0, 0.0, 0.0, 8.0),
    edges=((0, 1), (0, 2), (1, 3), (2, 3)),
)


def variant(name: str, seconds: float, memory: float, before: tuple[int, ...], after: tuple[int, ...]) -> PiperVariant:
    """A variant whose tensor-parallel sync is free."""
    return PiperVariant(
        id=name,
        timePerSample=seconds,
        parameterSize=2.0,
        memoryUsageA=memory,
        memoryUsageB=1.0,
        syncTimeFw={str(i): 0.0 for i in before},
        syncTimeBw={str(i): 0.0 for i in after},
    )


def piper_chain(times: tuple[float, ...], devices: int, memory: float) -> PiperInstance:
    """Layers in a row: a fast variant, and one that is slower and leaner; two devices halve the time."""
    last = len(times) - 1
    variants = []
    for i, time in enumerate(times):
        ends = ((i - 1,) if i else (), (i + 1,) if i < last else ())
        fast, lean = variant("fast", time, 3.0, *ends), variant("lean", 1.5 * time, 1.0, *ends)
        split = variant("fast", 0.6 * time, 2.0, *ends)
        variants.append({1: (fast, lean), 2: (split,)})
    edges = {(i, i + 1): 1.0 for i in range(last)}
    return PiperInstance("chain", devices, 4, memory, 10.0, tuple(map(str, range(last + 1))), tuple(variants), edges)


def test_pipedream_by_hand():
    """Two machines: halves of 6 s each beat a replicated stage that exchanges 8 bytes at 1 B/s, (12 + 16) / 2 s."""
    assert pipeline_seconds(PROFILE, [Stage((0, 1, 2, 3), 2)], 2, bandwidth=1.0) == 14.0
    result = solve_pipedream(PROFILE, 2, bandwidth=1.0)
    assert result.value == result.bound == 6.0


def test_pipedream_on_all_stagings():
    """The optimum equals that of an exhaustive search over stages and replicas, for several numbers of machines."""
    for machines, bandwidth in itertools.product((1, 2, 3, 4, 5), (1.0, 100.0)):
        best = min(
            pipeline_seconds(
                PROFILE, [Stage(tuple(part), m) for part, m in zip(parts, counts, strict=True)], machines, bandwidth
            )
            for order in ([0, 1, 2, 3], [0, 2, 1, 3])
            for parts in _cuts(order)
            for counts in itertools.product(range(1, machines + 1), repeat=len(parts))
            if sum(counts) <= machines
        )
        assert solve_pipedream(PROFILE, machines, bandwidth).value == pytest.approx(best)


def _cuts(order: list[int]) -> list[list[list[int]]]:
    """Every way to cut a sequence into parts."""
    if not order:
        return [[]]
    return [[order[:k], *rest] for k in range(1, len(order) + 1) for rest in _cuts(order[k:])]


def test_pipedream_along_one_order(monkeypatch):
    """Where the ideals are too many the pipeline follows one order, and the bound is honest."""
    monkeypatch.setattr(pipedream, "MAX_IDEALS", 3)
    result = solve_pipedream(PROFILE, 2, bandwidth=1.0)
    assert result.bound == 6.0
    assert result.value == 6.0


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([Stage((0, 1, 2), 1)], "every layer"),
        ([Stage((1, 2, 3), 1), Stage((0,), 1)], "earlier"),
        ([Stage((0, 1, 2, 3), 3)], "machines"),
    ],
)
def test_broken_pipelines_are_refused(stages, message):
    """The judge of pipelines names the rule that is broken."""
    with pytest.raises(InvalidPlan, match=message):
        pipeline_seconds(PROFILE, stages, 2)


@pytest.mark.parametrize(
    ("name", "machines", "value"),
    [
        ("vgg16", 4, 0.174498),
        ("vgg16", 16, 0.046587),
        ("alexnet", 16, 0.00706),
        ("resnet50", 16, 0.029212),
        ("resnext101", 4, 0.140525),
        ("gnmt", 16, 0.017125),
    ],
)
def test_published_pipedream_values(name, machines, value):
    """The optimum is what PipeDream's own optimizer prints."""
    profile = read_pipedream(published("pipedream", f"{name}.txt"))
    assert solve_pipedream(profile, machines).value == pytest.approx(value, rel=1e-4)


def test_piper_by_hand():
    """Layers of 2, 1 and 1 s on two devices that hold all they need: one stage on both, d = 2 or t = 2, or two stages."""
    instance = piper_chain((2.0, 1.0, 1.0), devices=2, memory=100.0)
    stages = [PiperStage({0: "fast"}, 1, 1), PiperStage({1: "fast", 2: "fast"}, 1, 1)]
    assert piper_seconds(instance, stages) == pytest.approx(2.0 + 2 * 1.0 / 10.0)
    whole = PiperStage({0: "fast", 1: "fast", 2: "fast"}, 2, 1)
    assert piper_seconds(instance, [whole]) == pytest.approx(2.0 + 4 * 6.0 / 2 / 4 / 10.0)
    assert solve_piper(instance).value == pytest.approx(2.2)


def test_piper_on_all_pipelines():
    """Value and bound enclose the optimum of an exhaustive search over stages, degrees and variants."""
    for devices, memory in itertools.product((1, 2, 3, 4), (9.0, 14.0, 30.0)):
        instance = piper_chain((2.0, 1.0, 3.0), devices, memory)
        best = _best_pipeline(instance)
        if best == float("inf"):
            with pytest.raises(DoesNotFit):
                solve_piper(instance)
        else:
            result = solve_piper(instance)
            assert result.value == pytest.approx(best)
            assert result.bound <= best * (1 + 1e-9)


def _best_pipeline(instance: PiperInstance) -> float:
    best = float("inf")
    for parts in _cuts(list(range(len(instance.ids)))):
        for degrees in itertools.product(itertools.product((1, 2, 4), (1, 2)), repeat=len(parts)):
            if sum(d * t for d, t in degrees) > instance.devices:
                continue
            for names in itertools.product(("fast", "lean"), repeat=len(instance.ids)):
                stages = [
                    PiperStage({i: names[i] for i in part}, d, t) for part, (d, t) in zip(parts, degrees, strict=True)
                ]
                try:
                    best = min(best, piper_seconds(instance, stages))
                except InvalidPlan:
                    continue
    return best


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([PiperStage({0: "fast"}, 1, 1)], "every layer"),
        ([PiperStage({1: "fast"}, 1, 1), PiperStage({0: "fast"}, 1, 1)], "stages feed"),
        ([PiperStage({0: "fast", 1: "fast"}, 4, 1)], "devices"),
        ([PiperStage({0: "fast", 1: "fast"}, 3, 1)], "divide"),
        ([PiperStage({0: "lean", 1: "fast"}, 1, 2)], "no variant"),
        ([PiperStage({0: "fast", 1: "fast"}, 1, 1)], "bytes"),
    ],
)
def test_broken_piper_pipelines_are_refused(stages, message):
    """The judge of Piper's pipelines names the rule that is broken."""
    with pytest.raises(InvalidPlan, match=message):
        piper_seconds(piper_chain((1.0, 1.0), devices=3, memory=7.0), stages)


def test_piper_takes_two_variants_only():
    """A layer with three variants, or with variants of unlike traffic, is refused by name."""
    instance = piper_chain((1.0, 1.0), devices=2, memory=100.0)
    fast, lean = instance.variants[0][1]
    for options in ((fast, lean, fast), (fast, lean.model_copy(update={"parameterSize": 9.0}))):
        with pytest.raises(BadInput, match="TMPCs"):
            solve_piper(replace(instance, variants=({1: options}, instance.variants[1])))


def test_piper_along_one_order(monkeypatch):
    """Where stages are too many they follow one order, and no bound is claimed."""
    monkeypatch.setattr("placement.public.variants.MAX_PAIRS", 1)
    result = solve_piper(piper_chain((2.0, 1.0, 1.0), devices=3, memory=100.0))
    assert result.bound == 0.0
    assert result.value > 0


def test_published_piper_value():
    """BERT-32 on 8 devices of 80 GiB: what the authors' program prints."""
    instance = read_piper(published("piper", "inputs", "bert32a100.json"))
    small = replace(instance, devices=8, memory_bytes=80.0 * GIB, bandwidth=25.0 * GIB)
    assert solve_piper(small).value <= 0.122007269 * (1 + 1e-7)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_published_piper_values():
    """On every configuration the value is at most what the authors' program prints."""
    from experiments.public_bench import BenchOptions, bench

    folder = published("piper", "inputs")
    for row in bench("piper", folder, BenchOptions()):
        assert row.value <= row.published * (1 + 1e-7), row.instance
    assert piper.TOLERANCE < 1e-6
