"""Messages to a user whose kernel is broken in a way that has little to do with attention."""

import json
import re
from dataclasses import dataclass

import pytest

from attn_spec.kernels.time_limit import MOST_CROWDED

SOUND = """\
import time, ctypes, os
import numpy as np
from attn_spec import kernel

def declare(function, **changes):
    defaults = dict(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv",))
    return kernel(**{**defaults, **changes})(function)

def sound(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v
"""


@dataclass(frozen=True)
class Bad:
    """A bad kernel and what must be said of it."""

    name: str
    #: Appended to SOUND; defines ``attention``.
    source: str
    exit_code: int
    #: Each must appear in the output.
    says: tuple[str, ...]
    arguments: tuple[str, ...] = ()


ONCE_STARTED = "if q.shape[2] != 8: "  # the plain call before the search has eight queries

BAD = (
    Bad("syntax_error", "def attention(q, k, v:", 2, ("does not import: SyntaxError", "Run `python")),
    Bad("import_error", "import no_such_module", 2, ("does not import: ModuleNotFoundError", "no_such_module")),
    Bad("absent_name", "", 2, ("bad has no 'attention'; it has", "sound")),
    Bad("not_callable", "attention = 3", 2, ("is an int, not a function or a kernel",)),
    Bad(
        "unknown_option",
        "attention = declare(sound, supports=('rope',))",
        2,
        ("unknown options rope; known are causal",),
    ),
    Bad(
        "unknown_contract", "attention = declare(sound, contract='magic')", 2, ("unknown contract 'magic'; known are",)
    ),
    Bad("unknown_dtype", "attention = declare(sound)", 2, ("declares float32, not float16",), ("--dtype", "float16")),
    Bad("absent_gpu", "attention = declare(sound, devices=('cuda',))", 2, ("runs on cuda only", "choose device cuda")),
    Bad(
        "no_gpu_here",
        "attention = declare(sound)",
        2,
        ("numpy has no device cuda",),
        ("--device", "cuda"),
    ),
    Bad("no_such_device", "attention = declare(sound)", 2, ("unknown device 'tpu'",), ("--device", "tpu")),
    Bad("redeclared", "attention = declare(sound)", 2, ("leave out the options for contract",), ("--contract", "fp32")),
    Bad(
        "always_raises",
        "attention = declare(lambda q, k, v: 1 / 0)",
        2,
        ("a plain call failed in every dtype", "ZeroDivisionError: division by zero", "q, k, v of shape"),
    ),
    Bad(
        "always_hangs",
        "attention = declare(lambda q, k, v: time.sleep(60))",
        2,
        ("a plain call failed in every dtype", "did not return within 1 s"),
        ("--call-limit", "1"),
    ),
    Bad(
        "always_crashes",
        "attention = declare(lambda q, k, v: ctypes.string_at(0))",
        2,
        ("a plain call failed in every dtype", "the kernel crashed the process (SIGSEGV)"),
    ),
    Bad(
        "always_crashes_here",
        "attention = declare(lambda q, k, v: ctypes.string_at(0))",
        2,
        ("the kernel crashed the process (SIGSEGV) before the first property was examined",),
        ("--no-isolate",),
    ),
    Bad(
        "exits_when_imported",
        "print('setting up'); raise SystemExit('no licence')",
        2,
        ("bad.py does not import: SystemExit: no licence",),
    ),
    Bad("ends_when_imported", "os._exit(9)", 2, ("ended the process (exit code 9) while the kernel was loaded",)),
    Bad(
        "wrong_shape",
        "attention = declare(lambda q, k, v: sound(q, k, v)[..., 0] if q.shape[2] != 8 else sound(q, k, v))",
        1,
        ("out has shape (1, 1, 1); it must be (1, 1, 1, 1)",),
    ),
    Bad(
        "wrong_dtype",
        "attention = declare(lambda q, k, v: sound(q, k, v).astype(np.float64 if q.shape[2] != 8 else np.float32))",
        1,
        ("out has dtype float64; it must be float32, the inputs' dtype unless another one is declared",),
    ),
    Bad(
        "wrong_type",
        "attention = declare(lambda q, k, v: None if q.shape[2] != 8 else sound(q, k, v))",
        1,
        ("out is a NoneType; it must be a ndarray",),
    ),
    Bad(
        "a_misfit",
        "attention = declare(lambda *qkv: sound(*(x.swapaxes(1, 2) for x in qkv)).swapaxes(1, 2))",
        2,
        ("it takes tensors [B, S, H, D]", "\nAdd presentation='BSHD' to its @kernel(...)"),
    ),
    Bad("nan", "attention = declare(lambda q, k, v: sound(q, k, v) * np.float32('nan'))", 1, ("got       nan",)),
    Bad(
        "mutates",
        "def mutating(q, k, v):\n    v *= 2\n    return sound(q, k, v / 2)\nattention = declare(mutating)",
        1,
        ("the kernel changed its input v in place; it must leave its inputs alone",),
    ),
    Bad(
        "no_lse", "attention = declare(sound, supports=('lse',))", 2, ("declares lse but returned no (out, lse) pair",)
    ),
    Bad(
        "crashes_in_the_first_look",
        "def crashing(q, k, v, *, causal=False):\n    if causal: ctypes.string_at(0)\n    return sound(q, k, v)\n"
        "attention = declare(crashing, supports=('causal', 'cross'))",
        1,
        ("the kernel crashed the process (SIGSEGV)", "property  accuracy.output"),
    ),
    Bad(
        "raises",
        f"def raising(q, k, v):\n    {ONCE_STARTED}raise IndexError('tile 3')\n    return sound(q, k, v)\n"
        "attention = declare(raising)",
        1,
        ("the kernel's call raised IndexError: tile 3", "bad.py:"),
    ),
    Bad(
        "short_table",  # of one column nothing is turned
        "def looking(q, k, v, *, rotary, rotary_key_positions=None):\n"
        "    at = np.zeros(1, int) if rotary_key_positions is None else rotary_key_positions\n"
        "    np.ones(300)[at]\n    return sound(q, k, v)\n"
        "options = ('rotary', 'rotary_key_positions')\n"
        "attention = declare(looking, supports=options, always=('rotary',), head_dims=(1,))",
        1,
        ("IndexError: index", "hint      right with positions that are counted", "declare largest_position="),
        ("--profile", "ci"),
    ),
    Bad(
        "hangs",
        f"def hanging(q, k, v):\n    {ONCE_STARTED}time.sleep(60)\n    return sound(q, k, v)\n"
        "attention = declare(hanging)",
        1,
        ("the kernel's call did not return within 0.2 s",),
        ("--call-limit", "0.2"),
    ),
    Bad(
        "loses_its_device",
        "from attn_spec.kernels.frameworks.numpy import NUMPY\n"
        "def losing(q, k, v):\n"
        f"    {ONCE_STARTED}type(NUMPY).lost = lambda self, device: True; raise RuntimeError('illegal access')\n"
        "    return sound(q, k, v)\nattention = declare(losing)",
        1,
        ("the kernel crashed the process (SIGABRT)",),
    ),
    Bad(
        "crashes",
        f"def crashing(q, k, v):\n    {ONCE_STARTED}ctypes.string_at(0)\n    return sound(q, k, v)\n"
        "attention = declare(crashing)",
        1,
        ("the kernel crashed the process (SIGSEGV)",),
    ),
    Bad(
        "exits",
        f"def exiting(q, k, v):\n    {ONCE_STARTED}os._exit(7)\n    return sound(q, k, v)\n"
        "attention = declare(exiting)",
        1,
        ("the kernel ended the process (exit code 7)",),
    ),
    Bad(
        "exits_here",
        f"def exiting(q, k, v):\n    {ONCE_STARTED}os._exit(7)\n    return sound(q, k, v)\n"
        "attention = declare(exiting)",
        1,
        ("the kernel ended the process (exit code 7)",),
        ("--no-isolate",),
    ),
    Bad(
        "leaves",
        f"def leaving(q, k, v):\n    {ONCE_STARTED}exit('bye')\n    return sound(q, k, v)\n"
        "attention = declare(leaving)",
        1,
        ("the kernel's call raised SystemExit: bye",),
    ),
)


#: Bad kernels whose message tests of its own module show, in one process: of the kernel's look-up and declaration, its
#: call, the first look, the process of a kernel. Others of BAD take the same way from there to the user.
SHOWN_IN_PROCESS = (
    *("import_error", "not_callable", "unknown_option", "unknown_contract", "redeclared", "no_gpu_here"),
    *("exits_when_imported", "wrong_dtype", "wrong_type", "wrong_shape", "mutates", "no_lse", "raises", "leaves"),
)
#: Bad kernels that tests of the command and of the plugin show: no such name or dtype, and a misfit.
SHOWN_BY_COMMANDS = ("absent_name", "unknown_dtype", "a_misfit")
#: Bad kernels whose cases are replayed here, which shows their message too.
REPLAYED = ("crashes", "hangs")
ELSEWHERE = {*SHOWN_IN_PROCESS, *SHOWN_BY_COMMANDS, *REPLAYED}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "bad",
    [pytest.param(bad, marks=pytest.mark.exhaustive if bad.name in ELSEWHERE else ()) for bad in BAD],
    ids=lambda bad: bad.name,
)
def test_the_user_is_told_what_is_wrong(bad, attn_spec, folder):
    assert_told(bad, attn_spec, folder)


def assert_told(bad, attn_spec, folder):
    folder.joinpath("bad.py").write_text(SOUND + bad.source)
    done = attn_spec("certify", "bad.py:attention", "--property", "accuracy.output", *bad.arguments)

    assert done.returncode == bad.exit_code, done.stdout + done.stderr
    for text in bad.says:
        assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert folder.joinpath("certificate.json").exists() == (bad.exit_code == 1)
    assert not list(folder.glob(".attn-spec/in-flight/*"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*REPLAYED, pytest.param("wrong_shape", marks=pytest.mark.exhaustive)])
def test_what_was_refuted_can_be_replayed(name, attn_spec, folder):
    (bad,) = (row for row in BAD if row.name == name)
    folder.joinpath("good.py").write_text(SOUND + "attention = declare(sound)")
    assert_told(bad, attn_spec, folder)

    (case,) = folder.glob(".attn-spec/cases/*.json")
    again = attn_spec("replay", *(("--call-limit", "0.2") if name == "hangs" else ()))
    assert (again.returncode, again.stdout.split()[1:3]) == (1, ["still", "fails:"]), again.stdout
    fixed = attn_spec("replay", case.stem[:4], "--kernel", "good.py:attention")
    assert (fixed.returncode, fixed.stdout.split()[1]) == (0, "fixed"), fixed.stdout


def test_a_hang_that_holds_the_interpreter_ends_too(attn_spec, folder):
    # time.sleep lets Python see signals; this loop in C does not, so only the end of the process helps
    loop = f"    {ONCE_STARTED}all(itertools.repeat(1))"
    spin = f"import itertools\ndef spin(q, k, v):\n{loop}\n    return sound(q, k, v)\n"
    folder.joinpath("bad.py").write_text(SOUND + spin + "attention = declare(spin)")
    arguments = ("--no-isolate", "--call-limit", "0.5", "--property", "accuracy.output")
    done = attn_spec("certify", "bad.py:attention", *arguments)

    assert done.returncode == 1
    told = re.search(r"the kernel hung: a call did not return within (\S+) s, nor to the interpreter", done.stdout)
    assert told is not None, done.stdout
    assert 0.5 <= float(told[1]) <= 0.5 * MOST_CROWDED


def test_the_properties_after_a_crash_are_still_examined(attn_spec, folder):
    (bad,) = (row for row in BAD if row.name == "crashes")
    once = bad.source.replace("ctypes", "os.path.exists('once') or open('once', 'w').close() or ctypes")
    folder.joinpath("bad.py").write_text(SOUND + once)
    attn_spec("certify", "bad.py:attention", "--property", "accuracy", "--property", "masking")

    document = json.loads(folder.joinpath("certificate.json").read_text())
    verdicts = {result["id"]: result["verdict"] for result in document["properties"]}
    assert verdicts["accuracy.output_is_within_its_bound"] == "refuted"
    assert "ctypes" not in str(document)
    assert "not run, since the process had died too often" not in str(document)


def test_an_undecorated_callable_is_asked_what_it_can_do(attn_spec, folder):
    folder.joinpath("bare.py").write_text(
        SOUND + "def attention(q, k, v, softmax_scale=None, rate=0.0, dropout_p=0.0):\n    return sound(q, k, v)"
    )
    attn_spec("certify", "bare.py:attention", "--property", "accuracy.output", "--dtype", "float32")

    declarations = json.loads(folder.joinpath("certificate.json").read_text())["declarations"]
    assert declarations["declared"] is False
    # A p without a keep mask is a matter of chance; that the kernel ignores it is for the properties to say.
    assert declarations["supports"] == ["cross", "dropout_by_chance", "dv", "scale"]
    assert sorted(declarations["declined"]) == [
        "backward",
        "descale_by_head",
        "descale_by_key",
        "dropout_seed",
        "empty",
        "gqa",
        "head_widths",
        "lse",
        "mask_of_two_axes",
        "parameter rate",
    ]
    assert declarations["declined"]["backward"] == "numpy carries no gradients, and it has no @NAME.backward"
    assert declarations["declined"]["lse"] == "it returns no (out, lse) pair"
    assert declarations["declined"]["dropout_seed"] == "it has no parameter dropout_seed"
    left = "left at its default, since no option that it takes is spelled so"
    assert declarations["declined"]["parameter rate"].startswith(left)
