"""Work beside the caller's: its result, its error, and that nobody waits without asking."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from speccc.beside import Beside


def test_it_runs_while_the_caller_goes_on() -> None:
    begun, go = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go.wait(60)
        return "done"

    beside = Beside(work)
    assert begun.wait(60)
    go.set()
    assert (beside.result(), beside.result()) == ("done", "done")


def test_what_it_raises_is_raised_where_its_result_is_asked_for() -> None:
    beside: Beside[float] = Beside(lambda: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            beside.result()


def test_the_process_does_not_wait_for_it() -> None:
    code = "import time; from speccc.beside import Beside; Beside(lambda: time.sleep(600))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
