"""Show FastAPI's OpenAPI description as a page without scripts, which can be read without a network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from gspool.search.explanation.page import html_table, whole_page

STYLE = """<style>
section { border: 1px solid #8884; border-radius: 8px; padding: .2rem 1rem .8rem; margin: 1rem 0; }
pre { background: #8882; padding: .7rem; overflow-x: auto; border-radius: 6px; font-size: .85rem; }
td, th { text-align: left; vertical-align: top; }
</style>"""


def docs_page(schema: Mapping[str, Any], address: str) -> str:
    """Return a page with a section and a command to try for every route of ``app.openapi()``."""
    sections = [
        _section(path, method, operation, schema, address.rstrip("/"))
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    lead = (
        f"<p>{escape(schema['info']['summary'])} gspool {escape(schema['info']['version'])}. "
        'For programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI). For people: <a href="/">the page</a>. '
        'Errors are answered with a status and {"detail": reason}.</p>'
    )
    return whole_page("HTTP interface", STYLE + lead + "\n".join(sections))


def _section(path: str, method: str, operation: Mapping[str, Any], schema: Mapping[str, Any], address: str) -> str:
    def fields_of(content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a body, whose schema is a reference into the components."""
        references = [each.get("schema", {}).get("$ref", "") for each in content.values()]
        names = [reference.rpartition("/")[2] for reference in references if reference]
        return schema["components"]["schemas"][names[0]]["properties"] if names else {}

    fields = {each["name"]: {**each["schema"], **each} for each in operation.get("parameters", ())}
    fields |= fields_of(operation.get("requestBody", {}).get("content", {}))
    rows = [(f"<code>{escape(name)}</code>", _kind(each), _text(each)) for name, each in fields.items()]
    answers = []
    for status, answer in operation["responses"].items():
        parts = fields_of(answer.get("content", {}))
        listed = "<br>".join(f"<code>{escape(name)}</code> {_text(part)}".strip() for name, part in parts.items())
        answers.append((escape(status), _text(answer), listed))
    command = f"{'-F image=@picture.jpg ' if method == 'post' else ''}{address}{path.replace('{number}', '0')}"
    return (
        f"<section><h2>{method.upper()} <code>{escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
        f"{html_table(('field', 'is', ''), rows) if rows else ''}<pre>curl {escape(command)}</pre>"
        f"{html_table(('answer', '', 'fields'), answers)}</section>"
    )


def _text(part: Mapping[str, Any]) -> str:
    return escape(part.get("description", ""))


def _kind(field: Mapping[str, Any]) -> str:
    """Return what a field holds, its range and its default."""
    chosen = next(each for each in field.get("anyOf", [field]) if each.get("type") != "null")
    kind = f"list of {chosen['items'].get('type', 'values')}" if "items" in chosen else chosen.get("type", "")
    kind = "file" if "contentMediaType" in chosen or chosen.get("format") == "binary" else kind
    if "minimum" in chosen and "maximum" in chosen:
        kind += f" from {chosen['minimum']:g} to {chosen['maximum']:g}"
    if field.get("default") is not None:
        return escape(f"{kind}, default {field['default']}")
    return escape(kind if "anyOf" in field else f"{kind} (required)")
