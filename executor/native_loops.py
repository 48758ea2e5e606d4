"""The loops of the compiled kernels in LLVM's assembly language: what ``native`` compiles.

Sums and scattered updates go over bags of ids with a block of columns in vector registers, and look at each id: one whose
row is not held is passed over. Knows nothing of NumPy or of compiling.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Ids whose rows are prefetched. 8, 16 and 32 were within 5 % of each other for 16 to 128 columns, none 15 % slower.
AHEAD = 16
#: Floats in a cache line, the distance of prefetches.
_LINE = 16


def _chunks(width: int) -> Iterator[tuple[int, int, str]]:
    """Cut a block into vectors: (first column, floats, type), sixteen floats and then halves of that."""
    begin = 0
    for floats in (16, 8, 4, 2, 1):
        while width - begin >= floats:
            yield begin, floats, f"<{floats} x float>"
            begin += floats


def _splat(name: str, value: str, width: int) -> str:
    """Put a float into every place of the vectors of a block: ``%name.0`` and on."""
    lines = []
    for k, (_, floats, kind) in enumerate(_chunks(width)):
        lines.append(f"  %{name}.one{k} = insertelement {kind} poison, float {value}, i32 0")
        lines.append(
            f"  %{name}.{k} = shufflevector {kind} %{name}.one{k}, {kind} poison, <{floats} x i32> zeroinitializer"
        )
    return "\n".join(lines)


def _load(name: str, pointer: str, width: int) -> str:
    """Read the vectors of a block: ``%name.0`` and on."""
    lines = []
    for k, (begin, _, kind) in enumerate(_chunks(width)):
        lines.append(f"  %{name}.at{k} = getelementptr float, ptr {pointer}, i64 {begin}")
        lines.append(f"  %{name}.{k} = load {kind}, ptr %{name}.at{k}, align 4")
    return "\n".join(lines)


def _store(name: str, pointer: str, width: int) -> str:
    """Write the vectors ``%name.0`` and on of a block."""
    lines = []
    for k, (begin, _, kind) in enumerate(_chunks(width)):
        lines.append(f"  %{name}.to{k} = getelementptr float, ptr {pointer}, i64 {begin}")
        lines.append(f"  store {kind} %{name}.{k}, ptr %{name}.to{k}, align 4")
    return "\n".join(lines)


def _each(width: int, line: str) -> str:
    """Repeat a line for the vectors of a block: ``{k}`` is the number, ``{kind}`` the type of each."""
    return "\n".join("  " + line.format(k=k, kind=kind) for k, (_, _, kind) in enumerate(_chunks(width)))


def _prefetch(width: int, write: bool) -> str:
    """Ask for the row of the id that is some positions further on, or for that of the last id again, if it is held."""
    lines = [
        f"  %far = add i64 %n, {AHEAD}",
        "  %near = icmp slt i64 %far, %total",
        "  %next = select i1 %near, i64 %far, i64 %n",
        *_row_of("next", "later"),
        "  %asked = select i1 %later.held, ptr %later, ptr %mine",
    ]
    for begin in range(0, width, _LINE):
        lines.append(f"  %ask{begin} = getelementptr float, ptr %asked, i64 {begin}")
        lines.append(f"  call void @llvm.prefetch.p0(ptr %ask{begin}, i32 {int(write)}, i32 3, i32 1)")
    return "\n".join(lines)


def _row_of(position: str, name: str) -> list[str]:
    """Find the row of the id at a position, and whether it is held: one comparison, as what is below the first wraps."""
    return [
        f"  %{name}.slot = getelementptr i32, ptr %ids, i64 %{position}",
        f"  %{name}.id = load i32, ptr %{name}.slot",
        f"  %{name}.wide = sext i32 %{name}.id to i64",
        f"  %{name}.local = sub i64 %{name}.wide, %first_row",
        f"  %{name}.held = icmp ult i64 %{name}.local, %count",
        f"  %{name}.offset = mul i64 %{name}.local, %row_stride",
        f"  %{name} = getelementptr float, ptr %rows, i64 %{name}.offset",
    ]


def _over_bags(signature: str, before: str, prefetch: str, each: str, sums: tuple[str, str], after: str) -> str:
    """Return a kernel that goes over bags and over the ids of each: %n is the position of an id, %mine the bag's vectors.

    ``each`` is done where the id's row is held, ``sums`` are carried past each id: before it, after it.
    """
    row = "\n".join(_row_of("n", "row"))
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @kernel({signature}) {{
entry:
  %last = getelementptr i32, ptr %offsets, i64 %bags
  %last.total = load i32, ptr %last
  %total = sext i32 %last.total to i64
  %none = icmp eq i64 %bags, 0
  br i1 %none, label %done, label %bag
bag:
  %b = phi i64 [0, %entry], [%b.next, %closed]
  %first.slot = getelementptr i32, ptr %offsets, i64 %b
  %end.slot = getelementptr i32, ptr %first.slot, i64 1
  %first.id = load i32, ptr %first.slot
  %end.id = load i32, ptr %end.slot
  %first = sext i32 %first.id to i64
  %end = sext i32 %end.id to i64
  %bag.offset = mul i64 %b, %bag_stride
  %mine = getelementptr float, ptr %bag_rows, i64 %bag.offset
{before}
  %empty = icmp eq i64 %first, %end
  br i1 %empty, label %closed, label %id
id:
  %n = phi i64 [%first, %bag], [%n.next, %passed]
{sums[0]}
{row}
{prefetch}
  br i1 %row.held, label %use, label %passed
use:
{each}
  br label %passed
passed:
{sums[1]}
  %n.next = add i64 %n, 1
  %over = icmp eq i64 %n.next, %end
  br i1 %over, label %closed, label %id
closed:
{after}
  %b.next = add i64 %b, 1
  %last.bag = icmp eq i64 %b.next, %bags
  br i1 %last.bag, label %done, label %bag
done:
  ret void
}}
"""


_BAGS = "ptr noalias %bag_rows, i64 %first_row, i64 %count, i64 %row_stride, i64 %bag_stride, i64 %bags"


def bags(width: int, *, weighted: bool) -> str:
    """Return the loop that sums the rows of each bag, ``width`` columns, each row times its weight where there are weights.

    Sums stay in registers: phi nodes carry them from id to id.
    """
    tables = "ptr noalias %rows, ptr noalias %ids, ptr noalias %offsets"
    given = "ptr noalias %weights, " if weighted else ""
    times = _weight(width) + _each(width, "%x.{k} = fmul {kind} %r.{k}, %w.{k}") if weighted else ""
    added = "%x.{k}" if weighted else "%r.{k}"
    return _over_bags(
        f"{tables}, {given}{_BAGS}",
        _splat("zero", "0.0", width),
        _prefetch(width, False),
        "\n".join([_load("r", "%row", width), times, _each(width, "%s.{k} = fadd {kind} %a.{k}, " + added)]),
        (
            _each(width, "%a.{k} = phi {kind} [%zero.{k}, %bag], [%u.{k}, %passed]"),
            _each(width, "%u.{k} = phi {kind} [%a.{k}, %id], [%s.{k}, %use]"),
        ),
        _each(width, "%t.{k} = phi {kind} [%zero.{k}, %bag], [%u.{k}, %passed]") + "\n" + _store("t", "%mine", width),
    )


def _weight(width: int) -> str:
    """Read the weight of the id, into every place of ``%w``."""
    read = "  %w.slot = getelementptr float, ptr %weights, i64 %n\n  %weight = load float, ptr %w.slot\n"
    return read + _splat("w", "%weight", width) + "\n"


def scattering(width: int) -> str:
    """Return the loop that adds the vector of each bag, ``width`` columns, to the rows of its ids, times a factor of each.

    The bag's vector stays in registers meanwhile.
    """
    each = [
        _weight(width),
        _each(width, "%x.{k} = fmul {kind} %m.{k}, %w.{k}"),
        _load("r", "%row", width),
        _each(width, "%s.{k} = fadd {kind} %r.{k}, %x.{k}"),
        _store("s", "%row", width),
    ]
    tables = "ptr noalias %rows, ptr noalias %ids, ptr noalias %offsets, ptr noalias %weights"
    bag = _load("m", "%mine", width)
    return _over_bags(f"{tables}, {_BAGS}", bag, _prefetch(width, True), "\n".join(each), ("", ""), "")


#: A step of SGD: params -= rate * grads.
DESCEND = """
define void @kernel(ptr noalias %params, ptr noalias %grads, i64 %count, float %rate) {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [0, %entry], [%i.next, %loop]
  %p.at = getelementptr float, ptr %params, i64 %i
  %g.at = getelementptr float, ptr %grads, i64 %i
  %p = load float, ptr %p.at
  %g = load float, ptr %g.at
  %step = fmul float %g, %rate
  %new = fsub float %p, %step
  store float %new, ptr %p.at
  %i.next = add i64 %i, 1
  %over = icmp eq i64 %i.next, %count
  br i1 %over, label %done, label %loop
done:
  ret void
}
"""


def bias(*, relu: bool) -> str:
    """Return the loop that adds a bias to every row, in place, and with ``relu`` cuts it off at 0.

    A sum that is not above 0 becomes 0; one that is not a number stays what it is, so that divergence shows.
    """
    rectified = "select i1 %low, float 0.0, float %sum" if relu else "fadd float %sum, -0.0"
    return f"""
define void @kernel(ptr noalias %out, ptr noalias %bias, i64 %rows, i64 %columns) {{
entry:
  %cells = mul i64 %rows, %columns
  %none = icmp eq i64 %cells, 0
  br i1 %none, label %done, label %row
row:
  %r = phi i64 [0, %entry], [%r.next, %row.end]
  %offset = mul i64 %r, %columns
  %mine = getelementptr float, ptr %out, i64 %offset
  br label %column
column:
  %c = phi i64 [0, %row], [%c.next, %column]
  %x.at = getelementptr float, ptr %mine, i64 %c
  %b.at = getelementptr float, ptr %bias, i64 %c
  %x = load float, ptr %x.at
  %b = load float, ptr %b.at
  %sum = fadd float %x, %b
  %low = fcmp ole float %sum, 0.0
  %y = {rectified}
  store float %y, ptr %x.at
  %c.next = add i64 %c, 1
  %row.over = icmp eq i64 %c.next, %columns
  br i1 %row.over, label %row.end, label %column
row.end:
  %r.next = add i64 %r, 1
  %over = icmp eq i64 %r.next, %rows
  br i1 %over, label %done, label %row
done:
  ret void
}}
"""


def choosing(*, weighted: bool) -> str:
    """Return the loop that copies the ids of a range of rows, and their weights, one bag behind the other.

    Every id is written; what is not held is written over by the next. So there is no branch to be guessed wrong.
    """
    arrays = "ptr noalias %ids, ptr noalias %out, ptr noalias %ends"
    given = "ptr noalias %weights, ptr noalias %out_weights, " if weighted else ""
    weight = """
  %w.from = getelementptr float, ptr %weights, i64 %i
  %w = load float, ptr %w.from
  %w.to = getelementptr float, ptr %out_weights, i64 %n
  store float %w, ptr %w.to"""
    return f"""
define void @kernel({arrays}, {given}i64 %first_row, i64 %count, i64 %bags, i64 %length) {{
entry:
  %none = icmp eq i64 %bags, 0
  br i1 %none, label %done, label %bag
bag:
  %b = phi i64 [0, %entry], [%b.next, %closed]
  %bag.n = phi i64 [0, %entry], [%n.end, %closed]
  %first = mul i64 %b, %length
  %end = add i64 %first, %length
  %empty = icmp eq i64 %length, 0
  br i1 %empty, label %closed, label %id
id:
  %i = phi i64 [%first, %bag], [%i.next, %id]
  %n = phi i64 [%bag.n, %bag], [%n.next, %id]
  %from = getelementptr i32, ptr %ids, i64 %i
  %row = load i32, ptr %from
  %to = getelementptr i32, ptr %out, i64 %n
  store i32 %row, ptr %to{weight if weighted else ""}
  %wide = sext i32 %row to i64
  %local = sub i64 %wide, %first_row
  %held = icmp ult i64 %local, %count
  %one = zext i1 %held to i64
  %n.next = add i64 %n, %one
  %i.next = add i64 %i, 1
  %over = icmp eq i64 %i.next, %end
  br i1 %over, label %closed, label %id
closed:
  %n.end = phi i64 [%bag.n, %bag], [%n.next, %id]
  %n.small = trunc i64 %n.end to i32
  %b.next = add i64 %b, 1
  %end.slot = getelementptr i32, ptr %ends, i64 %b
  store i32 %n.small, ptr %end.slot
  %last = icmp eq i64 %b.next, %bags
  br i1 %last, label %done, label %bag
done:
  ret void
}}
"""
