"""What tests of several folders share."""

from __future__ import annotations

import signal

import pytest
import torch
from hypothesis import settings

from gspool.data.registry import ROOT_VARIABLE

# Examples may take as long as a busy machine needs.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session", autouse=True)
def data_folder_of_the_tests(tmp_path_factory):
    """Keep what tests decode and download away from the folder of whoever runs them, in subprocesses too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOT_VARIABLE, str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """Let tests press Ctrl-C however they were started: what a script begins with & ignores it, with its children."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute on one thread, in fixtures of all scopes too: runs are compared bit for bit, and threads change sums."""
    torch.set_num_threads(1)
