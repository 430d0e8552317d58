# SPDX-License-Identifier: GPL-2.0-only
"""The benchmarks' pictures: colours, sizes, and parts that are cut off."""

import itertools
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench import loops, plots, registry, runner  # noqa: E402
from bench.asgi import servers  # noqa: E402
from bench.plots import canvas, colours  # noqa: E402
from bench.results import Results, load  # noqa: E402
from bench.seeds import plan  # noqa: E402
from bench.wsgi import servers as wsgi_servers  # noqa: E402

PICTURES = ROOT / "docs" / "benchmarks"
# The height of a screen in pixels.
HIGHEST = 900
EVERY_LOOP = tuple(loops.parse(name) for name in loops.KNOWN)


def meetings():
    """Yield each kind of picture with the systems that may appear in it."""
    known = [loop.name for loop in EVERY_LOOP]
    yield "loops", [*known, runner.FLOOR.name]
    yield "servers", [server.name for server in servers.KNOWN]
    yield "WSGI servers", [server.name for server in wsgi_servers.KNOWN]
    for seed, systems in plan._systems([x for x in EVERY_LOOP if x.takes_part("seeds")]).items():
        yield f"seed {seed}", [system.name for system in systems]


MEETINGS = dict(meetings())


class TestColours:
    @pytest.mark.parametrize("kind", MEETINGS)
    def test_systems_that_may_meet_have_colours_that_every_eye_tells_apart(self, kind):
        named = [name for name in MEETINGS[kind] if name in colours.KNOWN]
        assert len(named) >= 3
        for one, other in itertools.combinations(named, 2):
            apart = colours.distance(colours.KNOWN[one], colours.KNOWN[other])
            assert apart >= colours.APART, (one, other)

    @pytest.mark.parametrize("kind", MEETINGS)
    def test_no_two_share_one_and_all_can_be_seen_on_white(self, kind):
        found = colours.assign(MEETINGS[kind])
        assert list(found) == sorted(found, key=list(found).index)
        for one, other in itertools.combinations(found, 2):
            assert colours.distance(found[one], found[other]) > 5, (one, other)
        assert all(colours.distance(colour, "#ffffff") > 15 for colour in found.values())

    def test_the_default_systems_have_colours(self):
        wanted = {*loops.DEFAULT_LOOPS, *(name for name in loops.KNOWN if "/" in name), "floor"}
        assert wanted <= colours.KNOWN.keys()
        assert {s.name for s in (*servers.KNOWN, *wsgi_servers.KNOWN)} <= colours.KNOWN.keys()

    def test_an_unknown_system_gets_a_free_one(self):
        names = ["mgloop", "uvloop", "asyncio", *(f"unknown{n}" for n in range(12))]
        found = colours.assign(names)
        assert len(set(found.values())) == len(names)
        assert not {found[name] for name in names[3:]} & {colours.KNOWN[n] for n in names[:3]}
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in found.values())


@pytest.mark.parametrize(
    ("bars", "whiskers", "at_least", "below"),
    [
        pytest.param([1.0, 1.2, 1.4], [1.3, 1.5, 1.9], 1.9, 2.1, id="nothing sticks out"),
        pytest.param([1.0, 1.2, 4.2], [1.3, 1.5, 23.4], 4.2, 10, id="a long whisker is cut"),
        pytest.param(
            [0.3, 1.1, 1.2, 1.4, 1.8, 19.5], [0.4, 1.3, 1.4, 2.0, 2.2, 19.6], 2.2, 4,
            id="a long bar is cut",
        ),
        pytest.param(
            [0.1, 1.0, 1.1, 1.2, 1.2, 1.3, 1.4, 1.4], [1.5], 1.5, 2,
            id="a short bar cuts no others",
        ),
        pytest.param([0.1, 0.5, 3.0, 12.0], [0.1, 0.5, 3.0, 12.0], 12, 20, id="most differ"),
        pytest.param([2.0], [2.1], 2.1, 3, id="a single one"),
    ],
)  # fmt: skip
def test_the_end_of_the_axis(bars, whiskers, at_least, below):
    assert at_least <= canvas.axis_end(bars, whiskers) < below


def results(names, rows, ratio, *, reference="uvloop", spread=1.3):
    """Return a run of *names* at *rows*; ``ratio(name, row)`` to the reference, with *spread*."""
    workloads = [
        w.describe() for w in [*registry.workloads(), *plan.workloads(2)] if w.name in rows
    ]
    for w in workloads:
        w["reference"] = reference
    samples = [
        {"workload": row, "subject": name, "round": number, "status": "ok", "errors": {},
         "value": 10 / (1 if name == reference else ratio(name, row) * factor),
         "latency_us": {"10": 100.0, "50": 150.0, "90": 300.0, "99": 900.0, "99.9": 20_000.0}}
        for row in rows for name in names
        for number, factor in enumerate((1 / spread, 1.0, spread))
    ]  # fmt: skip
    subjects = [{"name": n, "spec": "", "version": "", "control_of": None} for n in names]
    return Results({}, {}, subjects, reference, workloads, samples=samples)


LOOPS = ("uvloop", "mgloop", "rloop", "asyncio", "floor")
ECHO = [w.name for w in registry.workloads() if w.suite == "echo"]
MADE = {
    "a whisker": results(
        LOOPS, ECHO, lambda name, row: 1.2, spread=8
    ),
    "every loop": results(
        ["uvloop", *(n for n in loops.KNOWN if n != "uvloop"), "floor"],
        [w.name for w in registry.workloads() if w.suite not in ("asgi", "wsgi", "threads")],
        lambda name, row: 1 + len(name) / 10,
    ),
    "threads": results(
        [s.name for s in loops.together(EVERY_LOOP[:4], [2, 4])],
        [w.name for w in registry.workloads() if w.suite == "threads"],
        lambda name, row: 0.5 + len(row) / 20,
        reference="asyncio",
    ),
    "one row": results(("uvloop", "mgloop"), ["tls/handshakes"], lambda name, row: 1.1),
}  # fmt: skip


@pytest.fixture(scope="module", params=["results", "seeds", "asgi", *MADE])
def drawn(request):
    """Yield the pictures of a results file of the repository, or of an artificial one."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    name = request.param
    found = MADE[name] if name in MADE else load(str(PICTURES / f"{name}.json"))
    made = list(plots.pictures(found))
    assert made
    for picture in made:
        picture.figure.canvas.draw()
    return made


class TestPictures:
    def test_a_file_fits_a_screen_is_opaque_and_small(self, drawn, tmp_path):
        from PIL import Image

        for picture in drawn:
            canvas.save(picture, tmp_path)
            with Image.open(picture.path) as image:
                assert (image.format, image.mode, image.info.get("transparency")) == (
                    "PNG",
                    "P",
                    None,
                )
                assert image.width == 1100
                assert image.height <= HIGHEST, picture.name
                assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
            assert picture.path.stat().st_size < 90_000, picture.name
            assert picture.inline().startswith("data:image/png;base64,iVBOR")


class TestBars:
    @pytest.fixture(autouse=True)
    def matplotlib(self):
        pytest.importorskip("matplotlib", reason="pictures need matplotlib")

    def only(self, found, name):
        (picture,) = [p for p in plots.pictures(found) if p.name == name]
        picture.figure.canvas.draw()
        (axes,) = picture.figure.axes
        return picture, axes

    def test_a_bar_that_is_cut_off_is_marked_and_labelled(self):
        found = results(LOOPS, ECHO[:8], lambda name, row: 1.2)
        (sample,) = [
            s for s in found.samples
            if (s["workload"], s["subject"], s["round"]) == (ECHO[2], "floor", 2)
        ]  # fmt: skip
        sample["value"] = 10 / 23.4
        _, axes = self.only(found, "bars-echo-protocol")
        low, high = axes.get_xlim()
        assert (low, round(high)) == (0, 2)
        assert [text.get_text() for text in axes.texts] == ["23.4"]
        arrows = [line for line in axes.lines if line.get_marker() == ">"]
        assert [line.get_xdata()[0] for line in arrows] == [high]
        # Nothing may be drawn outside the visible range.
        assert max(max(line.get_xdata()) for line in axes.lines) <= high
        assert max(bar.get_width() for bar in axes.patches) <= high


def test_every_picture_of_the_documentation_is_shown_and_there():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+\.png)\)", page.read_text())
    }
    assert all(path.exists() for path in shown)
    assert set(PICTURES.glob("*.png")) <= shown
