"""Time to the refutation of wrong kernels, in the order of the search, or of the files."""

from attn_spec.reports.proof import first_refutation
from attn_spec.reports.proof.first_refutation import First, in_order, summary
from attn_spec.reports.proof.zoo.mutants import load_all as load_zoo

from attn_spec.search.order import FIRST


def test_the_order_is_that_of_the_search_or_of_the_files():
    ranked, filed = ([property_.id for property_ in in_order(in_files=chosen)] for chosen in (False, True))

    assert ranked[: len(FIRST)] == list(FIRST)
    assert sorted(ranked) == sorted(filed)
    assert filed[1].startswith("accuracy.")


def test_the_summary_has_median_most_and_worst():
    every = [First(mutant=f"m{n}", property_id="p.one", found=n / 10, shown=float(n)) for n in range(1, 10)]
    every.append(First(mutant="missed", property_id=None, found=30.0, shown=30.0))

    assert summary(every)[:4] == [
        "9 of 10 mutants were refuted by the profile smoke",
        "found  median 0.50 s, 95 % within 0.90 s, worst 0.90 s",
        "shown  median 5.00 s, 95 % within 9.00 s, worst 9.00 s",
        "    9.00 s  m9, by p.one",
    ]
    assert summary(every)[-1] == "  not refuted  missed, in 30.00 s"


def test_the_command_measures_mutants_until_one_property_refutes_each(capsys, monkeypatch):
    monkeypatch.setattr(first_refutation, "chosen", lambda sample, seed: [load_zoo()[0]["head_modulo_kv_heads"]])

    assert first_refutation.main(["--sample", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 of 1 mutants were refuted by the profile smoke"
    found, shown = (float(line.split("worst ")[1].split()[0]) for line in said[1:3])
    assert 0 < found < shown
    assert said[3].rpartition("by ")[2] in FIRST
