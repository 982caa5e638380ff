"""The description of the HTTP interface as a page: no script, nothing from elsewhere, readable without a network."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from gspool.search.explain_page import whole_page

PAGE_STYLE = """<style>
section { border: 1px solid #8884; border-radius: 8px; padding: .2rem 1rem .8rem; margin: 1rem 0; }
pre { background: #8882; padding: .7rem; overflow-x: auto; border-radius: 6px; font-size: .85rem; }
.method { font-weight: bold; padding: .1rem .5rem; border-radius: 4px; color: #fff; background: #2b6cb0; }
.post { background: #2f855a; } td, th { text-align: left; vertical-align: top; }
</style>"""


def api_page(schema: Mapping[str, Any], address: str) -> str:
    """Write an OpenAPI description as a page for people, with a command to try for every route.

    Args:
        schema: what ``app.openapi()`` gives; programs read the same at /openapi.json.
        address: where the server is, for the commands.
    """
    sections = [
        _operation(path, method, operation, schema, address.rstrip("/"))
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    lead = (
        f"<p>{html.escape(schema['info'].get('summary', ''))} gspool {html.escape(schema['info']['version'])}. "
        'For programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI). For people: <a href="/">the page</a>. '
        'What goes wrong is answered with a status and {"detail": why}.</p>'
    )
    return whole_page("HTTP interface", PAGE_STYLE + lead + "\n".join(sections))


def _operation(path: str, method: str, operation: Mapping[str, Any], schema: Mapping[str, Any], address: str) -> str:
    fields = [(each["name"], f"in the {each['in']}", each["schema"], each) for each in operation.get("parameters", ())]
    needed: list[str] = []
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        form = _resolved(body["schema"], schema)
        needed = form.get("required", [])
        fields += [(name, kind, each, each) for name, each in form["properties"].items()]
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{_kind(each)}{' (needed)' if name in needed else ''}</td>"
        f"<td>{html.escape(described.get('description', ''))}</td></tr>"
        for name, _, each, described in fields
    )
    table = f"<table><tr><th>field</th><th>is</th><th></th></tr>{rows}</table>" if rows else ""
    return (
        f'<section><h2><span class="method {method}">{method.upper()}</span> <code>{html.escape(path)}</code></h2>'
        f"<p>{html.escape(operation.get('summary', ''))}</p>{table}"
        f"<pre>{html.escape(_command(address + path, method, operation))}</pre>{_answers(operation, schema)}</section>"
    )


def _answers(operation: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    parts = []
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {}).get("schema")
        fields = _resolved(content, schema).get("properties", {}) if content else {}
        listed = "<br>".join(
            f"<code>{html.escape(name)}</code> {html.escape(field.get('description', ''))}".strip()
            for name, field in fields.items()
        )
        words = html.escape(answer.get("description", ""))
        parts.append(f"<tr><td>{html.escape(status)}</td><td>{words}</td><td>{listed}</td></tr>")
    return f"<table><tr><th>answer</th><th></th><th>fields</th></tr>{''.join(parts)}</table>"


def _command(place: str, method: str, operation: Mapping[str, Any]) -> str:
    address = place.replace("{number}", "0")
    if method == "post":
        return f"curl -F image=@picture.jpg {address}"
    image = "image/png" in operation["responses"].get("200", {}).get("content", {})
    return f"curl {address}" + (" -o picture.png" if image else "")


def _kind(field: Mapping[str, Any]) -> str:
    """Say in words what a field holds, its range and its default."""
    options = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    chosen = options[0]
    words = chosen.get("type", "")
    if words == "array":
        words = f"list of {chosen.get('items', {}).get('type', 'values')}"
    elif "contentMediaType" in chosen or chosen.get("format") == "binary":
        words = "file"
    if "minimum" in chosen and "maximum" in chosen:
        words += f" from {chosen['minimum']:g} to {chosen['maximum']:g}"
    if field.get("default") is not None:
        words += f", {field['default']} unless given"
    return html.escape(words)


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference into the components of the description."""
    found = part
    while "$ref" in found:
        place: Any = schema
        for step in found["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        found = place
    return found
