"""The command: its screens, its exit codes, and the files it leaves."""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import jsonschema
import pytest
from attn_spec.reports.errors import command
from click.testing import CliRunner

from attn_spec.cli import command as cli
from attn_spec.evidence import certificate
from attn_spec.workers import threads

TOY = """
import numpy as np
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv", "cross"))
def sound(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v

@kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv", "cross"))
def last_key_lost(q, k, v):
    return sound(q, k[:, :, :-1], v[:, :, :-1]) if k.shape[2] > 1 else sound(q, k, v)
"""


@pytest.fixture
def toy(folder):
    folder.joinpath("toy.py").write_text(TOY)
    return folder


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """Certify both kernels in a folder: old.json is of the sound one, and new.json of the other, which has a case.

    The screens are old.txt and new.txt.
    """
    folder = tmp_path_factory.mktemp("certified")
    folder.joinpath("toy.py").write_text(TOY)
    for name, kernel, code in (("old", "sound", 0), ("new", "last_key_lost", 1)):
        command = [sys.executable, "-m", "attn_spec", "certify", f"toy.py:{kernel}", "-o", f"made/{name}.json"]
        few = ["--property", "accuracy.output", "--seed", "7"]
        done = subprocess.run([*command, *few], cwd=folder, check=False, capture_output=True, text=True)
        assert done.returncode == code
        shutil.move(folder / "made" / f"{name}.json", folder)
        folder.joinpath(f"{name}.txt").write_text(done.stdout)
    return folder


@pytest.fixture
def examined(certified, folder):
    """Return a copy of the folder in which both kernels were certified."""
    shutil.copytree(certified, folder, dirs_exist_ok=True)
    return folder


def screen(done):
    """Return the user's screen, without what differs between kernel files or machines, whose BLAS sums differently."""
    done.stdout = re.sub(r"(\] is -?\d+\.\d{6})\d+;", r"\1<digits>;", done.stdout)
    text = re.sub(r"(source|replay|cases/)( ?)[0-9a-f]{8}\b", r"\1\2<id>", done.stdout)
    return re.sub(r"\d+ (properties|verdicts|others|not exercised)", r"<n> \1", text) + done.stderr


def test_help_of_every_verb(snapshot):
    runner = CliRunner(env={"COLUMNS": "100"})
    verbs = ("", "certify", "replay", "report", "statistics", "gpu", "properties", "explain", "probe")
    pages = [runner.invoke(cli.main, [*filter(None, [verb]), "--help"], prog_name="attn-spec").output for verb in verbs]

    assert "\n".join(pages) == snapshot


def test_a_refuted_kernel_is_shown_with_its_smallest_case(toy, attn_spec, snapshot):
    done = attn_spec("certify", "toy.py:last_key_lost", "--property", "accuracy.output")

    assert done.returncode == 1
    assert screen(done) == snapshot


def test_a_kernel_is_examined_at_a_shape_asked_for(toy, attn_spec):
    """Defects of other sizes do not hide a defect of this one; the case replays at its own shape."""
    words = "B=1,Hq=2,Hkv=2,Sq=60,Sk=70,D=8 normal+v_waves: all 120 rows"
    asked = ("--property", "sampled_rows", "--shape", "H=2,Sq=60,Sk=70,D=8")
    held = attn_spec("certify", "toy.py:sound", *asked)
    assert held.returncode == 0, held.stderr
    assert f"float32 {words}" in held.stdout
    document = json.loads((toy / "certificate.json").read_text())
    (power,) = document["power"]
    assert power["where"] == "B=1,Hq=2,Hkv=2,Sq=60,Sk=70,D=8"
    planted, unseen = len(power["planted"]), len(power["unseen"])
    assert f"power: {planted - unseen} of {planted} planted errors would be refuted" in held.stdout
    assert planted > 10
    assert document["configuration"]["shapes"] == ["B=1,Hq=2,Hkv=2,Sq=60,Sk=70,D=8"]
    assert command.shapes_of(toy / "certificate.json") == {"shapes asked for": "B=1,Hq=2,Hkv=2,Sq=60,Sk=70,D=8"}
    assert [row.looked_at[0] for row in command.verdicts_of(toy / "certificate.json") if row.looked_at] == [words]

    assert attn_spec("certify", "toy.py:last_key_lost", *asked).returncode == 1
    again = attn_spec("replay")
    assert (again.returncode, "1 still fails" in again.stdout) == (1, True), again.stdout


@pytest.mark.parametrize("page", ["mine.html", "mine", "./mine.json"])
def test_a_report_does_not_overwrite_its_certificate(toy, attn_spec, page):
    """A report is three files: HTML, Markdown and JSON."""
    done = attn_spec("certify", "toy.py:sound", "--property", "accuracy.output", "-o", "mine.json", "--report", page)

    assert done.returncode == 2
    assert "would overwrite the certificate mine.json; choose another --report" in done.stderr
    assert not (toy / "mine.json").exists()


def test_a_report_shows_the_verdicts_of_a_certificate_and_does_not_overwrite_it(examined, attn_spec):
    asked = ("report", "toy.py:sound", "--certificate", "old.json", "--output")
    done = attn_spec(*asked, "old.html")
    assert done.returncode == 2
    assert "--output old.html would overwrite the certificate old.json; choose another --output" in done.stderr

    done = attn_spec(*asked, "page")
    assert done.returncode == 0, done.stderr
    assert "1 property x 1 subject = 1 verdict: 1 held" in (examined / "page.md").read_text()


COMPILED = """
import time

known = set()

@kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv", "cross"))
def compiled(q, k, v):
    if (q.shape, v.shape) not in known:
        known.add((q.shape, v.shape))
        time.sleep(0.1)
    return sound(q, k, v)
"""


def test_a_kernel_to_which_each_shape_costs_seconds_is_examined_at_few(folder, attn_spec):
    folder.joinpath("toy.py").write_text(TOY + COMPILED)

    done = attn_spec("certify", "toy.py:compiled", "--property", "accuracy.output")

    assert done.returncode == 0
    assert re.search(r"new shapes: a first call at a shape takes 0\.1\d? s, \d+ times as long", done.stdout)
    declared = json.loads((folder / "certificate.json").read_text())["declarations"]
    assert declared["signatures"] == 2
    assert f"new shapes: {declared['cost_of_new_shapes']}" in done.stdout


STOCHASTIC = """
from attn_spec import Contract, Quantiser

EITHER = Contract(quantisers=(Quantiser(of="v", rounding="either"),))
either = kernel(framework="numpy", dtypes=("float32",), contract=EITHER, supports=("dv", "cross"))(sound.function)
"""


def test_a_weak_contract_is_called_weak_on_the_screen_and_in_the_certificate(folder, attn_spec):
    folder.joinpath("toy.py").write_text(TOY + STOCHASTIC)

    done = attn_spec("certify", "toy.py:either", "--property", "accuracy.output")

    assert done.returncode == 0, done.stdout
    assert "weak contract: each code of v may be either of two" in done.stdout
    declared = json.loads((folder / "certificate.json").read_text())["declarations"]
    assert declared["contracts"]["float32"]["weakness"] == "each code of v may be either of two"


def test_what_is_no_shape_is_refused():
    shown = CliRunner().invoke(cli.main, ["certify", "toy.py:sound", "--shape", "Hq=4,Hkv=3,S=2,D=8"])

    assert shown.exit_code == 2
    assert "'--shape': 'Hq=4,Hkv=3,S=2,D=8': Hq must be a multiple of Hkv, since" in shown.output


def test_a_part_of_the_properties_passes_and_certifies_nothing(certified):
    shown = certified.joinpath("old.txt").read_text()

    assert "  held           accuracy.output_is_within_its_bound  worst error/bound " in shown
    assert "1 property x 1 subject = 1 verdict: 1 held, 0 refuted, 0 suspect, 0 not declared, 0 not exercised" in shown
    last = "certificate: made/old.json\nPASSED (smoke: 10 problems a property, 1 property alone)\n"
    assert shown.endswith(last)


def test_fail_fast_stops_at_the_first_refutation(toy, attn_spec):
    done = attn_spec("certify", "toy.py:last_key_lost", "--fail-fast", "--workers", "1")

    assert done.returncode == 1
    assert done.stdout.count("REFUTED  ") == 1
    assert re.search(r"\n  not exercised  \d+ properties not run, stopped at the first refutation\n", done.stdout)
    assert done.stdout.endswith("REFUTED, stopped at the first refutation\n")
    document = json.loads(toy.joinpath("certificate.json").read_text())
    assert (document["result"], document["complete"], document["summary"]["refuted"]) == ("refuted", False, 1)
    assert not list(toy.glob(".attn-spec/in-flight/*"))


def test_fail_fast_changes_nothing_where_nothing_is_refuted(toy, attn_spec):
    done = attn_spec("certify", "toy.py:sound", "--fail-fast", "--property", "softmax.weights")

    assert (done.returncode, json.loads(toy.joinpath("certificate.json").read_text())["complete"]) == (0, True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are for POSIX")
def test_ctrl_c_ends_with_what_is_known(toy):
    # A run in the background would ignore the signal.
    heeded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    begun = f"{heeded}; from attn_spec.cli.command import main; main()"
    command = [sys.executable, "-c", begun, "certify", "toy.py:sound", "--profile", "certify"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=toy) as running:
        assert running.stdout.readline().startswith("toy:sound (source ")  # in a pipe, long before the end
        running.send_signal(signal.SIGINT)
        said = running.stdout.read()

    assert running.returncode == 130, said
    assert "properties not run, interrupted\n" in said
    assert said.endswith("certificate: certificate.json\nINCONCLUSIVE, interrupted\n")
    document = json.loads(toy.joinpath("certificate.json").read_text())
    assert (document["result"], document["complete"]) == ("inconclusive", False)
    assert not list(toy.glob(".attn-spec/in-flight/*"))


def test_json_is_all_there_is_on_stdout(toy, attn_spec):
    done = attn_spec("certify", "toy.py:last_key_lost", "--property", "accuracy.output", "--json")

    assert done.returncode == 1
    assert done.stdout == toy.joinpath("certificate.json").read_text()
    jsonschema.validate(json.loads(done.stdout), certificate.schema())
    assert done.stderr.endswith("certificate: certificate.json\nREFUTED\n")


def test_json_says_why_a_kernel_could_not_be_run(toy, attn_spec):
    done = attn_spec("certify", "toy.py:nothing", "--json", "-o", "c.json")

    assert done.returncode == 2
    text = "toy has no 'nothing'; it has sound, last_key_lost"
    assert json.loads(done.stdout) == {"schema": 2, "result": "could not run", "message": text}
    jsonschema.validate(json.loads(done.stdout), certificate.schema())
    assert done.stderr == f"Error: {text}\n"
    assert not toy.joinpath("c.json").exists()


def test_a_place_where_nothing_can_be_written_is_told_before_the_search(toy, attn_spec):
    for options in (("-o", "toy.py/c.json"), ("-o", "."), ("--report", "toy.py/r.html")):
        done = attn_spec("certify", "toy.py:sound", *options)

        assert done.returncode == 2
        assert re.fullmatch(r"Error: .* cannot be written: .*; choose another place\n", done.stderr), done.stderr
        assert sorted(path.name for path in toy.iterdir()) == ["toy.py"]


def test_an_error_of_attn_spec_says_so_and_is_no_refutation(toy, attn_spec):
    fault = "\nfrom attn_spec.kernels import kernel as k\nk.Kernel.digest = property(lambda _: 1 / 0)\n"
    toy.joinpath("faulty.py").write_text(TOY + fault)
    done = attn_spec("certify", "faulty.py:sound", "--no-isolate", "--property", "accuracy.output")

    assert done.returncode == 2
    assert done.stderr.startswith("Error: this is a bug of attn-spec "), done.stderr
    assert re.search(r", not of the kernel: ZeroDivisionError: .* at .*\.py:\d+\. Please report it ", done.stderr)


def test_an_error_of_the_command_itself_shows_its_traceback_and_has_no_verdict(monkeypatch):
    def broken():
        raise KeyError("oops")

    monkeypatch.setattr("attn_spec.search.property.load_all", broken)
    done = CliRunner().invoke(cli.main, ["properties"])

    assert done.exit_code == 2
    assert "Traceback (most recent call last):" in done.output
    assert "Error: this is a bug of attn-spec" in done.output.splitlines()[-1]


def test_an_interrupt_has_the_exit_code_of_one(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("attn_spec.search.property.load_all", interrupted)
    done = CliRunner().invoke(cli.main, ["properties"])

    assert (done.exit_code, done.output) == (130, "Error: interrupted\n")


def test_a_sound_kernel_is_certified_twice_alike(toy, attn_spec, monkeypatch):
    for name in threads.VARIABLES:  # which a certificate holds, and which are fewer where processes are more
        monkeypatch.setenv(name, "1")
    few = [f"--property={part}" for part in ("accuracy", "masking", "gradients")]
    first = attn_spec("certify", "toy.py:sound", "-o", "one.json", "--workers", "1", *few)
    second = attn_spec("certify", "toy.py:sound", "-o", "two.json", "--workers", "3", *few)

    assert first.returncode == second.returncode == 0, first.stdout
    assert "certificate: one.json\nPASSED (smoke: 10 problems a property, " in first.stdout
    assert re.search(r"\n  not declared   \d+ properties: \d+ need backward, \d+ need mask, ", first.stdout)
    assert toy.joinpath("one.json").read_bytes() == toy.joinpath("two.json").read_bytes()
    same = attn_spec("report", "one.json", "two.json")
    assert (same.returncode, same.stdout) == (0, "the certificates say the same\n")


def test_the_certificate_says_what_was_examined_where_and_how(certified):
    document = json.loads(certified.joinpath("old.json").read_text())

    assert document["subject"]["spec"] == "toy.py:sound"
    assert document["environment"]["torch"] == importlib.metadata.version("torch")
    assert (document["configuration"]["seed"], document["configuration"]["seed_of_profile"]) == (7, False)
    assert document["configuration"]["only"] == ["accuracy.output"]
    assert document["declarations"]["supports"] == ["cross", "dv"]
    assert document["declarations"]["contracts"]["float32"]["summary"] == "fused"
    assert document["summary"]["total"] == len(document["properties"])


def test_a_known_misfit_ends_the_run_with_its_cause_and_remedy(toy, attn_spec):
    wide = "\n\ndef wide(q, k, v):\n    return sound(q, k, v).astype('float64')\n"
    toy.joinpath("toy.py").write_text(TOY + wide)
    done = attn_spec("certify", "toy.py:wide", "--dtype", "float32", "--property", "accuracy.output")

    assert done.returncode == 2
    cause, remedy = done.stderr.splitlines()[-2:]
    assert "float64" in cause
    assert remedy
    assert not toy.joinpath("certificate.json").exists()


def test_replay_without_cases_says_where_they_come_from(attn_spec, snapshot):
    done = attn_spec("replay")

    assert done.returncode == 2
    assert screen(done) == snapshot


def test_a_case_of_a_property_that_is_gone_cannot_run(examined, attn_spec):
    (case,) = examined.glob(".attn-spec/cases/*.json")
    case.write_text(json.dumps({**json.loads(case.read_text()), "property_id": "accuracy.gone"}))
    done = attn_spec("replay")

    assert done.returncode == 2
    assert "property 'accuracy.gone' no longer exists; see `attn-spec properties`" in done.stdout


def test_a_case_that_needs_what_another_kernel_does_not_declare_cannot_run(toy, attn_spec):
    toy.joinpath("causal.py").write_text(
        TOY.replace('"dv", "cross"', '"causal",').replace("(q, k, v):", "(q, k, v, causal=False):")
    )
    attn_spec("certify", "causal.py:sound", "--property", "causality.future_keys_change_nothing")
    done = attn_spec("replay", "--kernel", "toy.py:sound")

    assert done.returncode == 2
    assert "cannot run: toy:sound does not declare causal, which the case needs" in done.stdout


@pytest.mark.usefixtures("examined")
def test_two_certificates_are_compared(attn_spec):
    done = attn_spec("report", "old.json", "new.json")

    assert done.returncode == 0
    assert "subject.name: toy:sound -> toy:last_key_lost\n" in done.stdout
    assert re.search(r"accuracy.output_is_within_its_bound float32: held \(.*\) -> refuted \(", done.stdout)


def test_a_certificate_and_a_case_of_the_schemas_before_are_read(examined, attn_spec):
    document = json.loads((examined / "new.json").read_text().replace('"not declared"', '"not claimed"'))
    document |= {"schema": 1, "claims": document.pop("declarations")}
    (examined / "old.json").write_text(json.dumps(document))
    (case,) = examined.glob(".attn-spec/cases/*.json")
    stored = json.loads(case.read_text())
    stored["claim"] = stored.pop("property_id")
    case.write_text(json.dumps({**stored, "schema": 2}))

    assert attn_spec("report", "old.json", "new.json").stdout == "the certificates say the same\n"
    assert attn_spec("replay").returncode == 1


def test_a_malformed_certificate_is_refused(folder, attn_spec):
    folder.joinpath("bad.json").write_text("{}")
    done = attn_spec("report", "bad.json", "bad.json")

    assert done.returncode == 2
    assert done.stderr.startswith("Error: bad.json is not a certificate of schema 1 or 2:\n")
    assert "Traceback" not in done.stderr


def test_properties_lists_every_property_with_its_statement(attn_spec):
    done = attn_spec("properties")
    shown = attn_spec("properties", "accuracy.output")

    assert done.stdout.count("\n") == 2 * int(done.stdout.split()[-2]) + 1
    assert shown.stdout.splitlines()[0] == "accuracy.output_is_within_its_bound  (property)"
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:5]] == ["source", "hunts", "needs"]
    assert attn_spec("properties", "no such").returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="pty is for POSIX")
def test_progress_is_shown_on_a_terminal(toy):
    import pty

    command = [sys.executable, "-m", "attn_spec", "certify", "toy.py:sound", "--property", "accuracy.output"]
    terminal, end = pty.openpty()
    running = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
    os.close(end)
    shown = bytearray()
    with contextlib.suppress(OSError):  # which is how a terminal says that nobody is at its other end
        while data := os.read(terminal, 4096):
            shown.extend(data)
    os.close(terminal)

    assert running.wait() == 0
    text = shown.decode()
    assert "finding the kernel" in text
    assert re.search(r"\[\d+/\d+\]", text)
    assert "PASSED" in text.splitlines()[-1]
