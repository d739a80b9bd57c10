"""Ctrl-C reaches whom it is meant for, wherever the main thread is when it comes."""

import gc
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time

import pytest

from automap.interrupts import EndsAtOnce, Interrupts, Terminated, interruptible, note_interrupts


ROOT = Path(__file__).resolve().parents[2]


def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def wait():
    """Long enough for what is raised again."""
    for _ in range(200):
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook
    yield
    now = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook
    assert now == before


def test_outside_of_a_search_it_is_raised():
    with pytest.raises(KeyboardInterrupt), interruptible():
        press()
    with pytest.raises(Terminated), interruptible():
        press(signal.SIGTERM)


def test_in_a_search_the_first_is_noted_and_the_second_raised():
    with interruptible():
        with note_interrupts() as interrupts:
            assert not interrupts.is_asked
            press()
            assert interrupts.is_asked
            with note_interrupts() as inner:
                assert inner is interrupts, "a search within a search"
        with pytest.raises(KeyboardInterrupt), note_interrupts():
            press()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_sigterm_is_raised_in_a_search_too():
    with pytest.raises(Terminated), interruptible(), note_interrupts():
        press(signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_what_a_callback_of_the_collector_swallows_is_raised_again(number, kind, capsys):
    """Finding D7: an interrupt within JAX's callback was printed, and the command went on."""

    def callback(phase, info):
        if phase == "stop":
            gc.callbacks.remove(callback)
            press(number)

    with pytest.raises(kind), interruptible():
        gc.callbacks.append(callback)  # not before: the collector may run at any time
        gc.collect()
        wait()
    assert capsys.readouterr().err == ""


def test_what_a_destructor_swallows_is_raised_again():
    class Ends:
        def __del__(self):
            press()

    with pytest.raises(KeyboardInterrupt), interruptible():
        Ends()
        wait()


def test_what_is_raised_again_is_not_a_second_one():
    class Ends:
        def __del__(self):
            press()

    with interruptible():
        Ends()
        with note_interrupts() as interrupts:
            wait()
            assert interrupts.is_asked
    with interruptible(), pytest.raises(KeyboardInterrupt):
        Ends()
        with note_interrupts() as interrupts:
            wait()
            press()


def test_other_lost_exceptions_are_for_whoever_hears_of_them(monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)

    class Ends:
        def __del__(self):
            raise ZeroDivisionError

    with interruptible():
        Ends()
    assert [lost.exc_type for lost in heard] == [ZeroDivisionError]


def test_a_user_s_handler_is_put_back_and_called_outside_of_the_search():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("user's"))
    try:
        with note_interrupts() as interrupts:
            press()
            assert interrupts.is_asked and seen == []
        press()
        assert seen == ["user's"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_ignores_it_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible(), note_interrupts() as interrupts:
            press()
            assert not interrupts.is_asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_than_the_main_one_installs_nothing():
    observed = []

    def search():
        with note_interrupts() as interrupts:
            observed.append((interrupts.is_asked, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert observed == [(False, before)]
    assert not Interrupts().is_asked


@pytest.mark.parametrize("name", ["click", "automap.cli.run.plan", "jax", "tests.steps"])
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")],
)
def test_while_the_command_imports_a_signal_ends_it_at_once(name, number, said):
    """An import that swallows exceptions, as those of C code do, cannot go on."""
    code = f"""
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == {name!r}:
            try:
                os.kill(os.getpid(), {int(number)})
                for _ in range(1000):
                    pass
            except BaseException:
                pass

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["automap", "plan", "tests.steps:mlp", "--topology", "cpu:4"]
runpy.run_module("automap", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert (done.returncode, done.stderr) == (128 + number, f"automap: {said}\n")


def test_a_command_in_the_background_of_a_script_goes_on_ignoring_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        EndsAtOnce().install()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert isinstance(signal.getsignal(signal.SIGTERM), EndsAtOnce)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
