"""Show FastAPI's OpenAPI description as a page without scripts, which can be read without a network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from gspool.search.explanation.page import html_table, whole_page

STYLE = """<style>
section { border: 1px solid #8884; border-radius: 8px; padding: .2rem 1rem .8rem; margin: 1rem 0; }
pre { background: #8882; padding: .7rem; overflow-x: auto; border-radius: 6px; font-size: .85rem; }
.method { font-weight: bold; padding: .1rem .5rem; border-radius: 4px; color: #fff; background: #2b6cb0; }
.post { background: #2f855a; } td, th { text-align: left; vertical-align: top; }
</style>"""


def docs_page(schema: Mapping[str, Any], address: str) -> str:
    """Return a page with a section and a command to try for every route of ``app.openapi()``."""
    sections = [
        _section(path, method, operation, schema, address.rstrip("/"))
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    lead = (
        f"<p>{escape(schema['info'].get('summary', ''))} gspool {escape(schema['info']['version'])}. "
        'For programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI). For people: <a href="/">the page</a>. '
        'Errors are answered with a status and {"detail": reason}.</p>'
    )
    return whole_page("HTTP interface", STYLE + lead + "\n".join(sections))


def _section(path: str, method: str, operation: Mapping[str, Any], schema: Mapping[str, Any], address: str) -> str:
    fields = {each["name"]: {**each["schema"], **each} for each in operation.get("parameters", ())}
    needed = [name for name, each in fields.items() if each.get("required")]
    for body in operation.get("requestBody", {}).get("content", {}).values():
        form = _resolved(body["schema"], schema)
        fields.update(form["properties"])
        needed += form.get("required", [])
    rows = [
        (f"<code>{escape(name)}</code>", _kind(each) + (" (required)" if name in needed else ""), _text(each))
        for name, each in fields.items()
    ]
    answers = []
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {}).get("schema")
        parts = _resolved(content, schema).get("properties", {}) if content else {}
        listed = "<br>".join(f"<code>{escape(name)}</code> {_text(part)}".strip() for name, part in parts.items())
        answers.append((escape(status), _text(answer), listed))
    command = f"{'-F image=@picture.jpg ' if method == 'post' else ''}{address}{path.replace('{number}', '0')}"
    return (
        f'<section><h2><span class="method {method}">{method.upper()}</span> <code>{escape(path)}</code></h2>'
        f"<p>{escape(operation.get('summary', ''))}</p>{html_table(('field', 'is', ''), rows) if rows else ''}"
        f"<pre>curl {escape(command)}</pre>{html_table(('answer', '', 'fields'), answers)}</section>"
    )


def _text(part: Mapping[str, Any]) -> str:
    return escape(part.get("description", ""))


def _kind(field: Mapping[str, Any]) -> str:
    """Return what a field holds, its range and its default."""
    chosen = next(each for each in field.get("anyOf", [field]) if each.get("type") != "null")
    kind = chosen.get("type", "")
    if kind == "array":
        kind = f"list of {chosen.get('items', {}).get('type', 'values')}"
    elif "contentMediaType" in chosen or chosen.get("format") == "binary":
        kind = "file"
    if "minimum" in chosen and "maximum" in chosen:
        kind += f" from {chosen['minimum']:g} to {chosen['maximum']:g}"
    if field.get("default") is not None:
        kind += f", default {field['default']}"
    return escape(kind)


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference into the components of the description."""
    name = part.get("$ref", "").removeprefix("#/components/schemas/")
    return schema["components"]["schemas"][name] if name else part
