"""Several controllers at the same time: as processes of this machine, or on the machines of a Ray
cluster.

They are asynchronous (Mirhoseini et al. 2017, section 3.4): while one is at work the weights may
have moved by the turns of others.
"""

from collections.abc import Mapping
import multiprocessing
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch

from rl.controllers import Controller, Turn
from rl.errors import RlError
from rl.reinforce import Crew


class ProcessFleet:
    """Controllers as processes of this machine; the crew's score must be picklable."""

    def __init__(self, crew: Crew):
        """Start the processes: anew, as torch and JAX do not survive a fork."""
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for index in range(len(crew.seeds)):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, crew, index), daemon=True)
            process.start()
            # Here it would stay open after the process has ended, and never be seen to close.
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def start(self, index: int, weights: Mapping[str, np.ndarray], updates: int) -> None:
        """See `Fleet`."""
        self._pipes[index].send((weights, updates))

    def next(self) -> tuple[int, Turn]:
        """See `Fleet`."""
        ready = wait(self._pipes)[0]
        index, pipe = next((i, pipe) for i, pipe in enumerate(self._pipes) if pipe is ready)
        try:
            answer = pipe.recv()
        except EOFError:
            raise RlError(f"controller {index} has ended unexpectedly") from None
        if isinstance(answer, str):
            raise RlError(f"controller {index} has failed: {answer}")
        return index, answer

    def close(self) -> None:
        """See `Fleet`."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            process.terminate()
            process.join()
            pipe.close()


def _work(pipe: Connection, crew: Crew, index: int) -> None:
    """The life of a controller's process: turns until it is ended."""
    torch.set_num_threads(1)
    try:
        controller = crew.controller(index)
        while True:
            weights, updates = pipe.recv()
            pipe.send(controller.turn(weights, updates))
    except (EOFError, KeyboardInterrupt):
        return
    # Whatever a score raises, the run must hear of it.
    except Exception as error:  # noqa: BLE001
        pipe.send(f"{type(error).__name__}: {error}")


class RayFleet:
    """Controllers as actors of the Ray cluster that this process is connected to."""

    def __init__(self, crew: Crew, ray: Any):
        """`ray` is the module, initialised by the caller; the extra `ray` installs it."""
        self._ray = ray
        actor = ray.remote(Controller)
        self._actors = []
        for seed, state in zip(crew.seeds, crew.states, strict=True):
            controller = actor.remote(crew.task, crew.score, crew.config, seed)
            if state is not None:
                controller.resume.remote(state)
            self._actors.append(controller)
        self._waiting: dict[Any, int] = {}

    def start(self, index: int, weights: Mapping[str, np.ndarray], updates: int) -> None:
        """See `Fleet`."""
        self._waiting[self._actors[index].turn.remote(weights, updates)] = index

    def next(self) -> tuple[int, Turn]:
        """See `Fleet`."""
        (done,), _ = self._ray.wait(list(self._waiting), num_returns=1)
        index = self._waiting.pop(done)
        try:
            return index, self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            # Of what a controller raised, Ray's own text is a traceback.
            cause = getattr(error, "cause", error)
            text = f"{type(cause).__name__}: {cause}"
            raise RlError(f"controller {index} has failed: {text}") from error

    def close(self) -> None:
        """See `Fleet`."""
        for actor in self._actors:
            self._ray.kill(actor)
