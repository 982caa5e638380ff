"""A result says where it comes from, or is refused."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import gspool
from gspool.provenance import (
    joined_origin,
    origin_here,
    read_measured,
    read_result,
    source_commit,
    write_result,
)


def write(path: Path, value: object) -> dict:
    return write_result(path, value, command="python measure.py", seeds=[3, 4], libraries=["numpy"])


def test_a_result_names_everything_that_is_needed_to_get_it_again(tmp_path: Path) -> None:
    before = datetime.now(UTC).date().isoformat()
    path = tmp_path / "results" / "speed.json"
    written = write(path, {"seconds": 0.5})
    record = json.loads(path.read_text())
    assert record == written == read_result(path)
    assert record["value"] == {"seconds": 0.5}
    assert record["command"] == "python measure.py"
    assert record["seeds"] == [3, 4]
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["gspool"] == gspool.__version__
    assert {"python", "numpy"} < set(record["versions"])
    assert before <= record["date"] <= datetime.now(UTC).date().isoformat()
    assert f"{torch.get_num_threads()} thread" in record["device"]


def test_no_path_of_this_machine_gets_into_a_result(tmp_path: Path) -> None:
    write(tmp_path / "a.json", 1)
    text = (tmp_path / "a.json").read_text()
    for private in (str(tmp_path), str(Path.home()), str(Path(gspool.__file__).parents[2])):
        assert private not in text


@pytest.mark.parametrize("value", [math.nan, math.inf, torch.ones(2), {"a": {1, 2}}])
def test_a_value_that_json_cannot_hold_is_refused_and_leaves_the_old_result(tmp_path: Path, value: object) -> None:
    path = tmp_path / "a.json"
    write(path, "old")
    with pytest.raises(ValueError, match=r"a\.json cannot be written as JSON .* finite plain numbers"):
        write(path, value)
    assert read_result(path)["value"] == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there is no result a\.json"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"value": 3}', "command, date, device, versions missing"),
        (b"[1, 2]", "does not say where it comes from"),
    ],
)
def test_a_result_without_provenance_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_result(tmp_path / "a.json")


def test_a_tiny_version_is_not_read_as_measured(tmp_path: Path) -> None:
    write_result(tmp_path / "a.json", 1, command="gspool reproduce toy --quick", seeds=[])
    with pytest.raises(ValueError, match=r"a\.json is of a tiny version \(--quick\), which measures nothing"):
        read_measured(tmp_path / "a.json")
    write_result(tmp_path / "a.json", 1, command="gspool reproduce toy", seeds=[])
    assert read_measured(tmp_path / "a.json")["value"] == 1


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_the_checkout_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "gspool" / "experiments"
    package.mkdir(parents=True)
    (package / "code.py").write_text("a = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert source_commit(package) == (head, False)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "new.json").write_text("{}")
    assert source_commit(package) == (head, False), "a new result is no change of the code"
    (package / "code.py").write_text("a = 2\n")
    assert source_commit(package) == (head, True)
    (tmp_path / ".git" / "index").write_bytes(b"damaged")
    assert source_commit(package) == (head, None), "what git cannot say is not known"
    monkeypatch.setenv("GSPOOL_COMMIT", "abc")
    assert source_commit(package) == ("abc", False), "the source was copied over an older checkout"


@pytest.mark.parametrize(
    ("changes", "joined"),
    [((False, False), False), ((False, True, None), True), ((False, None), None), ((None, None), None)],
)
def test_joined_runs_have_changes_if_one_has_and_none_only_if_all_are_known(changes: tuple, joined: object) -> None:
    here = origin_here()
    origins = [{**here, "uncommitted_changes": each} for each in changes]
    assert joined_origin(origins)["uncommitted_changes"] is joined


def test_a_package_installed_inside_another_checkout_has_no_commit(tmp_path: Path) -> None:
    package = tmp_path / ".venv" / "lib" / "gspool"
    package.mkdir(parents=True)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "someone else's")
    assert source_commit(package) == (None, None)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert source_commit(tmp_path) == (None, None)
