"""An engine on a Ray cluster; the extra ``ray`` brings Ray."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from energon_stream.engine.processes import picklable, run_task
from energon_stream.engine.tasks import Outcome, TaskEngine
from energon_stream.errors import ConfigError, WorkerError
from energon_stream.imports import LazyModule

_ray = LazyModule("ray", "ray")

_SECONDS_TO_CONNECT = 10.0
_TASKS_A_CPU = 2  # that the cluster has, so that none waits for this process


class RayEngine(TaskEngine):
    """Maps functions over tasks on a Ray cluster.

    Each task takes one CPU. Tasks of a node that dies run again on the others. All nodes need this package,
    and must reach the dataset under the same URL or path.

    Args:
        address: Address of an existing cluster, such as ``10.0.0.1:6379``, ``ray://host:10001`` or ``auto``;
            ``local`` for a new one of this machine, which listens on the loopback interface only. None: the
            cluster that the program is connected to, else that of ``RAY_ADDRESS``, else one of this machine,
            else a new one.
        runtime_env: What the tasks need on the nodes, as ``ray.init`` takes it, such as environment
            variables with credentials.

    Raises:
        MissingPackageError: (On use.) Ray is not installed.
        ConfigError: (On use.) There is no cluster at the address, or Ray cannot start one, or ``runtime_env``
            is wrong.

    Example:
        >>> from energon_stream import RayEngine
        >>> engine = RayEngine("10.0.0.1:6379", runtime_env={"env_vars": {"AWS_PROFILE": "training"}})
        >>> sizes = engine.map(len, ["a", "bb"])  # the cluster is looked for when the first result is taken
    """

    def __init__(self, address: str | None = None, *, runtime_env: Mapping[str, Any] | None = None) -> None:
        self._address, self._runtime_env = address, runtime_env

    @contextmanager
    def _open(self, function: Callable[[Any], Any]) -> Iterator[_Cluster]:
        is_ours = not _ray.is_initialized()
        if is_ours:
            self._connect()
        runner = _Cluster(function)
        try:
            yield runner
        finally:
            runner.close()
            if is_ours:
                _ray.shutdown()

    def _connect(self) -> None:
        options: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
        options["runtime_env"] = None if self._runtime_env is None else dict(self._runtime_env)
        address = self._address or os.environ.get("RAY_ADDRESS", "")
        is_new = address == "local"
        try:
            found = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
            if found is not None:  # Ray would try for minutes where nothing listens
                socket.create_connection((found[1], int(found[2])), _SECONDS_TO_CONNECT).close()
            if not is_new:
                try:
                    _ray.init(address=address or "auto", **options)
                except ConnectionError:
                    if address:
                        raise
                    is_new = True
            if is_new:
                with _without_other_nodes():
                    _ray.init(address="local", include_dashboard=False, **options)
        except Exception as error:  # Ray's own do not share a class
            what, hint = "reached", "check the address"
            if self._runtime_env and isinstance(error, TypeError | ValueError):
                what, hint = "given this runtime_env", "see the argument of ray.init"
            elif is_new:  # a node gives its processes 15 seconds, and nothing changes that
                what, hint = "started", "where the machine is busy, use a LocalEngine"
            raise ConfigError(f"Ray cannot be {what}: {error}", where=address or None, hint=hint) from error


@contextmanager
def _without_other_nodes() -> Iterator[None]:
    """Let Ray suppose that there are no other nodes, or it would listen on all interfaces."""
    constants = _ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


class _Cluster:
    """Runs tasks on the cluster's nodes."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        # Tries are counted by the caller, in one way for all engines.
        self._run = _ray.remote(num_cpus=1, max_retries=0)(_run)
        self._function = _ray.put(function)
        self._waiting: dict[Any, int] = {}  # numbers of tasks by reference

    @property
    def slots(self) -> int:
        """Grows and shrinks with the cluster."""
        return max(1, int(_TASKS_A_CPU * _ray.cluster_resources().get("CPU", 1)))

    def submit(self, number: int, task: Any) -> None:
        """Give a task to the cluster."""
        self._waiting[self._run.remote(self._function, task)] = number

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait until tasks have ended, well or not."""
        first, _ = _ray.wait([*self._waiting], num_returns=1)
        more, _ = _ray.wait([*self._waiting], num_returns=len(self._waiting), timeout=0)
        return [(self._waiting.pop(reference), _outcome(reference)) for reference in {*first, *more}]

    def close(self) -> None:
        """Cancel what is under way."""
        for reference in self._waiting:
            _ray.cancel(reference, force=True)
        self._waiting = {}


def _outcome(reference: Any) -> Outcome:
    try:
        outcome: Outcome = _ray.get(reference)
    except _ray.exceptions.RayError as error:  # the process or the node is gone, or its result
        lines = str(error).strip().split("\n")
        if isinstance(error, _ray.exceptions.RayTaskError):  # the function's own errors are outcomes
            hint = "nodes need the modules of this program: see runtime_env"
            return Outcome(error=WorkerError(f"a node could not begin a task: {lines[-1]}", hint=hint))
        hint = "see `ray status`; a node that is out of memory kills tasks"
        return Outcome(error=WorkerError(f"a task lost its process or node: {lines[0]}", hint=hint))
    return outcome


def _run(function: Callable[[Any], Any], task: Any) -> Outcome:
    return picklable(run_task(function, task))
