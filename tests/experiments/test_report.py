"""The page of a plan: complete, self-contained, well-formed, and usable with a keyboard."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from experiments.report.markup import Html, element, milliseconds, rate, size, table
from experiments.report.page import ReportInput, page, write_report
from placement.planfile import load_plan, save_plan
from placement.search.job import solve
from placement.search.options import SolveOptions
from problem.cluster_io import load_cluster
from problem.errors import BadInput
from problem.readers import model_from_spec
from simulator.simulate import simulate

SPEC = {
    "name": "clicks <b>",
    "dense_features": 4,
    "bottom_mlp": [16, 8],
    "top_mlp": [64, 64, 1],
    "top_branches": 2,
    "embedding_dim": 8,
    "batch": 64,
    "tables": [{"name": "user", "rows": 1000}, {"name": "item", "rows": 500, "pooling_factor": 3}],
}
VOID = {"meta", "br", "line", "rect", "circle", "path", "polyline"}
OFFLINE = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    """A plan file with two nodes and a server."""
    path = tmp_path_factory.mktemp("report") / "plan.json"
    result = solve(
        model_from_spec(SPEC), load_cluster("fb-1s-18c:3"), options=SolveOptions(hogwild=2, max_replicas=1, gap=0.05)
    )
    save_plan(path, result, result.costs)
    return path


@pytest.fixture(scope="module")
def found(plan_file):
    """What the page is made of."""
    loaded = load_plan(plan_file)
    return ReportInput(loaded, simulate(loaded.plan, loaded.costs, steps=6, record=True))


class Checker(HTMLParser):
    """Collects tags, and refuses an end tag that closes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(text: str) -> Checker:
    """The page, parsed; every element is closed."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    return checker


def test_text_is_escaped():
    """Names of users do not become markup, in text and in attributes; what is HTML already stays."""
    assert element("b", "<i>", title='"') == '<b title="&quot;">&lt;i&gt;</b>'
    assert element("b", Html("<i></i>")) == "<b><i></i></b>"
    assert (
        element("button", "x", disabled=True, hidden=False, data_item="a")
        == '<button disabled data-item="a">x</button>'
    )
    assert "&lt;x&gt;" in table("t", ("a",), [("<x>",)])


def test_sizes_and_times_are_short():
    """Three digits and a unit."""
    assert [size(n) for n in (12, 1234, 5e6, 7.77e9, 2e12)] == ["12 B", "1.23 kB", "5 MB", "7.77 GB", "2 TB"]
    assert [milliseconds(s) for s in (0.0012345, 1.6503)] == ["1.23", "1,650"]


def test_everything_is_on_the_page(found):
    """Each operator is a button once for each place, each shard a button, and every button has neighbours to tell."""
    checker = parsed(page(found))
    plan = found.loaded.plan
    items = [attributes["data-item"] for tag, attributes in checker.seen if tag == "button"]
    assert sorted(items) == sorted([*plan.tags, *(shard.table for shard in plan.shards if shard.rows)])
    neighbours = json.loads(re.search(r'id="neighbours">(.*?)</script>', page(found))[1])
    assert set(neighbours) == set(items)
    for item, entry in neighbours.items():
        for name, _, _ in entry["to"]:
            assert item in [source for source, _, _ in neighbours[name]["from"]]


def test_bug_the_planned_rate_was_counted_once_more_for_each_group(tmp_path):
    """Two groups: the page's planned rate is the solver's, not twice that."""
    options = SolveOptions(hogwild=1, group_size=1, max_replicas=2, gap=0.05)
    result = solve(model_from_spec(SPEC), load_cluster("fb-1s-18c:4"), options=options)
    save_plan(tmp_path / "plan.json", result, result.costs)
    loaded = load_plan(tmp_path / "plan.json")
    assert len(loaded.plan.groups) == 2
    written = page(ReportInput(loaded, simulate(loaded.plan, loaded.costs, steps=5, record=True)))
    assert f"<b>{rate(result.objective)}</b>samples/s, planned" in written


def test_columns_of_words_stand_to_the_left():
    """Numbers, with units or missing, stand to the right; one word in a column makes it a column of words."""
    written = table("t", ("a", "b", "c"), [("x", "1,000", "NIC tx"), ("y", "-", "3 %"), ("z", "4.5 MB", "")])
    assert written.count('<th scope="col" class="words">') == 2
    assert '<td class="words">NIC tx</td>' in written
    assert "<td>4.5 MB</td>" in written


def test_nothing_is_fetched(found):
    """The page names no other file and no address; style, script and data are in it."""
    checker = parsed(page(found))
    assert not [
        attributes for tag, attributes in checker.seen if tag in {"link", "img", "iframe"} or "src" in attributes
    ]
    assert {attributes["href"][0] for _, attributes in checker.seen if "href" in attributes} == {"#"}
    assert "@import" not in page(found)


def test_pictures_have_words(found):
    """Charts have a label, tables a caption, sections a heading that names them: what a screen reader says."""
    checker = parsed(page(found))
    headings = {attributes["id"] for tag, attributes in checker.seen if tag == "h2"}
    assert {attributes["aria-labelledby"] for tag, attributes in checker.seen if tag == "section"} == headings
    drawings = [attributes for tag, attributes in checker.seen if tag == "svg"]
    assert all(attributes.get("aria-hidden") or attributes["aria-label"] for attributes in drawings)
    count = [tag for tag, _ in checker.seen]
    assert count.count("table") == count.count("caption") > 4


def test_the_timeline_shows_whole_steps(found):
    """Boxes of the first rank lie inside the chart, and their widths add up to three steps."""
    text = page(found)
    chart = re.search(r'<figure class="timeline">.*?</figure>', text, re.DOTALL)[0]
    lane = [
        (float(x), float(width))
        for x, y, width in re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)"', chart)
        if y == "3"
    ]
    assert min(x for x, _ in lane) >= 149.9
    assert max(x + width for x, width in lane) <= 960
    assert sum(width for _, width in lane) == pytest.approx(800, rel=0.02)


def test_a_folder_that_is_missing_is_named(found, tmp_path):
    """Nothing is written, and the folder is named."""
    with pytest.raises(BadInput, match="nowhere"):
        write_report(tmp_path / "nowhere" / "plan.html", found)


def test_the_page_works_in_a_browser(found, tmp_path):
    """Chosen by keyboard, an operator says what it exchanges and lines lead to its neighbours; no error, no request."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    if browser is None:
        pytest.skip("needs Chromium")
    write_report(tmp_path / "plan.html", found)
    faults = []
    with api.sync_playwright() as player:
        window = player.chromium.launch(executable_path=browser, args=list(OFFLINE))
        tab = window.new_page()
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda request: faults.append(request.url) if not request.url.startswith("file:") else None)
        tab.goto((tmp_path / "plan.html").as_uri())
        button = tab.locator("button[data-item=interaction]").first
        button.focus()
        tab.keyboard.press("Enter")
        said = tab.locator("#chosen").inner_text()
        assert button.get_attribute("aria-pressed") == "true"
        assert "Reads" in said
        assert "user" in said
        assert tab.locator("#lines path").count() >= 3
        tab.keyboard.press("ArrowRight")
        assert tab.evaluate("document.activeElement.dataset.item") != "interaction"
        button.focus()
        tab.keyboard.press("Escape")
        assert tab.locator("#chosen").inner_text() == "Nothing is chosen."
        window.close()
    assert not faults
