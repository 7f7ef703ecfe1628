"""The declaration of a kernel as plain data: what the worker reports, and the kernel that the judge makes of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attn_spec.contract.contract import Contract, ContractError
from attn_spec.isolation.plain import decoded, encoded
from attn_spec.kernels.declarations.declaration import kernel as declare
from attn_spec.kernels.declarations.declaration import undeclared
from attn_spec.kernels.defects import Defect
from attn_spec.kernels.kernel import Kernel, KernelError, class_of
from attn_spec.kernels.limits import Limits

#: Kinds of parameters, by name.
_KINDS = {kind.name: kind for kind in type(inspect.Parameter.KEYWORD_ONLY)}


class Parameter(BaseModel):
    """A parameter of the callable."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: str
    #: List with the default as ``plain.encoded`` returns it; empty if there is no default.
    default: list[Any] = Field(max_length=1)


class Declaration(BaseModel):
    """All that the judge knows of a kernel in a worker: fields of :class:`Kernel`, and facts of its callable."""

    model_config = ConfigDict(extra="forbid")

    name: str
    framework: str
    dtypes: tuple[str, ...]
    #: Contract of all dtypes, or None if ``contracts`` has one for each dtype.
    contract: Contract | None
    contracts: dict[str, Contract] | None
    supports: tuple[str, ...]
    conventions: dict[str, str | bool]
    devices: tuple[str, ...]
    presentation: str
    signature: str
    limits: Limits
    backward_limits: Limits
    forward_only: tuple[str, ...]
    option_dtypes: dict[str, str]
    index_dtypes: dict[str, str]
    merge: str | None
    destinations: dict[str, str]
    #: Values as ``plain.encoded`` returns them, by option.
    when_off: dict[str, Any]
    signatures: int | None
    known_defects: tuple[Defect, ...]
    slowness: float
    declared: bool
    module: str
    given: dict[str, Any]
    #: True if the kernel has a backward function of its own.
    has_backward: bool
    parameters: list[Parameter]
    #: Result of ``kernel.class_of`` for the callable: "class", "autograd", or empty.
    source_class: str
    #: Name of the callable in its module; empty if it has none.
    attribute: str


def told(kernel: Kernel, attribute: str) -> dict[str, Any]:
    """Return what the worker reports of a kernel, as JSON values."""
    contract = kernel.contract
    contracts = {dtype: asdict(one) for dtype, one in contract.items()} if isinstance(contract, Mapping) else None
    same = ("name", "framework", "merge", "presentation", "signature", "signatures", "slowness", "declared", "module")
    return {
        **{name: getattr(kernel, name) for name in same},
        **{name: list(getattr(kernel, name)) for name in ("dtypes", "devices", "forward_only")},
        **{name: asdict(getattr(kernel, name)) for name in ("conventions", "limits", "backward_limits")},
        "contract": None if isinstance(contract, Mapping) else asdict(contract),
        "contracts": contracts,
        "supports": sorted(kernel.supports),
        "option_dtypes": dict(kernel.option_dtypes),
        "index_dtypes": dict(kernel.index_dtypes),
        "destinations": dict(kernel.destinations),
        "when_off": {name: encoded(value) for name, value in kernel.when_off.items()},
        "known_defects": [asdict(defect) for defect in kernel.known_defects],
        "given": dict(kernel.given),
        "has_backward": kernel.backward_function is not None,
        "parameters": [
            {
                "name": parameter.name,
                "kind": parameter.kind.name,
                "default": [] if parameter.default is parameter.empty else [encoded(parameter.default)],
            }
            for parameter in kernel.parameters.values()
        ],
        "source_class": class_of(kernel.function),
        "attribute": attribute,
    }


def declaration(document: Any) -> Declaration:
    """Return the declaration that a worker reported, validated. Raises :class:`KernelError`."""
    try:
        return Declaration.model_validate(document)
    except (ValidationError, ContractError, KernelError, TypeError, ValueError) as error:
        raise KernelError(f"the kernel's process sent an invalid declaration of the kernel: {error}") from None


def kernel_of(
    made: Declaration, spec: str, function: Callable[..., Any], backward: Callable[..., Any], **facts: Any
) -> Kernel:
    """Return the kernel that a declaration describes; ``function`` and ``backward`` make its calls.

    ``facts`` are further fields of the kernel. Raises :class:`KernelError`, as the declaration of any kernel does.
    """
    try:
        defaults = [
            decoded(parameter.default[0]) if parameter.default else inspect.Parameter.empty
            for parameter in made.parameters
        ]
        pairs = zip(made.parameters, defaults, strict=True)
        every = [
            inspect.Parameter(parameter.name, _KINDS[parameter.kind], default=default) for parameter, default in pairs
        ]
        function.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        when_off = {name: decoded(value) for name, value in made.when_off.items()}
    except (KeyError, ValueError) as error:
        raise KernelError(f"the kernel's process sent invalid parameters of the kernel: {error}") from None
    limits = {name: getattr(made.limits, name) for name in Limits.__dataclass_fields__}
    same = ("framework", "dtypes", "supports", "name", "devices", "presentation")
    same += ("option_dtypes", "index_dtypes", "merge", "destinations", "signatures", "known_defects", "slowness")
    same += ("backward_limits", "forward_only")
    contract = made.contracts if made.contract is None else made.contract
    facts_of_it: dict[str, Any] = {name: getattr(made, name) for name in same} | limits
    facts_of_it["when_off"] = when_off
    agreed = made.conventions if made.declared else {}
    found = declare(contract=contract or {}, conventions=agreed, **facts_of_it)(function)
    if not made.declared:
        found = undeclared(found, made.conventions)
    own = backward if made.has_backward else None
    of_it = {
        name: getattr(made, name) for name in ("module", "given", "declared", "signature", "source_class", "attribute")
    }
    return replace(found, spec=spec, backward_function=own, **of_it, **facts)
