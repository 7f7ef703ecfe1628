"""The page on the certificate: every field of the document, and its JSON Schema."""

from __future__ import annotations

import inspect
import json

from attn_spec.evidence import certificate
from attn_spec.vocabulary.comments import comments_of, summary

from . import markdown
from .markdown import code, escaped, table


def section(model: type[certificate.Model]) -> str:
    """Return a section on a part of the document: its fields, their types and meanings."""
    comments, types = comments_of(model), inspect.get_annotations(model)
    lines = [
        [code(field.alias or name), code(types[name].replace("|", "or")), escaped(comments.get(name, ""))]
        for name, field in model.model_fields.items()
    ]
    return f"## {model.__name__}\n\n{escaped(summary(model))}\n\n{table(['field', 'type', 'meaning'], lines)}"


def models() -> list[type[certificate.Model]]:
    """Return the parts of the document, the whole document first."""
    found = [
        value
        for value in vars(certificate).values()
        if isinstance(value, type) and issubclass(value, certificate.Model) and value is not certificate.Model
    ]
    return sorted(found, key=lambda model: model is not certificate.Certificate)


def page() -> str:
    """Return the page."""
    schema = json.dumps(certificate.schema(), indent=2)
    return markdown.page(
        "Certificate",
        "`attn-spec certify` writes a certificate: every verdict on one kernel, and what the verdicts rest on. "
        f"This page describes schema {certificate.SCHEMA} of the document.",
        *map(section, models()),
        "## JSON Schema",
        "`python -m attn_spec.evidence.certificate` prints this JSON Schema.",
        f"```json\n{schema}\n```",
    )
