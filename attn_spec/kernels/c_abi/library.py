"""Functions of shared libraries, which ctypes finds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_spec.kernels.c_abi import float_environment
from attn_spec.kernels.c_abi.float_environment import Environment
from attn_spec.kernels.c_abi.prototype import INTEGERS, REALS, Prototype
from attn_spec.kernels.kernel import KernelError


class LibraryError(KernelError):
    """A shared library cannot be loaded, or exports no function of a name."""


@dataclass(frozen=True)
class Function:
    """A function of a shared library, and the floating-point environment that loading the library left."""

    address: Any
    environment: Environment

    def __call__(self, *values: Any) -> Any:
        """Call the function in its environment, and return its status."""
        with float_environment.entered(self.environment):
            return self.address(*values)


def function(path: Path, prototype: Prototype) -> Function:
    """Return the function of a library that has a prototype. Raises :class:`LibraryError`."""
    if not path.is_file():
        raise LibraryError(
            f"there is no file {path} (looked in {Path.cwd()}); compile it, and name it from the declaration's file: "
            f"Path(__file__).with_name({path.name!r})"
        )
    with float_environment.restored():
        try:
            loaded = ctypes.CDLL(str(path.resolve()))
        except OSError as error:
            raise LibraryError(
                f"{path} cannot be loaded: {error}; compile it for this machine with -shared -fPIC, and link what it "
                "uses"
            ) from error
        environment = float_environment.current()
    try:
        address = loaded[prototype.symbol]
    except AttributeError:
        raise LibraryError(
            f'{path} exports no function {prototype.symbol}; a function of C++ needs extern "C", and a static one is '
            f"not exported. `nm -D {path.name}` lists those that are"
        ) from None
    address.restype = prototype.status
    numbers = {**REALS, **INTEGERS}
    address.argtypes = [ctypes.c_void_p if each.points else numbers[each.type] for each in prototype.parameters]
    return Function(address, environment)
