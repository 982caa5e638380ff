"""Run by test_measure.py in a process of its own, with Triton's interpreter."""

from gspool.bench import Settings, measure, timing

SHAPE = {"batch": 2, "channels": 16, "sizes": ((2, 2),), "device": "cpu", "repeats": 1}


def test_both_backends_are_compared_once_both_can_run(monkeypatch):
    monkeypatch.setattr(timing, "WARM_UP", 0)  # a step of the interpreter takes seconds
    measured = measure(Settings(layers=("gsp:prototypes=4",), backend="all", **SHAPE))
    assert [(row.title, row.backend) for row in measured.rows] == [
        ("gap", None),
        ("gsp:prototypes=4 (torch)", "torch"),
        ("gsp:prototypes=4 (triton)", "triton"),
    ]
    assert measured.refused == []
