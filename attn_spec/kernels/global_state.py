"""Global state of the process that a call may change: each call is compared before and after, and changes are undone.

Otherwise one call could affect the next, or the judge in the same process. Random states are only reported: masks that
are drawn must differ from call to call. No library is imported for this, since no call changed a library that is not
imported.
"""

from __future__ import annotations

import contextlib
import operator
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.resolve import is_of_the_package


@dataclass(frozen=True)
class Setting:
    """A setting of a module that can be read and, unless it is a random state, written."""

    name: str
    module: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object] | None = None


def _attribute(module: str, path: str) -> Setting:
    *inner, last = path.split(".")

    def owner(found: Any) -> Any:
        for name in inner:
            found = getattr(found, name)
        return found

    def write(found: Any, value: Any) -> None:
        setattr(owner(found), last, value)

    return Setting(f"{module}.{path}", module, lambda found: getattr(owner(found), last), write)


def _jax(name: str) -> Setting:
    return Setting(
        f"jax.config.{name}", "jax", lambda jax: getattr(jax.config, name), lambda jax, x: jax.config.update(name, x)
    )


SETTINGS = (
    Setting("the working directory", "os", lambda _: os.getcwd(), lambda _, x: os.chdir(x)),  # noqa: PTH109
    Setting("Python's limit of recursion", "sys", lambda s: s.getrecursionlimit(), lambda s, x: s.setrecursionlimit(x)),
    Setting("Python's random state", "random", lambda _: random.getstate()),
    Setting("numpy.seterr", "numpy", lambda numpy: numpy.geterr(), lambda numpy, x: numpy.seterr(**x)),
    Setting("NumPy's random state", "numpy", lambda numpy: _packed(numpy.random.get_state(legacy=False)["state"])),
    Setting("torch's random state", "torch", lambda torch: torch.get_rng_state().numpy().tobytes()),
    Setting(
        "torch's default dtype",
        "torch",
        lambda torch: torch.get_default_dtype(),
        lambda torch, x: torch.set_default_dtype(x),
    ),
    Setting(
        "torch's number of threads",
        "torch",
        lambda torch: torch.get_num_threads(),
        lambda torch, x: torch.set_num_threads(x),
    ),
    Setting(
        "torch's grad mode", "torch", lambda torch: torch.is_grad_enabled(), lambda torch, x: torch.set_grad_enabled(x)
    ),
    Setting(
        "torch's deterministic mode",
        "torch",
        lambda torch: torch.are_deterministic_algorithms_enabled(),
        lambda torch, x: torch.use_deterministic_algorithms(x),
    ),
    Setting(
        "torch's precision of float32 products",
        "torch",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, x: torch.set_float32_matmul_precision(x),
    ),
    Setting(
        "torch's autocast on CPU",
        "torch",
        lambda torch: torch.is_autocast_enabled("cpu"),
        lambda torch, x: torch.set_autocast_enabled("cpu", x),
    ),
    _attribute("torch", "backends.cudnn.allow_tf32"),
    _attribute("torch", "backends.cudnn.deterministic"),
    _attribute("torch", "backends.cudnn.benchmark"),
    *(
        Setting(
            f"torch.backends.cuda.{name}_sdp",
            "torch",
            lambda torch, name=name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")(),
            lambda torch, x, name=name: getattr(torch.backends.cuda, f"enable_{name}_sdp")(x),
        )
        for name in ("flash", "mem_efficient", "math", "cudnn")
    ),
    Setting("mlx's random state", "mlx.core", lambda mx: bytes(memoryview(mx.random.state[0]))),
    Setting(
        "mlx's default device",
        "mlx.core",
        lambda mx: mx.default_device(),
        lambda mx, x: mx.set_default_device(x),
    ),
    _jax("jax_enable_x64"),
    _jax("jax_default_matmul_precision"),
)

#: Modules and classes in which a call must not rebind a name that others use.
SPACES = (
    *("builtins", "math", "time", "random", "numpy", "numpy.linalg"),
    *("torch", "torch:Tensor", "torch.nn.functional", "torch.linalg", "jax.numpy", "jax.nn", "jax.lax"),
    *("mlx.core", "mlx.core.fast", "mlx.core.linalg", "mlx.nn"),
)


class GlobalState:
    """Global state that calls of one kernel were seen to change."""

    def __init__(self) -> None:
        self.changes: dict[str, None] = {}

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """Record what the block changes, and restore it. Warnings are silent in the block: a warning is no failure.

        A library that imports more of its modules in the block may rebind its own names.
        """
        settings = {setting: setting.read(sys.modules[setting.module]) for setting in SETTINGS if _is_there(setting)}
        variables = dict(os.environ)
        spaces = {name: (space, dict(vars(space))) for name in SPACES if (space := _space(name)) is not None}
        modules = list(sys.modules)
        try:
            with _silence():
                yield
        finally:
            growing = {name.partition(".")[0] for name in set(sys.modules).difference(modules)}
            for name, (space, before) in spaces.items():
                if name.partition(":")[0].partition(".")[0] not in growing:
                    self._keep_space(name, space, before)
            self._keep_variables(variables)
            for setting, value in settings.items():
                self._keep(setting, value)

    def _keep(self, setting: Setting, before: Any) -> None:
        module = sys.modules[setting.module]
        if (now := setting.read(module)) == before:
            return
        if setting.write is None:
            self.changes[f"{setting.name}, left so"] = None
            return
        self.changes[f"{setting.name}: {before} became {now}, put back"] = None
        setting.write(module, before)

    def _keep_variables(self, before: Mapping[str, str]) -> None:
        if (now := dict(os.environ)) == before:
            return
        for name in sorted(now.keys() | before.keys()):
            if now.get(name) != before.get(name):
                self.changes[f"the environment variable {name}, put back"] = None
        os.environ.clear()
        os.environ.update(before)

    def _keep_space(self, name: str, space: Any, before: Mapping[str, Any]) -> None:
        """Restore names that were rebound. A new name stays, unless it overrides an inherited name of a class."""
        now = vars(space)
        if len(now) == len(before) and all(map(operator.is_, now.values(), before.values())):
            return
        for attribute, value in before.items():
            if (isinstance(space, type) or not attribute.startswith("_")) and now.get(attribute) is not value:
                self.changes[f"{name.replace(':', '.')}.{attribute} rebound, put back"] = None
                setattr(space, attribute, value)
        for attribute in set(now).difference(before) if isinstance(space, type) else ():
            delattr(space, attribute)
            if hasattr(space, attribute):
                self.changes[f"{name.replace(':', '.')}.{attribute} rebound, put back"] = None


def restoring(kernel: Kernel) -> AbstractContextManager[None]:
    """Restore the state of this process after a call of a kernel that is not part of attn-spec."""
    state = None if kernel.isolated else of(kernel.spec)
    return _silence() if state is None else state.restoring()


@cache
def of(spec: str) -> GlobalState | None:
    """Return the global state that calls of the named kernel changed here; None for a kernel of attn-spec."""
    return None if is_of_the_package(spec) else GlobalState()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _packed(state: Mapping[str, Any]) -> tuple[bytes, int]:
    return state["key"].tobytes(), state["pos"]


def _is_there(setting: Setting) -> bool:
    return setting.module in sys.modules


def _space(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found = sys.modules.get(module)
    return getattr(found, attribute, None) if attribute else found
