"""Models of ONNX as kernels: the inputs of a graph are the arguments of a call, which ONNX Runtime runs on a CPU."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attn_spec.faults import in_one_line
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.nearest_names import suggestion
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import Option
from attn_spec.workers import threads

#: Ending of the file names of models.
ENDING = ".onnx"
#: Declarations that may stand beside a model; all others are what the graph says.
FURTHER = ("contract", "supports", "without", "slowness")
#: Dtypes of inputs, by ONNX Runtime's names, that it takes as NumPy arrays.
_DTYPES = {
    "tensor(double)": "float64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
}
#: Options that a graph without an input for them may use in every call, as ``supports`` says.
CONSTANT = ("causal",)
#: Names of the inputs that are q, k and v; in a graph with others the first three are.
_TENSORS = {"q": ("q", "query"), "k": ("k", "key"), "v": ("v", "value")}


class ModelError(KernelError):
    """A model that attn-spec does not examine: names the file, the input and what to do."""


def is_model(spec: str) -> bool:
    """Return whether a kernel's name is that of a model's file."""
    return spec.endswith(ENDING)


def kernel_of(spec: str, **given: Any) -> Kernel:
    """Return the kernel of a model's file.

    It declares what the graph's inputs say. Its contract is the loosest unless ``contract=`` gives one, since no graph
    says how a kernel rounds. With "causal" in ``supports`` the graph is causal in every call. Raises
    :class:`ModelError`.
    """
    if foreign := sorted(set(given) - set(FURTHER)):
        raise ModelError(f"{spec} is a model, whose graph says what --{foreign[0]} would; leave it out")
    asked = set(given.get("supports", ()))
    model = Model(spec, asked.intersection(CONSTANT))
    if unsaid := sorted(asked & set(OPTIONS) - model.declared["supports"]):
        raise ModelError(f"{spec} has no input for {unsaid[0]}; leave {unsaid[0]} out of --supports")
    without = set(given.get("without", ()))
    if needed := sorted(without & model.options.keys()):
        name = model.options[needed[0]].name
        raise ModelError(f"{spec} takes {name} in every call; leave -{needed[0]} out of --supports")
    supports = (asked | model.declared["supports"]) - without
    made = from_callable(model, **{**model.declared, **given, "supports": supports})
    return replace(made, spec=spec, source=str(Path(spec).resolve()), given=given)


@dataclass(frozen=True)
class Input:
    """An input of a graph: its name, its dtype, and its axes, each a length, a symbol or nothing."""

    name: str
    kind: str
    axes: tuple[int | str | None, ...]

    @property
    def dtype(self) -> str:
        return _DTYPES.get(self.kind, "")


class Model:
    """A graph that is called as attn-spec calls kernels: q, k and v by place, options by attn-spec's names.

    Every call uses the options ``constant``, for which the graph has no input.
    """

    def __init__(self, spec: str, constant: Collection[str] = ()) -> None:
        """Load the model. Raises :class:`ModelError` for one whose calls are none of attention."""
        self.spec, self.constant = spec, tuple(constant)
        self.session = _session(spec)
        self.inputs = [Input(one.name, one.type, tuple(one.shape)) for one in self.session.get_inputs()]
        self.tensors = self._tensors()
        self.options: dict[str, Input] = {}
        for one in self.inputs:
            if one not in self.tensors.values():
                self._add_option(self._option(one), one)
        self._check()
        self.__name__, self.__module__ = Path(spec).stem, "onnxruntime"
        kinds = [(name, inspect.Parameter.POSITIONAL_ONLY) for name in self.tensors]
        kinds += [(name, inspect.Parameter.KEYWORD_ONLY) for name in (*self.options, *self.constant)]
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name, kind in kinds])

    def __call__(self, *tensors: np.ndarray, **options: Any) -> Any:
        """Return the first output, or the two outputs of a graph that has two.

        Raises ``ValueError`` for two lengths of axes that have one symbol.
        """
        passed = {one.name: x for one, x in zip(self.tensors.values(), tensors, strict=True)}
        lengths = self._lengths(passed)
        for name, one in self.options.items():
            passed[one.name] = _with_lengths(_with_axes(options[name], one, OPTIONS[name]), one, lengths)
        results = self.session.run(None, passed)
        return tuple(results) if len(results) == 2 else results[0]

    def _lengths(self, passed: Mapping[str, np.ndarray]) -> dict[Any, int]:
        """Return the length of each symbol of q, k and v in a call."""
        found: dict[Any, int] = {}
        for one in self.tensors.values():
            for axis, length in zip(one.axes, passed[one.name].shape, strict=True):
                if axis and found.setdefault(axis, length) != length:
                    raise ValueError(f"{one.name} has {length} for the axis {axis}, which is {found[axis]} elsewhere")
        return found

    @cached_property
    def declared(self) -> dict[str, Any]:
        """Facts of the kernel's declaration that the graph's inputs say.

        A graph takes all of its inputs in every call, so that every problem uses its options.
        """
        batch, heads, kv_heads = self._length("qkv", 0), self._length("q", 1), self._length("kv", 1)
        queries, keys = self._length("q", 2), self._length("kv", 2)
        width, value_width = self._length("qk", 3), self._length("v", 3)
        supports = {*self.options, *self.constant}
        pairs = {"gqa": (heads, kv_heads), "cross": (queries, keys), "dv": (width, value_width)}
        supports |= {ability for ability, (one, other) in pairs.items() if None not in (one, other) and one != other}
        widths = (width or value_width, value_width or width)
        largest = {"B": batch, "K": keys}
        dtypes = {name: one.dtype for name, one in self.tensors.items()}
        return {
            "name": self.__name__,
            "framework": "numpy",
            "dtypes": (dtypes["q"] if len(set(dtypes.values())) == 1 else dtypes,),
            "option_dtypes": {name: one.dtype for name, one in self.options.items() if one.dtype != "bool"},
            "supports": supports,
            "always": (*self.options, *self.constant),
            "head_dims": None if None in widths else (widths,),
            "query_heads": None if heads is None else (heads,),
            "kv_heads": None if kv_heads is None else (kv_heads,),
            "query_lengths": None if queries is None else (queries,),
            "largest": {axis: length for axis, length in largest.items() if length is not None},
            "multiples": {} if keys is None else {"K": keys},
        }

    def _length(self, names: str, place: int) -> int | None:
        """Return the length that an axis of one of these tensors has in every call; None if calls choose it."""
        axes = (self.tensors[name].axes[place] for name in names)
        return next((axis for axis in axes if isinstance(axis, int)), None)

    def _tensors(self) -> dict[str, Input]:
        if len(self.inputs) < 3:
            told = ", ".join(one.name for one in self.inputs) or "none"
            raise self._error("inputs", f"are {told}; a model of attention has q, k and v")
        named = {one.name.lower(): one for one in self.inputs}
        found = {own: next((named[word] for word in words if word in named), None) for own, words in _TENSORS.items()}
        if None in found.values():
            return dict(zip(_TENSORS, self.inputs, strict=False))
        return {name: one for name, one in found.items() if one is not None}

    def _option(self, one: Input) -> str:
        """Return the option that an input is: what has the name of a mask and is not bool is added to scores."""
        rows = {name: row for name, row in OPTIONS.items() if row.tensor in (np.bool_, np.float64) and not row.of}
        spelled = {word: name for name, row in rows.items() for word in row.spellings}
        if (found := spelled.get(one.name.lower())) is None:
            near = suggestion(one.name, [*spelled], f"; known are {', '.join(spelled)}")
            raise self._error(
                f"input {one.name}",
                f"is no tensor that attn-spec knows: call a session in a function, or rename it{near}",
            )
        return "bias" if found == "mask" and one.dtype != "bool" else found

    def _add_option(self, option: str, one: Input) -> None:
        if option in self.options:
            raise self._error(f"input {one.name}", f"is a {option} beside {self.options[option].name}; leave one out")
        self.options[option] = one

    def _check(self) -> None:
        for one in self.inputs:
            if not one.dtype:
                known = ", ".join(_DTYPES)
                raise self._error(f"input {one.name}", f"is of {one.kind}, and arrays of NumPy are {known} alone")
        for one in self.tensors.values():
            if len(one.axes) != 4:
                raise self._error(
                    f"input {one.name}",
                    f"has {len(one.axes)} axes, and attn-spec calls a model with [B, H, S, D]. Call a session in a "
                    "function with a presentation of its own",
                )
            if isinstance(one.axes[0], int) and one.axes[0] != 1:
                raise self._error(
                    f"input {one.name}", f"has {one.axes[0]} batch entries; export it with a symbol for them, or 1"
                )
        for name, one in self.options.items():
            self._check_option(OPTIONS[name], one)

    def _check_option(self, row: Option, one: Input) -> None:
        places = _places(row, one)
        if (one.dtype == "bool") != (row.tensor is np.bool_):
            raise self._error(f"input {one.name}", f"is of {one.kind}, which no {row.name} is")
        if places is None:
            raise self._error(
                f"input {one.name}",
                f"has {len(one.axes)} axes; the problems of attn-spec have {row.name} [{row.shape_text}]",
            )
        q, k = self.tensors["q"], self.tensors["k"]
        whole = {"B": q.axes[0], "H": q.axes[1], "Q": q.axes[2], "K": k.axes[2], "1": 1}
        for place, axis in enumerate(places):
            if isinstance(length := one.axes[place], int) and length != whole.get(row.axes[axis], length):
                raise self._error(
                    f"input {one.name}",
                    f"has {length} for axis {place}, in which attn-spec draws {row.name} of other lengths; export it "
                    "with a symbol there",
                )

    def _error(self, where: str, words: str) -> ModelError:
        return ModelError(f"{self.spec}: {where} {words}")


def _session(spec: str) -> Any:
    """Return the session of a model's file. Raises :class:`ModelError`."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(f"onnxruntime is not installed ({error}); pip install 'attn-spec[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    options.intra_op_num_threads = int(threads.share(1)[threads.VARIABLES[0]].partition(",")[0])
    try:
        return onnxruntime.InferenceSession(spec, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{spec} is no model that ONNX Runtime can run: {in_one_line(error)}") from error


def _places(row: Option, one: Input) -> Sequence[int] | None:
    """Return the axes of an option that an input has: all four, or those that may have other lengths than 1."""
    chosen = [place for place, axis in enumerate(row.axes) if axis != "1"]
    return {4: range(4), len(chosen): chosen}.get(len(one.axes))


def _with_axes(x: np.ndarray, one: Input, row: Option) -> np.ndarray:
    """Return an option's tensor [B, H, ..] with the axes of an input. Raises ``ValueError`` for one of fewer axes."""
    places = _places(row, one)
    assert places is not None
    if x.ndim != len(row.axes):
        raise ValueError(f"{one.name} of {x.ndim} axes is no {row.name} [{row.shape_text}]")
    return x.reshape([x.shape[place] for place in places])


def _with_lengths(x: np.ndarray, one: Input, lengths: Mapping[Any, int]) -> np.ndarray:
    """Return a tensor that is broadcast to the lengths that an input has, or that q, k and v have by its symbols."""
    return np.broadcast_to(x, [lengths.get(axis, n) for axis, n in zip(one.axes, x.shape, strict=True)])
