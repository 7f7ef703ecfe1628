"""Workloads of a definition as shapes to examine.

A workload gives the lengths of axes, and perhaps a number for the scale. Lengths of single sequences lie in its files
of tensors, which are not read. The keys, and the queries of a prefill, are dealt out evenly. The first sequences get
one more if they do not divide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attn_spec.kernels.flashinfer_trace.documents import DocumentError
from attn_spec.kernels.flashinfer_trace.interface import SCALE, Interface
from attn_spec.kernels.flashinfer_trace.schema import Definition, Trace, Workload, read, read_lines
from attn_spec.problem.shape_spec import BETWEEN, AskedShape, ShapeError

#: Axis of the keys that are listed for each query.
_LISTED = "listed keys"


def shapes_of(file: Path, definition_file: str) -> tuple[AskedShape, ...]:
    """Return the shapes of the workloads in a file, each once, for the definition in another. Raises
    :class:`DocumentError`.
    """
    interface = Interface(read(Definition, Path(definition_file)), definition_file)
    found: dict[AskedShape, None] = {}
    for number, trace in enumerate(read_lines(Trace, file), 1):
        where = f"{file}, workload {number}"
        if trace.definition != interface.definition.name:
            raise DocumentError(
                f"{where}: definition is {trace.definition!r}, and {definition_file} defines "
                f"{interface.definition.name!r}; give the workloads of that definition"
            )
        found[_shape(trace.workload, interface, where)] = None
    return tuple(found)


def _shape(workload: Workload, interface: Interface, where: str) -> AskedShape:
    counted = [name for name in interface.sizes if name != "pages"]
    row, sizes = interface.row, {name: _size(name, interface, workload, where) for name in counted}
    queries = sizes["rows"]
    batch, keys = (queries, queries * sizes[_LISTED]) if _LISTED in sizes else _counted(interface, workload, where)
    if batch < 1:
        raise DocumentError(f"{where}: axes give no sequence")
    if min(queries, keys) < batch:
        raise DocumentError(f"{where}: axes give {batch} sequences {queries} queries and {keys} keys; each needs one")
    of_keys, of_queries = _dealt(keys, batch), _dealt(queries, batch)
    if interface.is_causal and any(k < q for q, k in zip(of_queries, of_keys, strict=True)):
        raise DocumentError(
            f"{where}: axes give {queries} queries and {keys} keys; a causal prefill has a key for each"
        )
    width = sizes["Dv"] + sizes["rotated part of D"] if row.latent else sizes["D"]
    lengths: dict[str, Any] = {"seqused_k": BETWEEN.join(map(str, of_keys))}
    if interface.is_prefill:
        lengths["seqused_q"] = BETWEEN.join(map(str, of_queries))
    scale = workload.inputs.get(SCALE)
    if scale is not None and scale.value is not None and float(scale.value) <= 0:
        raise DocumentError(f"{where}: inputs.{SCALE} is {scale.value}; it must be above 0")
    try:
        return AskedShape(
            batch=batch,
            query_heads=sizes["query heads"],
            kv_heads=1 if row.latent else sizes["kv heads"],
            query_length=of_queries[0],
            key_length=of_keys[0],
            head_dim=width,
            value_dim=sizes["Dv"],
            scale=None if scale is None or scale.value is None else float(scale.value),
            **lengths,
        )
    except ShapeError as error:
        raise DocumentError(f"{where}: axes give no shape that attn-spec examines: {error}") from None


def _counted(interface: Interface, workload: Workload, where: str) -> tuple[int, int]:
    """Return the number of sequences, and of all their keys; a page is taken for full."""
    batch = _length(interface.axis("kv_indptr", 0), interface, workload, where) - 1
    if "kv_indices" not in interface.row.needed:
        return batch, _size("keys", interface, workload, where)
    pages = _length(interface.axis("kv_indices", 0), interface, workload, where)
    return batch, pages * _size("page size", interface, workload, where)


def _size(what: str, interface: Interface, workload: Workload, where: str) -> int:
    """Return the length of the axis that counts something, from the definition or else from the workload."""
    names = [
        axis
        for tensor, axes in interface.axes.items()
        for counted, axis in zip(axes, interface.tensor(tensor).shape or (), strict=True)
        if counted == what
    ]
    return _length(names[0], interface, workload, where)


def _length(axis: str, interface: Interface, workload: Workload, where: str) -> int:
    if (constant := interface.definition.length(axis)) is not None:
        return constant
    if axis not in workload.axes:
        raise DocumentError(f"{where}: axes lack {axis!r}, a variable axis of the definition; add its length")
    return workload.axes[axis]


def _dealt(total: int, among: int) -> list[int]:
    """Return ``total`` in equal parts, of which the first may be larger by one."""
    least, more = divmod(total, among)
    return [least + 1] * more + [least] * (among - more)
