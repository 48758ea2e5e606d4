"""Parameter storage and start values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor.arrays import UnsupportedModel, generator, private_buffer
from executor.parameters import BLOCK_ROWS, Parameters, allocate_rows, check_supported, layout
from problem.graph import Graph, Kind, Operator
from problem.model import EmbeddingTable
from tests.executor.tiny import cross, dcn, dlrm, linear, tables

MODEL = dlrm([3, 8, 4], tables(2, 50, 4), [6, 1])


def test_layout_covers_every_parameter() -> None:
    """Names and shapes of LINEAR and CROSS parameters, in order of the flat buffer."""
    assert layout(linear("fc", "a", 3, 8)) == (("weight", (3, 8)), ("bias", (8,)))
    assert layout(cross("x", ("a", "a"), 6, 2)) == (("down", (6, 2)), ("up", (2, 6)), ("bias", (6,)))
    assert layout(Operator("cat", Kind.CONCAT, ("a",), 3)) == ()


def test_views_are_views_of_the_flat_buffer() -> None:
    """Writing through a named view changes the flat buffer that an all-reduce sees."""
    parameters = Parameters(MODEL)
    parameters.views("bottom0")["weight"][2, 7] = 5.0
    parameters.views("bottom0")["bias"][0] = 6.0
    assert parameters.flat("bottom0")[23] == 5.0
    assert parameters.flat("bottom0")[24] == 6.0


def test_buffers_come_from_the_factory_in_graph_order() -> None:
    """The factory is asked once per operator (and once for its state), in graph order, for the wanted operators only."""
    asked: list[tuple[str, int]] = []

    def factory(name: str, elements: int) -> np.ndarray:
        asked.append((name, elements))
        return private_buffer(name, elements)

    parameters = Parameters(replace(MODEL, optimizer="adagrad"), factory, ["top1", "bottom0", "interaction"])
    assert parameters.operators == ("bottom0", "top1")
    assert asked == [("bottom0", 32), ("top1", 7), ("bottom0.state", 32), ("top1.state", 7)]
    assert parameters.state("top1").shape == (7,)
    assert Parameters(MODEL).state("top1").shape == (0,)


def test_start_values_belong_to_name_and_seed() -> None:
    """An operator starts from the same values alone and in the model; another seed or name gives others."""
    every, alone, other = Parameters(MODEL), Parameters(MODEL, operators=["top0"]), Parameters(MODEL)
    for parameters, seed in ((every, 1), (alone, 1), (other, 2)):
        parameters.initialise(seed)
    np.testing.assert_array_equal(every.flat("top0"), alone.flat("top0"))
    assert not np.array_equal(every.flat("top0"), other.flat("top0"))
    assert not np.array_equal(every.flat("top0")[:7], every.flat("top1"))


def test_start_values_have_the_spread_of_dlrm() -> None:
    """Weights have variance 2 / (in + out), biases 1 / out; CROSS biases are zero."""
    wide = Parameters(dlrm([200, 400, 4], tables(1, 9, 4), [1]))
    wide.initialise(0)
    views = wide.views("bottom0")
    assert np.std(views["weight"]) == pytest.approx(np.sqrt(2 / 600), rel=0.02)
    assert np.std(views["bias"]) == pytest.approx(np.sqrt(1 / 400), rel=0.15)
    crossed = Parameters(dcn(3, EmbeddingTable("t", 9, 4), 2))
    crossed.initialise(0)
    assert not crossed.views("cross0")["bias"].any()
    assert crossed.views("cross0")["up"].all()


def test_any_row_range_starts_like_the_whole_table() -> None:
    """Row ranges that cut blocks anywhere hold the values that the whole table has there, within +-1/sqrt(rows)."""
    table = EmbeddingTable("t", 2 * BLOCK_ROWS + 100, 3)
    whole = allocate_rows(table, 0, table.rows)
    whole.initialise(5)
    bound = 1 / np.sqrt(table.rows)
    assert np.abs(whole.rows).max() <= bound * 1.00001
    assert np.std(whole.rows) == pytest.approx(bound / np.sqrt(3), rel=0.02)
    for begin, end in ((0, 1), (7, 7), (100, BLOCK_ROWS), (BLOCK_ROWS - 1, BLOCK_ROWS + 1), (5000, table.rows)):
        part = allocate_rows(table, begin, end)
        part.initialise(5)
        np.testing.assert_array_equal(part.rows, whole.rows[begin:end])


@pytest.mark.parametrize(("optimizer", "shape"), [("sgd", (0,)), ("adagrad", (7, 3)), ("rowwise_adagrad", (7,))])
def test_tables_keep_the_state_of_their_optimizer(optimizer: str, shape: tuple[int, ...]) -> None:
    """No state for SGD, one element per weight for Adagrad, one per row for row-wise Adagrad."""
    assert allocate_rows(EmbeddingTable("t", 9, 3, optimizer=optimizer), 1, 8).state.shape == shape


def test_generators_depend_on_every_part_of_their_key() -> None:
    """Equal keys give equal draws; another seed, name or index gives another."""
    first = generator(0, "a", 1).random()
    assert first == generator(0, "a", 1).random()
    assert (
        len({first, generator(1, "a", 1).random(), generator(0, "b", 1).random(), generator(0, "a", 2).random()}) == 4
    )


def test_what_cannot_be_executed_is_refused() -> None:
    """Imported operators, two losses, Adam, half-precision tables: refused with the name of the culprit."""
    fixed = Graph((Operator("f", Kind.FIXED), Operator("loss", Kind.LOSS, ("f",), 1)))
    second = Graph((*MODEL.graph, Operator("more", Kind.LOSS, ("top1",), 1)))
    for model, message in (
        (replace(MODEL, graph=fixed), "operator 'f' is known by its costs only"),
        (replace(MODEL, graph=second), "2 losses"),
        (replace(MODEL, optimizer="adam"), "model 'tiny-dlrm': optimizer 'adam'"),
        (replace(MODEL, tables=tuple(tables(2, 50, 4, optimizer="lion"))), "table 't0': optimizer 'lion'"),
        (replace(MODEL, tables=tuple(tables(2, 50, 4, dtype="fp16"))), "table 't0': dtype 'fp16'"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            check_supported(model)
