# SPDX-License-Identifier: GPL-2.0-only
"""The benchmarks' pictures: colours, sizes, cut-off parts, and labels that do not overlap."""

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

PICTURES = ROOT / "docs" / "benchmarks"
# The height of a screen in pixels.
HIGHEST = 900
EVERY_LOOP = tuple(loops.parse(name) for name in loops.KNOWN)


def meetings():
    """Yield each kind of picture with the systems that may appear in it."""
    known = [loop.name for loop in EVERY_LOOP]
    yield "loops", [*known, runner.FLOOR.name]
    yield "servers", [server.name for server in servers.KNOWN]
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

    @pytest.mark.parametrize("seed", ["1", "2", "3", "4"])
    def test_the_systems_of_the_seeds_are_in_the_table(self, seed):
        default = [loops.parse(name) for name in loops.DEFAULT_LOOPS]
        assert {s.name for s in plan._systems(default)[int(seed)]} <= colours.KNOWN.keys()

    def test_what_is_compared_by_default_is_in_the_table(self):
        wanted = {*loops.DEFAULT_LOOPS, *(name for name in loops.KNOWN if "/" in name), "floor"}
        assert wanted <= colours.KNOWN.keys()
        assert {server.name for server in servers.KNOWN} <= colours.KNOWN.keys()

    def test_one_colour_in_all_pictures(self):
        ours = {
            colours.assign(names)[name]
            for names in MEETINGS.values()
            for name in names
            if name in ("mgloop", "mgloop serve", "aiohttp/mgloop", "mgloop, multiplexed")
        }
        assert len(ours) == 1
        few, many = colours.assign(["x", "mgloop"]), colours.assign(["uvloop", "mgloop", "y", "x"])
        assert few["mgloop"] == many["mgloop"]

    def test_an_unknown_system_gets_a_free_one(self):
        names = ["mgloop", "uvloop", "asyncio", *(f"unknown{n}" for n in range(12))]
        found = colours.assign(names)
        assert len(set(found.values())) == len(names)
        assert not {found[name] for name in names[3:]} & {colours.KNOWN[n] for n in names[:3]}
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in found.values())

    def test_a_variant_has_a_shade_of_what_it_is_a_variant_of(self):
        names = [s.name for s in loops.together(EVERY_LOOP[:4], [2])]
        found = colours.assign(names)
        assert len(set(found.values())) == len(names) == 12
        found = colours.assign(["mgloop", "uvloop", "mgloop 2thr"])
        shade, base = (
            [int(found[name][at : at + 2], 16) for at in (1, 3, 5)]
            for name in ("mgloop 2thr", "mgloop")
        )
        # A step towards white has the same share in each channel.
        shares = [(s - b) / (255 - b) for s, b in zip(shade, base, strict=True)]
        assert max(shares) - min(shares) < 0.05
        assert max(shares) > 0

    def test_the_distance(self):
        assert colours.distance("#123456", "#123456") == 0
        assert colours.distance("#000000", "#ffffff") == pytest.approx(100, abs=0.1)
        # Colours that only eyes with all cones can distinguish count as near.
        assert colours.distance("#ff0000", "#7f7f00") < 25


class TestAxisEnd:
    def test_all_is_shown_where_nothing_sticks_out(self):
        end = canvas.axis_end([1.0, 1.2, 1.4], [1.3, 1.5, 1.9])
        assert 1.9 <= end < 2.1

    def test_a_whisker_many_times_the_rest_is_cut(self):
        end = canvas.axis_end([1.0, 1.2, 4.2], [1.3, 1.5, 23.4])
        assert 4.2 < end < 10

    def test_a_bar_many_times_the_rest_is_cut(self):
        end = canvas.axis_end([0.3, 1.1, 1.2, 1.4, 1.8, 19.5], [0.4, 1.3, 1.4, 2.0, 2.2, 19.6])
        assert 2.2 < end < 4

    def test_a_short_bar_cuts_no_others(self):
        assert canvas.axis_end([0.1, 1.0, 1.1, 1.2, 1.2, 1.3, 1.4, 1.4], [1.5]) > 1.5

    def test_where_most_differ_they_are_what_it_is_about(self):
        values = [0.1, 0.5, 3.0, 12.0]
        assert canvas.axis_end(values, values) >= 12

    def test_of_a_single_one_all_is_shown(self):
        assert canvas.axis_end([2.0], [2.1]) >= 2.1


def test_figures_are_short():
    found = [canvas.number(value) for value in (0.214, 2.4, 10.83, 23, 1234, 68_000)]
    assert found == ["0.21", "2.40", "10.8", "23", "1,234", "68k"]
    assert [canvas.duration(us) for us in (50, 999, 1000, 2500)] == [
        "50 us",
        "999 us",
        "1 ms",
        "2.5 ms",
    ]


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
        [w.name for w in registry.workloads() if w.suite not in ("asgi", "threads")],
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


def texts(figure):
    """Return all visible texts in *figure*."""
    found = [*figure.texts, *(t for legend in figure.legends for t in legend.get_texts())]
    for axes in figure.axes:
        if axes.get_visible():
            found += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
                found += [t.label1 for t in ticks if low <= t.get_loc() <= high]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def overlaps(figure):
    """Return pairs of texts in *figure* that overlap."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    return [
        (one, other)
        for (one, a), (other, b) in itertools.combinations(boxes, 2)
        # Ignore one dot, which is the space around a letter.
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


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
    def test_no_label_lies_on_another(self, drawn):
        for picture in drawn:
            assert overlaps(picture.figure) == [], picture.name

    def test_everything_is_inside_and_no_legend_lies_on_the_data(self, drawn):
        for picture in drawn:
            edge = picture.figure.bbox
            for text in texts(picture.figure):
                box = text.get_window_extent()
                inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= edge.x1 and box.y1 <= edge.y1
                assert inside, (picture.name, text.get_text())
            for legend in picture.figure.legends:
                for axes in picture.figure.axes:
                    assert not legend.get_window_extent().overlaps(axes.get_window_extent())

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

    def test_names_and_titles_are_told_apart(self, drawn):
        assert len({picture.name for picture in drawn}) == len(drawn)
        assert all(picture.title for picture in drawn)


class TestBars:
    @pytest.fixture(autouse=True)
    def matplotlib(self):
        pytest.importorskip("matplotlib", reason="pictures need matplotlib")

    def only(self, found, name):
        (picture,) = [p for p in plots.pictures(found) if p.name == name]
        picture.figure.canvas.draw()
        (axes,) = picture.figure.axes
        return picture, axes

    def test_what_is_cut_off_is_marked_and_its_figure_is_there(self):
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

    def test_of_a_bar_that_is_cut_off_the_figure_is_its_own(self):
        _, axes = self.only(
            results(
                LOOPS,
                ECHO[:8],
                lambda name, row: 19.5 if (name, row) == ("floor", ECHO[0]) else 1.2,
            ),
            "bars-echo-protocol",
        )
        assert axes.get_xlim()[1] < 3
        assert [text.get_text() for text in axes.texts] == ["19.5"]
        (gap, other) = [line for line in axes.lines if isinstance(line.get_marker(), list)]
        assert gap.get_xdata()[0] < other.get_xdata()[0] < axes.get_xlim()[1]

    def test_nothing_is_marked_where_nothing_is_cut(self):
        _, axes = self.only(results(LOOPS, ECHO[:8], lambda name, row: 1.2), "bars-echo-protocol")
        assert axes.get_xlim()[1] > 1.2 * 1.3
        assert not axes.texts
        assert not [line for line in axes.lines if line.get_marker() == ">"]

    def test_a_bar_has_the_colour_of_its_system(self):
        from matplotlib.colors import to_hex

        picture, axes = self.only(MADE["a whisker"], "bars-echo-other")
        (legend,) = picture.figure.legends
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True):
            name = text.get_text().partition(" (")[0]
            assert to_hex(patch.get_facecolor()) == colours.KNOWN[name]
        bars = {to_hex(bar.get_facecolor()) for bar in axes.patches}
        assert bars == {colours.KNOWN[name] for name in LOOPS[1:]}

    def test_the_colours_are_in_the_file_as_they_are_in_the_table(self, tmp_path):
        from PIL import Image

        picture, _ = self.only(MADE["a whisker"], "bars-echo-other")
        canvas.save(picture, tmp_path)
        with Image.open(picture.path) as image:
            pixels = {color for _, color in image.convert("RGB").getcolors()}
        for name in LOOPS[1:]:
            assert tuple(bytes.fromhex(colours.KNOWN[name][1:])) in pixels

    def test_the_summary_has_the_reference_and_figures(self):
        rows = [*plots.bars.SUMMARY]
        picture, axes = self.only(results(LOOPS, rows, lambda name, row: 1.25), "summary")
        assert not picture.suite
        written = [text.get_text() for text in axes.texts]
        assert written.count("1.00") == len(rows)
        assert written.count("1.25") == 4 * len(rows)
        more = results((*LOOPS, "zuvloop", "aiofastnet/uvloop"), rows, lambda name, row: 1.25)
        picture, _ = self.only(more, "summary")
        (legend,) = picture.figure.legends
        shown = [text.get_text().partition(" ")[0] for text in legend.get_texts()]
        assert shown == ["mgloop", "uvloop", "rloop", "asyncio", "floor", "zuvloop"]
        few = results(LOOPS, rows[:3], lambda name, row: 1.25)
        assert "summary" not in [p.name for p in plots.pictures(few)]

    def test_a_row_that_is_related_to_another_says_so(self):
        found = results(LOOPS, ECHO[-8:], lambda name, row: 1.2)
        found.workload("echo/sendfile-100m")["reference"] = "asyncio"
        for sample in found.samples:
            if sample["workload"] == "echo/sendfile-100m" and sample["subject"] == "rloop":
                sample.update(status="unsupported", note="no sendfile")
        _, axes = self.only(found, "bars-echo-other")
        assert axes.get_yticklabels()[-1].get_text() == "sendfile of 100 MB (to asyncio)"
        assert [text.get_text() for text in axes.texts] == ["cannot"]


class TestLatency:
    def test_few_labels_in_plain_numbers(self):
        matplotlib = pytest.importorskip("matplotlib.figure", reason="needs matplotlib")
        for low, high in ((130, 2_000), (15, 4_000), (900, 1_100), (80, 600_000)):
            axes = matplotlib.Figure().subplots()
            canvas.plain_log(axes, low, high)
            labels = [label.get_text() for label in axes.get_yticklabels()]
            assert 1 <= len(labels) <= 6, (low, high)
            assert all(re.fullmatch(r"[\d.]+ (us|ms)", label) for label in labels)

    def test_the_control_and_what_failed_are_left_out(self):
        pytest.importorskip("matplotlib", reason="pictures need matplotlib")
        found = results(("uvloop", "uvloop#2", "mgloop"), ["echo/udp-1k-c50"], lambda *_: 1.1)
        found.subjects[1]["control_of"] = "uvloop"
        for sample in found.samples:
            sample["status"] = "failed" if sample["subject"] == "mgloop" else "ok"
        (picture,) = [p for p in plots.pictures(found) if p.name == "latency"]
        (legend,) = picture.figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["uvloop"]


def test_an_overlap_is_noticed():
    """The test covers the check itself."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    figure, _ = canvas.blank(3)
    figure.text(0.5, 0.5, "one")
    figure.text(0.51, 0.5, "other")
    assert ("one", "other") in overlaps(figure)


def test_every_picture_of_the_documentation_is_shown_and_there():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+\.png)\)", page.read_text())
    }
    assert all(path.exists() for path in shown)
    assert set(PICTURES.glob("*.png")) <= shown
