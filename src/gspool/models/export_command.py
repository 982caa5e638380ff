"""`gspool export`: write a trained model as an ONNX file, a PyTorch archive or a folder to share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gspool.models.embedder import Embedder
from gspool.models.export import OUTPUTS, Exported, export_program, save_program
from gspool.models.onnx_export import EQUAL, Comparison, check_installed, compare_with_onnx, write_onnx
from gspool.models.pretrained import local_folder
from gspool.models.sharing import ONNX, keep_own_card, known_facts, model_place, push_folder, write_hub_folder
from gspool.terminal.output import check_file_writable, check_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError, refuse_below, run_told

PAGE = """
Export a trained model for other programs and other people.

    gspool export runs/NAME --onnx birds.onnx --check             for ONNX Runtime, compared with PyTorch
    gspool export runs/NAME --onnx birds.onnx --outputs embedding  the vectors alone
    gspool export runs/NAME --torch birds.pt2                     for torch.export.load, without gspool
    gspool export runs/NAME --folder share/birds --licence mit    weights, settings, ONNX and a card with the figures
    gspool export runs/NAME --push me/birds --licence mit         the same, uploaded to the Hugging Face hub

Files take batches of RGB bytes [batch, 3, height, width], of any image size unless the backbone takes only one.
They describe their preprocessing and outputs. A program without torch: examples/onnx_consumer.py.
"""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    return run_told(f"gspool {command}", export_command, arguments)


def export_command(arguments: Sequence[str]) -> None:
    """Load the model, write what was asked for, and print what was written.

    Raises:
        WrongArgumentsError: if nothing was asked for, or a file has another ending than its kind.
        ValueError: if the model cannot be loaded or exported, a file cannot be written, or ONNX Runtime differs.
        SystemExit: for wrong arguments and after ``--help``.
    """
    parser = _parser()
    options = parser.parse_args(list(arguments))
    if not any(options[name] for name in ("onnx", "torch", "folder", "push")):
        raise WrongArgumentsError("name what to write: --onnx FILE, --torch FILE, --folder DIR or --push OWNER/NAME")
    shared = options["folder"] or options["push"]
    if not (options["onnx"] or shared):
        parser.refuse(options, "compares an ONNX file, which --onnx, --folder and --push write", "check")
    if not shared:
        parser.refuse(options, "is for the card, which --folder and --push write", "licence", "data")
    if not options["push"]:
        parser.refuse(options, "is about a repository, which --push makes", "private")
    refuse_below(1, size=None if options["size"] is None else min(options["size"]))
    unknown = [name for name in options["outputs"] or () if name not in OUTPUTS]
    if unknown:
        raise WrongArgumentsError(f"--outputs are {', '.join(OUTPUTS)}, got {', '.join(unknown)}")
    # Wrong names are refused before the minutes of tracing.
    for name, suffix in (("onnx", ".onnx"), ("torch", ".pt2")):
        if options[name]:
            if Path(options[name]).suffix != suffix:
                raise WrongArgumentsError(f"--{name} writes a {suffix} file, got {options[name]}; name it NAME{suffix}")
            options[name] = check_file_writable(options[name], f"--{name}")
    if options["folder"]:
        options["folder"] = Path(options["folder"]).expanduser()
        check_writable(options["folder"], "--folder")
    # A model of the hub as the folder it is downloaded to, which has its card.
    place = local_folder(model_place(options["model"]), {})
    model = Embedder.from_pretrained(place)
    if options["onnx"] or shared:
        check_installed()
    exported = export_program(
        model,
        options["outputs"],
        size=None if options["size"] is None else tuple(options["size"]),
        input=options["input"],
    )
    if options["torch"]:
        save_program(exported, options["torch"])
        _report("torch", options["torch"], exported)
    with TemporaryDirectory() as temporary:
        folder = options["folder"] or Path(temporary)
        files = [*([options["onnx"]] if options["onnx"] else ()), *([folder / ONNX] if shared else ())]
        if files:
            written = write_onnx(exported, *files)
            for file in files:
                _report("onnx", file, exported, f", opset {written.opset}")
            if options["check"]:
                show_comparisons(compare_with_onnx(model, written.path))
        if shared:
            _share(model, folder, options, place)


def _parser() -> TeachingParser:
    parser = TeachingParser(
        "gspool export", PAGE, "gspool export MODEL [--onnx FILE] [--torch FILE] [--folder DIR] [--push OWNER/NAME]"
    )
    parser.add_argument("model", metavar="MODEL", help="Folder of a run or of a saved model, or a name of the hub.")
    parser.add_argument("--onnx", metavar="FILE", help="Write an ONNX model, NAME.onnx.")
    parser.add_argument("--torch", metavar="FILE", help="Write a torch.export archive, NAME.pt2.")
    parser.add_argument("--folder", metavar="DIR", help="Write a folder to share: weights, settings, ONNX, card.")
    parser.add_argument("--push", metavar="OWNER/NAME", help="Upload that folder to the Hugging Face hub.")
    parser.add_argument("--private", action="store_true", help="Make the repository of --push private.")
    parser.add_argument(
        "--outputs",
        nargs="+",
        metavar="NAME",
        help="Outputs: embedding, weights, attributes; by default all that the pooling layer has.",
    )
    parser.add_argument("--input", choices=["uint8", "float32"], help="Bytes (0 to 255) or fractions (0 to 1).")
    parser.add_argument("--size", nargs=2, type=int, metavar=("H", "W"), help="Bind files to one image size.")
    parser.add_argument("--check", action="store_true", help="Run ONNX Runtime and show the largest differences.")
    parser.add_argument("--licence", metavar="ID", help="Licence for the card, such as mit or cc-by-nc-4.0.")
    parser.add_argument("--data", metavar="TEXT", help="For the card: what the model was trained for.")
    return parser


def _share(model: Embedder, folder: Path, options: Any, place: Path) -> None:
    facts = known_facts(place)
    facts = facts._replace(data=options["data"] or facts.data, licence=options["licence"] or facts.licence)
    keep_own_card(place, folder)
    write_hub_folder(model, folder, facts, address=options["push"])
    if options["folder"]:
        print(f"folder  {folder}  {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if options["push"]:
        print(f"hub     {push_folder(folder, options['push'], options['private'])}")
    if facts.licence is None:
        print("note    no licence is stated: add --licence ID before you share it")


def _report(kind: str, path: Path, exported: Exported, more: str = "") -> None:
    size = "any image size" if exported.size is None else f"images of {exported.size[0]} x {exported.size[1]}"
    outputs = ", ".join(exported.description["outputs"])
    megabytes = path.stat().st_size / 1e6
    print(f"{kind:7s} {path}  {megabytes:.1f} MB{more}, any batch, {size}; outputs {outputs}")


def show_comparisons(compared: Sequence[Comparison]) -> None:
    """Print the differences."""
    print("\nlargest difference between ONNX Runtime and PyTorch")
    for each in compared:
        values = "  ".join(f"{name} {value:.1e}" for name, value in each.differences.items())
        print(f"  {' x '.join(map(str, each.shape)):18s} {values}")
    # Written so that a NaN is refused as well.
    if not all(each.largest <= EQUAL for each in compared):
        raise ValueError(
            f"ONNX Runtime differs from PyTorch by more than {EQUAL:g}; do not use the file; use --torch instead"
        )
    print(f"  equal to {EQUAL:g}")
