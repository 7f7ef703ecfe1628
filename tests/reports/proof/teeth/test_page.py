"""The power of the suite: what is counted, that a sample runs, and that the page says just that."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from attn_spec.reports.proof.peers.trial import PEERS
from attn_spec.reports.proof.peers.work import Meter, work_of
from attn_spec.reports.proof.teeth import command, contest, kill_matrix, measurement, numbers, page
from attn_spec.reports.proof.teeth.contest import Outcome
from attn_spec.reports.proof.teeth.document import Teeth, TeethError, Told
from attn_spec.reports.proof.teeth.kill_matrix import Cell, Kill
from attn_spec.reports.proof.teeth.limits import Power
from attn_spec.reports.proof.teeth.measurement import chosen, measure
from attn_spec.reports.proof.validation.false_alarms import Alarms
from attn_spec.reports.proof.zoo import mutants

from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import OutOfBudget
from attn_spec.search.verdict import Verdict

ZOO, _ = mutants.load_all()
OUTPUT, LSE = "accuracy.output_is_within_its_bound", "accuracy.log_sum_exp_is_within_its_bound"
WEIGHTS = "softmax.weights_sum_to_one"
PEER = next(iter(PEERS))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def cell(mutant, property_id, verdict, examples):
    return Cell(mutant=mutant, property_id=property_id, verdict=Verdict(verdict), examples=examples, seconds=0.5)


def made(**changes):
    """Make two mutants and three properties: two properties catch the first mutant, one alone the second."""
    told = {"family": "values", "story": "It is <wrong>.", "source": "a/b#1", "dtype": "float32", "named_by": OUTPUT}
    small = {"verdict": Verdict.REFUTED, "seconds": 0.5, "problem": "Recipe().problem()", "message": "off by 1"}
    document = Teeth(
        environment={"attn-spec": "0", "budget": "64", "device": "a <processor>"},
        properties=[OUTPUT, LSE, WEIGHTS],
        mutants=[Told(id="zeros", **told), Told(id="drifts", **{**told, "story": "It drifts."})],
        cells=[
            replace(cell("zeros", OUTPUT, "refuted", 7), measured=1.0),
            replace(cell("zeros", LSE, "held", 60), measured=0.95),
            cell("zeros", WEIGHTS, "refuted", 2),
            cell("drifts", OUTPUT, "held", 60),
            cell("drifts", LSE, "suspect", 3),
            cell("drifts", WEIGHTS, "not declared", 0),
        ],
        kills=[
            Kill(mutant="zeros", property_id=WEIGHTS, examples=2, **small),
            Kill(mutant="drifts", property_id=LSE, examples=3, **{**small, "verdict": Verdict.SUSPECT}),
        ],
        outcomes=[
            Outcome(contestant="attn-spec", mutant="zeros", dtype="float32", caught=True, problems=2, why=WEIGHTS),
            Outcome(contestant=PEER, mutant="zeros", dtype="float16", caught=True, problems=1, why="too far off"),
            Outcome(contestant="attn-spec", mutant="drifts", dtype="float32", caught=True, problems=9, why=LSE),
            Outcome(contestant=PEER, mutant="drifts"),
        ],
        alarms=[Alarms(examples=1200, kernels=5, by_family={"accuracy": 1200})],
        powers=[
            Power(defect="scale", dtype="float32", size=2.0**-e, contestant=who, trials=4, caught=caught)
            for who, counts in (("output", (4, 3, 0)), (PEER, (4, 0, 0)))
            for e, caught in zip((10, 12, 14), counts, strict=True)
        ],
    )
    return replace(document, **changes)


def test_a_mutant_is_counted_where_it_is_caught_and_shown():
    suite, peer = numbers.contestants(made())

    assert (suite.name, suite.caught, suite.shown, suite.problems) == ("attn-spec", 2, 2, 11)
    assert (peer.name, peer.caught, peer.shown, peer.rule) == (PEER, 1, 1, PEERS[PEER].rule)


def test_a_property_that_alone_catches_a_mutant_is_told_from_one_that_is_first():
    output, lse, weights = numbers.stays(made())

    assert (output.kills, output.alone, output.first, output.names) == (1, (), (), ("zeros", "drifts"))
    assert (lse.kills, lse.alone, lse.first) == (1, ("drifts",), ("drifts",))
    assert (weights.alone, weights.first, weights.names) == ((), ("zeros",), ())


def test_mutants_that_nothing_caught_are_named():
    assert numbers.survivors(made()) == []
    assert numbers.survivors(made(kills=[])) == ["zeros", "drifts"]
    assert "Not caught by any property" in page.html(made(kills=[]))


def test_the_document_reads_back_as_it_was():
    text = made().to_json()

    assert Teeth.from_json(text) == made()
    assert Teeth.from_json(text).to_json() == text


def test_a_document_of_schema_1_is_read():
    old = made().to_json().replace('"schema": 2', '"schema": 1').replace('"property_id"', '"claim"')

    assert old.count('"claim"') == 2  # of cells and of kills
    assert Teeth.from_json(old) == made()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a document that `attn-spec teeth` wrote"),
        ('{"schema": 99}', "is not of schema 1 or 2; measure again"),
        ("[]", "not a document"),
        (made().to_json().replace('"examples"', '"instances"'), "not a document"),
    ],
)
def test_what_is_no_document_is_refused(text, said):
    with pytest.raises(TeethError, match=re.escape(said)):
        Teeth.from_json(text)


def test_the_page_is_whole_by_itself_and_says_what_was_measured():
    text = page.html(made())

    assert not re.findall(r"<script|<link|<img|@import|url\((?!#)", text)
    assert text == page.html(made())
    assert "2 of 2 wrong kernels caught" in text
    assert "97.5 % of the elements of its answers were measured." in text
    assert "It is &lt;wrong&gt;." in text
    assert "It is <wrong>." not in text
    marks = dict(re.findall(r'<path class="(refuted|first|suspect|peer)" d="[^"]*"><title>(.*?)</title>', text))
    assert marks["refuted"] == "zeros: refuted"  # the catch that was not the first
    assert marks["first"] == "zeros: refuted first"
    assert marks["suspect"] == "drifts: suspect"
    assert marks["peer"].startswith("zeros: rejected")
    assert all(f"<title>{name}</title>" in text for name in (OUTPUT, LSE, WEIGHTS))


def test_the_markdown(snapshot):
    assert page.markdown(made()) == snapshot


def test_a_sample_is_dealt_over_the_families_and_repeats():
    families = {mutant.family for mutant in ZOO.values()}
    sample = chosen(len(families), 0)

    assert {mutant.family for mutant in sample} == families
    assert sample == chosen(len(families), 0) != chosen(len(families), 1)
    assert chosen(None, 0) == list(ZOO.values())


@pytest.mark.parametrize("size", [0, -1, 10_000])
def test_a_sample_of_no_mutants_or_too_many_is_refused(size):
    with pytest.raises(TeethError, match=f"a sample holds 1 to {len(ZOO)} mutants, not {size}"):
        chosen(size, 0)


def test_a_missing_document_is_refused(tmp_path):
    with pytest.raises(TeethError, match="cannot be read: No such file or directory; give the JSON of an earlier run"):
        command.write_teeth(tmp_path / "page.html", document=tmp_path / "none.json")
    assert not list(tmp_path.iterdir())


def test_a_page_is_written_again_from_its_document(tmp_path):
    first = command.write_teeth(tmp_path / "a.html", document=_stored(tmp_path))
    again = command.write_teeth(tmp_path / "b", document=tmp_path / "a.json")

    assert [path.name for path in first] == ["a.html", "a.md", "a.json"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def _stored(folder):
    path = folder / "stored.json"
    path.write_text(made().to_json(), encoding="utf-8")
    return path


def test_work_is_what_the_two_products_multiply():
    problem = Recipe(batch=2, query_heads=6, kv_heads=2, query_length=3, key_length=5, head_dim=7, value_dim=11)

    assert work_of(problem.problem()) == 2 * 6 * 3 * 5 * (7 + 11)


def test_a_meter_counts_calls_and_ends_a_search_that_spends_too_much():
    problem = Recipe(query_length=3, key_length=5, head_dim=7, value_dim=7).problem()
    meter = Meter(2 * work_of(problem))
    subject = contest.Subject(meter.on(ZOO["zeros"].kernel), "float32")

    subject(problem)
    assert (meter.work, meter.calls, meter.is_spent) == (work_of(problem), 1, False)
    subject(problem)
    with pytest.raises(OutOfBudget):
        subject(problem)


def test_the_suite_catches_a_mutant_within_its_budget_and_not_without_one():
    found = contest.by_suite(ZOO["zeros"], 2**24)
    starved = contest.by_suite(ZOO["decoding_loses_key"], 1)

    assert (found.caught, found.applies) == (True, True)
    assert 0 < found.work <= 2**24
    assert (starved.caught, starved.applies, starved.why) == (False, True, "")


@pytest.mark.parametrize("mutant", ["tf32_multiplicands", "heads_viewed"])
def test_a_peer_that_covers_no_dtype_of_a_defect_or_whose_scale_it_does_not_take_was_not_asked(mutant):
    """Triton's tutorial is in float16, with a scale in every problem."""
    outcome = contest.by_peer("Triton tutorial", ZOO[mutant], 2**20)

    assert (outcome.applies, outcome.caught, outcome.problems) == (False, False, 0)


def test_a_row_of_the_matrix_has_every_property_and_tells_the_first():
    profile = replace(PROFILES["smoke"], examples=3, floor=1)
    cells = kill_matrix.row_of_matrix(ZOO["zeros"], profile)
    kill = kill_matrix.first_kill(ZOO["zeros"], cells, profile)

    subject, asked_shapes = Subject(ZOO["zeros"].kernel, ZOO["zeros"].dtype), "asked_shapes."  # of which it has none
    applying = [name for name, each in load_all().items() if each.applies_to(subject) and asked_shapes not in name]
    assert [cell.property_id for cell in cells] == applying
    assert 50 < len(applying) < len(load_all())
    assert kill.examples == min(cell.examples for cell in cells if cell.caught)
    assert kill.problem.startswith("Recipe(")
    assert kill.message
    assert kill_matrix.first_kill(ZOO["zeros"], [cell for cell in cells if not cell.caught], profile) is None


def test_numbers_in_the_document_are_plain_json():
    cells = json.loads(made().to_json())["cells"]

    assert cells["rows"][1][cells["columns"].index("verdict")] == "held"


def test_what_is_added_up_stays_plain_json():
    total = Alarms(by_family={"accuracy": 1})
    total.add(Alarms(examples=3, by_family={"accuracy": 2, "causality": 1}, by_dtype={"float32": 3}))

    assert Teeth.from_json(made(alarms=[total]).to_json()).alarms == [total]
    assert total.by_family == {"accuracy": 3, "causality": 1}


@pytest.mark.exhaustive
def test_a_sample_of_the_whole_measurement(monkeypatch):
    """The measurement is that of ``attn-spec teeth``, on few mutants of many families and few sound kernels."""
    told, sample, share = [], 3, 250
    monkeypatch.setattr(measurement, "SHARE", share)
    monkeypatch.setattr(measurement, "EXAMPLES", 80 * share)
    found = measure(
        sample=sample, budget=2**22, workers=1, seed=0, watch=lambda done, total, name: told.append((done, total))
    )

    assert told == [(n + 1, sample + 1) for n in range(sample + 1)]
    assert len({mutant.family for mutant in found.mutants}) == sample
    assert numbers.survivors(found) == []
    assert found.alarms[0].refuted == []
    assert found.alarms[0].examples >= share
    assert {outcome.contestant for outcome in found.outcomes} == {"attn-spec", *PEERS}


GALLERY = Path(__file__).parents[4] / "reports" / "gallery"


@pytest.fixture(scope="module", name="stored")
def _stored_document():
    return Teeth.from_json((GALLERY / "teeth.json").read_text(encoding="utf-8"))


def test_the_pages_of_the_gallery_are_those_of_its_document(stored):
    html = page.html(stored)

    assert (GALLERY / "teeth.html").read_text(encoding="utf-8") == html
    assert (GALLERY / "teeth.md").read_text(encoding="utf-8") == page.markdown(stored)
    assert len(html) < 1_000_000


def test_in_the_gallery_every_mutant_is_caught_and_no_sound_kernel_accused(stored):
    suite, *peers = numbers.contestants(stored)
    refuted, examples = numbers.alarms(stored)

    assert len(stored.mutants) >= 150
    assert numbers.survivors(stored) == []
    assert (refuted, examples >= 20_000) == (0, True)
    assert all(suite.caught > peer.caught for peer in peers)


def test_in_the_gallery_every_property_is_worth_its_time(stored):
    idle = [stay.property_id for stay in numbers.stays(stored) if not (stay.alone or stay.first or stay.names)]

    assert idle == []
    assert [stay.property_id for stay in numbers.stays(stored) if not stay.kills] == []


def test_the_documentation_tells_the_figures_of_the_gallery(stored):
    suite, *peers = numbers.contestants(stored)
    best = max(peers, key=lambda peer: peer.caught)
    refuted, examples = numbers.alarms(stored)
    told = (GALLERY.parent.parent / "docs" / "measured.md").read_text(encoding="utf-8")

    for figure in (
        f"{suite.caught} of {suite.shown}",
        f"{best.caught} of {best.shown}",
        f"{refuted:,} of {examples:,}",
    ):
        assert figure in told
