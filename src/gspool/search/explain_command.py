"""`gspool explain`: show why an image has its embedding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from gspool.files import write_atomic
from gspool.terminal.output import check_output, shown
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError

if TYPE_CHECKING:
    from gspool.data import ImageSource
    from gspool.data.image_set import Split
    from gspool.models import Embedder

PAGE = """
Show why a model gives an image its embedding: where the pooling looks, and which prototype owns which region.

    gspool explain runs/NAME bird.jpg                              explanation.png
    gspool explain runs/NAME bird.jpg other.jpg --out why.html     two images: also the prototypes they share
    gspool explain runs/NAME bird.jpg --grid                       the cells of the tokens instead of smooth maps
    gspool explain runs/NAME pictures/*.jpg --json figures.json    the numbers, for a program
    gspool explain runs/NAME --prototypes pictures/                prototypes.html: what each prototype stands for
    gspool explain runs/NAME --prototypes glyphs                   the same on the test classes of a data set

MODEL is the folder of a run, a folder of save_pretrained, or owner/name of the Hugging Face hub.
"""
USAGE = """gspool explain MODEL IMAGE... [--out FILE.png|FILE.html] [--json FILE]
       gspool explain MODEL --prototypes DATA [--out FILE.html] [--json FILE]"""
MOST_IMAGES = 32


def explain_command(arguments: Sequence[str]) -> None:
    """Explain images, or the prototypes of a model."""
    parser = TeachingParser("gspool explain", PAGE, USAGE)
    add = parser.add_argument
    add("model", metavar="MODEL", help="The folder of a run or a saved model, or a name on the hub.")
    # The default makes them optional: --prototypes takes none.
    add("images", metavar="IMAGE", nargs="*", default=[], help="Images, folders or globs; none with --prototypes.")
    add("--prototypes", metavar="DATA", type=str, default=None, help="A folder, CSV or data set.")
    add("--split", choices=["train", "validation", "test"], default="test", help="Of a data set.")
    add("--out", metavar="FILE", type=str, default=None, help="A .png or .html file to write.")
    add("--json", metavar="FILE", type=str, default=None, help="Write the numbers; - for the terminal.")
    add("--top", type=PositiveInt, default=8, help="How many prototypes, or regions of each, are shown.")
    add("--grid", action="store_true", help="Draw the cells of the tokens instead of smooth maps.")
    add("--device", type=str, default=None, help="cpu, cuda ...; a GPU if there is one.")
    add("--progress", type=bool, default=True, help="Show a progress bar.")
    given = parser.parse_args(list(arguments))
    if bool(given.images) == (given.prototypes is not None):
        raise WrongArgumentsError("give images to explain, or --prototypes with a folder or data set, not both")
    if given.images:
        parser.refuse(given, "is about --prototypes", "split")
    else:
        parser.refuse(given, "is about images, not --prototypes", "grid")
    default, endings = ("explanation.png", (".png", ".html")) if given.images else ("prototypes.html", (".html",))
    if given.out is None and given.json is None:
        given.out = default
    given.out = check_output(given.out, "--out", endings)
    given.json = check_output(given.json, "--json")
    from gspool.search.model import load_model

    model = load_model(given.model, given.device)
    (_explain_images if given.images else _explain_prototypes)(model, given)


def _explain_images(model: Embedder, given: Any) -> None:
    from gspool.data.decode import printable
    from gspool.search.corpus.sources import list_images
    from gspool.search.explanation import explain, shared_prototypes
    from gspool.search.explanation.figure import explanation_png
    from gspool.search.explanation.page import explanation_page
    from gspool.search.model import read_pixels

    paths = [record.path for record in list_images(given.images)]
    if given.out is not None and len(paths) > MOST_IMAGES:
        raise ValueError(
            f"at most {MOST_IMAGES} images fit into one picture, got {len(paths)}; give fewer, or only --json"
        )
    explanations = [explain(model, read_pixels(path, model)[0]) for path in paths]
    names = [printable(Path(path).name) for path in paths]
    lines = [f"{name}: {_summary(explanation)}" for name, explanation in zip(names, explanations, strict=True)]
    shared = None
    if len(explanations) == 2 and explanations[0].attributes is not None:
        shared = shared_prototypes(explanations[0], explanations[1], given.top)
        lines.append(f"shared: overlap {shared.overlap:.1%} of the prototypes, cosine {shared.similarity:.3f}")
    picture = None
    if given.out is not None and given.out.lower().endswith(".html"):
        picture = explanation_page(names, explanations, shared, given.top, given.grid).encode()
    elif given.out is not None:
        picture = explanation_png(names, explanations, shared, given.top, given.grid)
    images = [{"image": printable(path), **each.figures()} for path, each in zip(paths, explanations, strict=True)]
    _write(given, lines, picture, {"images": images, **({} if shared is None else {"shared": shared.figures()})})


def _explain_prototypes(model: Embedder, given: Any) -> None:
    from gspool.search.explanation.prototypes import gallery_page, nearest_regions, region_figures

    source = image_source(given.prototypes, given.split)
    regions = nearest_regions(model, source, given.top, progress=given.progress and given.json != "-")
    line = f"{len(regions.use)} prototypes, {regions.images:,} images, {len(regions.broken):,} could not be read"
    page = None if given.out is None else gallery_page(model, source, regions, given.prototypes).encode()
    _write(given, [line], page, region_figures(source, regions))


def image_source(place: str, split: Split) -> ImageSource:
    """Return the images of a folder, a CSV or a glob, or of a data set by name."""
    from gspool import data
    from gspool.search.corpus.sources import list_images

    if place in data.list() and not Path(place).exists():
        return data.create(place, split=split).images
    return data.FileImages([Path(record.path) for record in list_images([place])])


def _summary(explanation: Any) -> str:
    line = explanation.caveat or f"entropy of the weights {explanation.entropy:.4f} (1 is average pooling)"
    if explanation.attributes is None:
        return f"{line}; {explanation.missing}"
    first = ", ".join(f"{number} ({value:.1%})" for number, value in explanation.most_used(3))
    return f"{line}; most used prototypes {first}"


def _write(given: Any, lines: list[str], picture: bytes | None, figures: Any) -> None:
    """Write the files and print the lines; numbers for the terminal come alone, so that a program can read them."""
    text = json.dumps(figures, indent=2) + "\n"
    for place, content in ((given.out, picture), (given.json, text.encode())):
        if place not in (None, "-") and content is not None:
            write_atomic(Path(place), content)
            lines.append(f"wrote   {place}")
    print(text if given.json == "-" else "\n".join(map(shown, lines)))
