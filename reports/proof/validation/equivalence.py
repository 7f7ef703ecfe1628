"""Show that a rebuild changes no bound: what two checkouts say of the same problems, compared entry by entry.

    python reports/proof/validation/equivalence.py draw problems.json --problems 2000
    python reports/proof/validation/equivalence.py record problems.json before.npz  # with the Python of each checkout
    python reports/proof/validation/equivalence.py record problems.json after.npz
    python reports/proof/validation/equivalence.py compare before.npz after.npz

Problems are stored as recipes, so that their values are made by each checkout, and recorded too. Exit status 0: all
bounds and domains agree to 1e-12 relative; 1: some do not, and the worst of each kind are named.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

#: Largest relative difference of two bounds that counts as none.
TOLERANCE = 1e-12
#: The folders that a module has been in, the last first; a checkout from before the folders has it at the top.
FOLDERS = {
    "bounds": ("bounds.forward", "error"),
    "gradient_bounds": ("bounds.backward", "error"),
    "intermediates": ("bounds", "error"),
    "readings": ("contract", "error"),
    "presets": ("contract", "error"),
    "regimes": ("search.drawing", "search"),
    "strategies": ("search.drawing", "search"),
}
DTYPES = ("float64", "float32", "float16", "bfloat16")
#: Fields of bounds by the name that an earlier checkout has for them.
RENAMED = {"X": "E_X"}


def module(name: str) -> Any:
    """Return a module of the checkout whose Python this is."""
    for place in (*(f"attn_spec.{folder}.{name}" for folder in FOLDERS[name]), f"attn_spec.{name}"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(place)
    raise ModuleNotFoundError(f"this checkout has no {name}.py")


def draw(path: Path, problems: int) -> None:
    """Write recipes, as a search of a kernel with every option draws them, as many in each dtype."""
    from attn_spec.emulation.kernels import emulate
    from attn_spec.emulation.sound import PRECISE
    from attn_spec.kernels.subject import Subject

    kernel = emulate("any", PRECISE, dtypes=DTYPES, slowness=4.0)
    strategies = [module("strategies").recipes(Subject(kernel, dtype)) for dtype in DTYPES]
    found = [recipe for strategy in strategies for recipe in _drawn(strategy, problems // len(DTYPES))]
    path.write_text(json.dumps([recipe.to_json() for recipe in found], indent=0))
    print(f"{len(found)} recipes in {path}")


def _drawn(strategy: SearchStrategy[Any], count: int) -> list[Any]:
    """Draw ``count`` different values."""
    found: dict[Any, None] = {}

    @seed(0)
    @settings(
        max_examples=4 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType] -- its metaclass iterates
    )
    @given(strategy)
    def collect(recipe: Any) -> None:
        found.setdefault(recipe)

    collect()
    return list(found)[:count]


def record(problems: Path, path: Path) -> None:
    """Write what this checkout says of the problems: their values, bounds and domains under every preset."""
    recipe_type, presets = module("regimes").Recipe, module("presets").PRESETS
    said: dict[str, np.ndarray] = {}
    for number, document in enumerate(json.loads(problems.read_text())):
        problem = recipe_type.from_json(document).problem()
        said |= {f"{number} {name}": getattr(problem, name) for name in ("q", "k", "v")}
        names = list(presets)
        for chosen in {names[number % len(names)], names[(number // len(names)) % len(names)]}:
            contract = presets[chosen].at(problem.dtype)
            for kind, value in _bounds(problem, contract).items():
                said[f"{number} {chosen} {kind}"] = value
    np.savez_compressed(path, **said)  # pyright: ignore[reportArgumentType] -- of its other parameter
    print(f"{len(said)} arrays in {path}")


@np.errstate(all="ignore")
def _bounds(problem: Any, contract: Any) -> dict[str, np.ndarray]:
    forward, gradient = module("bounds"), module("gradient_bounds")
    x = module("intermediates").intermediates(problem)
    bound = forward.forward_bound(x, contract)
    said = _said_by(bound)
    dO = np.random.default_rng(0).integers(-4, 5, x.O.shape).astype(np.float64)
    g = module("intermediates").gradient_intermediates(x, dO)
    reading = module("readings").gradient_readings(contract)[0]
    found = _said_by(gradient.gradient_bound(x, g, reading, gradient.gradient_evaluation_error(x, g)))
    return said | {f"gradients {name}": value for name, value in found.items()}


def _said_by(bound: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a bound by name, whether they are fields of it or stand in a dict that is one."""
    found: dict[str, Any] = {}
    for name, value in vars(bound).items():
        found |= value if isinstance(value, dict) else {name: value}
    return {name: np.asarray(value) for name, value in found.items() if value is not None}


def compare(before: Path, after: Path) -> int:
    """Print how many arrays agree, and the worst of those that do not; 1 if any."""
    old, new = np.load(before), np.load(after)
    old_keys, new_keys = ({_as_now(key): key for key in said.files} for said in (old, new))
    kinds: dict[str, tuple[float, str]] = {}
    for key in sorted({*old_keys, *new_keys}):
        in_both = key in old_keys and key in new_keys
        apart = _apart(old[old_keys[key]], new[new_keys[key]]) if in_both else np.inf
        kind = key.split(" ", 1)[1]
        kinds[kind] = max(kinds.get(kind, (0.0, "")), (apart, key))
    different = {kind: worst for kind, worst in kinds.items() if worst[0] > TOLERANCE}
    for kind, (apart, key) in sorted(different.items()):
        print(f"{kind}: apart by {apart:.3g} at {key!r}")
    problems = len({key.split(" ", 1)[0] for key in new.files})
    entries = sum(new[key].size for key in new.files)
    print(f"{problems} problems, {len(new.files)} arrays, {entries} entries")
    print(f"{len(different)} of {len(kinds)} kinds of arrays differ")
    return int(bool(different))


def _as_now(key: str) -> str:
    """Return the key of an array with its field's name of today."""
    start, _, name = key.rpartition(" ")
    return f"{start} {RENAMED.get(name, name)}"


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest relative difference; NaN equals NaN, and an infinity itself."""
    if a.shape != b.shape:
        return np.inf
    a, b = (np.asarray(x, dtype=np.float64) for x in (a, b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        apart = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    return float(np.where(same, 0.0, np.nan_to_num(apart, nan=np.inf)).max(initial=0.0))


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, files in (("draw", ["problems"]), ("record", ["problems", "said"]), ("compare", ["before", "after"])):
        chosen = verbs.add_parser(verb)
        for file in files:
            chosen.add_argument(file, type=Path)
        if verb == "draw":
            chosen.add_argument("--problems", dest="count", type=int, default=2000)
    given = parser.parse_args(arguments)
    match given.verb:
        case "draw":
            draw(given.problems, given.count)
        case "record":
            record(given.problems, given.said)
        case _:
            return compare(given.before, given.after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
