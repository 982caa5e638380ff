"""A hook of mkdocs: show every notebook as a page of the documentation, with the outputs that it was committed with.

As Markdown its links are checked and its colours are those of the other pages.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace notebooks by the pages and pictures that they convert to."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = PurePosixPath(notebook.src_uri)
        page, resources = MarkdownExporter().from_filename(notebook.abs_src_path, {"unique_key": path.stem})
        files.remove(notebook)
        files.append(File.generated(config, str(path.with_suffix(".md")), content=page))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, str(path.with_name(name)), content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Send links to notebooks, which work in a checkout, to their pages."""
    return markdown.replace(".ipynb)", ".md)")
