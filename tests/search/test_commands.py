"""The commands as a person types them: files, answers, words about what went wrong."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from gspool.search import index
from gspool.search.commands import COMMANDS, run
from gspool.search.index import approximate
from gspool.search.index.table import write_lock
from search.corpus_files import draw_picture, interrupt_batches


@pytest.fixture
def said(model_folder, pictures, tmp_path, capsys):
    """Embed the pictures into a table, and return what was printed, in one line."""

    def embed(*more: str) -> str:
        assert run("embed", [str(model_folder), str(pictures), "--out", str(tmp_path / "v.lance"), *more]) == 0
        return " ".join(capsys.readouterr().out.split())

    return embed


@pytest.fixture
def corpus(said, tmp_path):
    said("--progress", "false")
    return tmp_path / "v.lance"


def test_embed_says_what_it_did_what_changed_and_what_is_gone(said, pictures, tmp_path):
    (pictures / "ant" / "bad.png").write_text("hello")
    first = said("--batch_size", "4")
    for words in ("16/16", "images/s", "15 embedded", f"1 could not be read, see {tmp_path / 'v.lance.bad.csv'}"):
        assert words in first
    assert "again" not in first
    assert "gone" not in first
    draw_picture(pictures / "ant" / "0.png", 5, size=(50, 50))
    draw_picture(pictures / "ant" / "bad.png", 6)
    (pictures / "ant" / "4.png").unlink()
    second = said("--progress", "false")
    assert second.startswith("2 embedded in ")
    assert "1 of them again because they changed; 13 were there already; 1 is gone (--remove_gone" in second
    third = said("--progress", "false", "--remove_gone")
    assert "15 were there already; 1 was gone and removed" in third
    assert f"{tmp_path / 'v.lance'}: 15 vectors" in third


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(said, model_folder, pictures, tmp_path, capsys, monkeypatch):
    interrupt_batches(monkeypatch, 3)
    words = [str(model_folder), str(pictures), "--out", str(tmp_path / "v.lance"), "--batch_size", "4"]
    assert run("embed", [*words, "--progress", "false"]) == 130
    assert "run the same command to continue" in capsys.readouterr().err
    assert "7 embedded in" in (second := said("--batch_size", "4", "--progress", "false"))
    assert "8 were there already" in second


def test_search_lists_neighbours_best_first(model_folder, pictures, corpus, capsys):
    query = str(pictures / "bee" / "2.png")
    assert run("search", [str(model_folder), query, "--index", str(corpus), "--k", "3"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"{query} [bee]"
    assert lines[1].split() == ["1", "1.0000", "bee", query]
    scores = [float(line.split()[1]) for line in lines[1:]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert "15 vectors of length 16, exact" in said.err


def test_json_for_one_and_json_lines_for_many(model_folder, pictures, corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    common = [str(model_folder), str(pictures), "--index", str(corpus), "--k", "2", "--others"]
    assert run("search", [*common, "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["vectors"], content["search"], len(content["answers"])) == (15, "exact", 15)
    assert run("search", [*common, "--json", "~/deep/a.JSONL"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "deep" / "a.JSONL").read_text().splitlines()]
    assert lines == content["answers"]
    assert len(lines[0]["hits"]) == 2
    assert lines[0]["hits"][0]["path"] != lines[0]["query"]
    right = sum(line["hits"][0]["label"] == line["label"] for line in lines)
    assert f"15 queries; the nearest has the query's label for {right} of 15" in capsys.readouterr().err


def test_labels_conditions_and_a_picture(model_folder, pictures, corpus, tmp_path, capsys):
    words = [str(model_folder), str(pictures / "ant" / "1.png"), "--index", str(corpus), "--json", "-"]
    out = tmp_path / "found.png"
    assert run("search", [*words, "--label", "bee", "cat", "--where", "width = 48", "--picture", str(out)]) == 0
    hits = json.loads(capsys.readouterr().out)["answers"][0]["hits"]
    assert {hit["label"] for hit in hits} == {"bee", "cat"}
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_condition_leaves_the_answers_of_before(model_folder, pictures, corpus, tmp_path):
    (tmp_path / "a.jsonl").write_text("before")
    words = [str(model_folder), str(pictures), "--index", str(corpus), "--json", str(tmp_path / "a.jsonl")]
    assert run("search", [*words, "--where", "colour = 1"]) == 1
    assert (tmp_path / "a.jsonl").read_text() == "before"


def test_names_that_would_control_a_terminal_are_shown_with_escapes(model_folder, pictures, said, tmp_path, capsys):
    for name in ("1", "2"):
        draw_picture(pictures / "\x1b[2Jcow" / f"{name}\r.png", 7)
    said("--progress", "false")
    query, index = str(pictures / "\x1b[2Jcow" / "1\r.png"), ["--index", str(tmp_path / "v.lance")]
    (pictures / "\x1b[2Jcow" / "3\r.png").write_text("hello")
    for command, words in (
        ("search", [str(model_folder), str(pictures / "\x1b[2Jcow"), *index]),
        ("search", ["--duplicates", *index]),
        ("explain", [str(model_folder), query, "--out", str(tmp_path / "\x1b[2J.html")]),
    ):
        assert run(command, words) == 0
        out = capsys.readouterr().out
        assert "\\x1b[2J" in out
        assert "\x1b" not in out
        assert "1\\r.png" in out
        assert "\r" not in out


def test_a_large_table_gets_an_index_whose_recall_is_printed(model_folder, pictures, corpus, said, capsys, monkeypatch):
    monkeypatch.setattr(index, "APPROXIMATE_FROM", 10)
    monkeypatch.setattr(approximate, "FEWEST_ROWS", 10)
    query = str(pictures / "bee" / "2.png")
    words = [str(model_folder), query, "--index", str(corpus), "--k", "3"]
    assert run("search", [*words, "--check", "--recall", "0.99"]) == 0
    first = capsys.readouterr()
    assert "building IVF_SQ over 15 vectors" in first.err
    # One byte a number: of fifteen vectors, two at the tenth place may change places.
    assert re.search(r"recall@10 (1\.000|0\.9\d\d) on \d vectors of this corpus", first.err)
    found = [line.split()[-1] for line in first.out.splitlines()[1:]]
    assert found[0] == query
    assert run("search", [*words, "--exact"]) == 0
    exact = capsys.readouterr()
    assert "exact (--exact)" in exact.err
    right = {line.split()[-1] for line in exact.out.splitlines()[1:]}
    assert f"recall@3 {len(right & {*found}) / 3:.4f} on 1 query of yours" in first.err
    # The next embed finds the index in place, and says so.
    again = said("--progress", "false")
    assert "building" not in again
    assert "IVF_SQ, recall@10" in again


def test_a_search_goes_on_without_an_index_that_cannot_be_built(model_folder, pictures, corpus, capsys, monkeypatch):
    monkeypatch.setattr(index, "APPROXIMATE_FROM", 10)
    monkeypatch.setattr(approximate, "FEWEST_ROWS", 10)
    query = str(pictures / "bee" / "2.png")
    with write_lock(corpus):
        assert run("search", [str(model_folder), query, "--index", str(corpus), "--k", "3"]) == 0
    said = capsys.readouterr()
    assert "another process is writing" in said.err
    assert "15 vectors of length 16, exact" in said.err
    assert len(said.out.splitlines()) == 4


def test_a_threshold_marks_matches(model_folder, pictures, corpus, tmp_path, capsys):
    run_folder = tmp_path / "run"
    shutil.copytree(model_folder, run_folder / "model")
    words = [str(pictures / "bee" / "2.png"), "--index", str(corpus), "--json", "-"]

    def matches(model, *more: str) -> list[bool | None]:
        assert run("search", [str(model), *words, *more]) == 0
        hits = json.loads(capsys.readouterr().out)["answers"][0]["hits"]
        return [hit.get("match") for hit in hits]

    assert matches(run_folder) == [None] * 10
    (run_folder / "threshold.json").write_text('{"similarity": 0.999999, "precision": 1, "recall": 0.5}')
    for model in (run_folder, run_folder / "model"):
        assert matches(model) == [True] + [False] * 9
    assert matches(run_folder, "--threshold", "-1") == [True] * 10
    # Calibrated on plain cosines, it says nothing about others.
    assert matches(run_folder, "--whiten", "4") == [None] * 10
    assert run("search", [str(run_folder), *words[:-2]]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:3]] == ["match", "no"]
    (run_folder / "threshold.json").write_text("{}")
    assert run("search", [str(run_folder), *words]) == 1
    assert "threshold.json holds no threshold" in capsys.readouterr().err


def test_duplicates_are_listed_in_groups(pictures, corpus, said, tmp_path, capsys):
    copy = pictures / "cat" / "copy.png"
    shutil.copy(pictures / "ant" / "3.png", copy)
    said("--progress", "false")
    words = ["--duplicates", "--index", str(corpus), "--similarity", "0.999999"]
    assert run("search", [*words, "--json", "-"]) == 0
    listed = capsys.readouterr()
    (group,) = json.loads(listed.out)["groups"]
    assert [(hit["path"], hit["label"]) for hit in group] == [
        (str(pictures / "ant" / "3.png"), "ant"),
        (str(copy), "cat"),
    ]
    assert "1 groups of near-identical pictures among 16" in listed.err
    assert run("search", words) == 0
    assert str(copy) in capsys.readouterr().out
    assert run("search", [*words, "--json", str(tmp_path / "groups.jsonl")]) == 0
    assert [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()] == [group]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["MODEL", "nowhere.png", "--index", "INDEX"], "there is no nowhere.png"),
        (["MODEL", "QUERY", "--index", "none.lance"], "gspool embed"),
        (["MODEL", "QUERY", "--index", "INDEX", "--where", "colour = 1"], "is not valid"),
        (["nomodel", "QUERY", "--index", "INDEX"], "there is no folder nomodel"),
        (["MODEL", "BROKEN", "--index", "INDEX"], "no query could be read"),
    ],
)
def test_wrong_searches_end_in_a_line(words, hint, model_folder, pictures, corpus, tmp_path, capsys):
    (tmp_path / "broken.png").write_text("hello")
    names = {
        "MODEL": model_folder,
        "INDEX": corpus,
        "QUERY": pictures / "ant" / "0.png",
        "BROKEN": tmp_path / "broken.png",
    }
    assert run("search", [str(names.get(word, word)) for word in words]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("gspool search: ")
    assert hint in error


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("search M a.png --index i.lance --k 0", "--k is a whole number above 0, got 0"),
        ("search M a.png --index i.lance --picture a.gif", "--picture is a file that ends in .png or .pdf or .svg"),
        ("search M a.png --index i.lance --json a.txt", "--json is a file that ends in .json or .jsonl"),
        ("search M a.png --index i.lance --recall 1.5", "--recall is a number above 0 and at most 1, got 1.5"),
        ("search M a.png --index i.lance --expand -1", "--expand is a whole number of at least 0, got -1"),
        (
            "search M a.png --index i.lance --threshold 2",
            "--threshold is a number of at least -1 and at most 1, or null",
        ),
        ("search --duplicates --index i.lance --similarity 0", "--similarity is a number above 0 and at most 1, got 0"),
        ("search M a.png --duplicates --index i.lance", "takes no queries"),
        ("search M a.png --index i.lance --similarity 0.9", "--similarity is about --duplicates; leave it out"),
        *(
            (f"search --duplicates --index i.lance {words}", f"{words.split()[0]} is about queries")
            for words in (
                *("--k 3", "--label ant", "--where row=1", "--others", "--exact", "--check", "--recall 0.9"),
                *("--expand 5", "--alpha 1", "--whiten 8", "--threshold 0.5", "--picture a.png", "--device cpu"),
            )
        ),
        ("search M --index i.lance", "give a model and pictures"),
        ("embed M a.png --out v.txt", "--out is a file that ends in .lance or .parquet or .npz, got 'v.txt'"),
        ("embed M a.png --out a+b.lance", "a+b.lance cannot be written; give it another name"),
        ("embed M a.png --out v.npz --actors 2", "--actors is about a Ray cluster, --ray; leave it out"),
        ("embed M a.png --out v.npz --recall 0", "--recall is a number above 0 and at most 1, got 0"),
        ("embed M a.png --out v.npz --batch_size 0", "--batch_size is a whole number above 0, got 0"),
        ("embed M a.png --out v.npz --workers -1", "--workers is a whole number above 0, or null, got -1"),
        ("embed M a.png --out v.npz --max_bytes 0", "--max_bytes is a whole number above 0, got 0"),
        ("explain M", "give images to explain, or --prototypes"),
        ("explain M a.png --prototypes pictures", "not both"),
        ("explain M a.png --out a.gif", "ends in .png or .html, got 'a.gif'"),
        ("explain M --prototypes pictures --out a.png", "ends in .html, got 'a.png'"),
        ("explain M a.png --split train", "--split is about --prototypes; leave it out"),
        ("explain M --prototypes pictures --grid", "--grid is about images, not --prototypes; leave it out"),
        ("explain M a.png --top 0", "--top is a whole number above 0, got 0"),
        ("serve M", "--index is needed"),
        ("serve M --index i.lance --port 70000", "--port is a whole number of at least 0 and at most 65535, got 70000"),
        ("serve M --index i.lance --max-mb 0", "--max-mb is a number above 0, got 0"),
        ("serve M --index i.lance --max-pixels 0", "--max-pixels is a whole number above 0, got 0"),
        ("serve M --index i.lance --alpha -1", "--alpha is a number of at least 0, got -1"),
        ("serve M --index i.lance --rate -1", "--rate is a whole number of at least 0, or null, got -1"),
        ("serve M --index i.lance --timeout 0", "--timeout is a number above 0, got 0"),
        ("serve M --index i.lance --max-uploads-mb 0", "--max-uploads-mb is a number above 0, got 0"),
        ("serve M --index i.lance --token=", "--token is empty"),
        *((f"{name} M --devise cpu --index x --out y.npz", "did you mean --device?") for name in COMMANDS),
    ],
)
def test_what_cannot_be_meant_ends_in_status_2(words, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command, *arguments = words.split()
    # Told before a model is looked for: there is none. The parser leaves at once.
    try:
        status = run(command, arguments)
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert hint in capsys.readouterr().err


def test_a_corpus_of_nothing_but_broken_pictures_fails(model_folder, tmp_path, capsys):
    (tmp_path / "broken.png").write_text("hello")
    words = [str(model_folder), str(tmp_path), "--out", str(tmp_path / "v.npz"), "--progress", "false"]
    assert run("embed", words) == 1
    assert "none of the 1 pictures" in capsys.readouterr().err
