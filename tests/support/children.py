"""Child processes that start in milliseconds: forks of a process that has imported torch and the library.

``python -c "import torch"`` costs two CPU-seconds. Tests whose point is "another process", and not "a fresh
interpreter", therefore start programs here::

    done = children.run("-c", program, "argument", cwd=folder)     # as subprocess.run([sys.executable, ...])
    with children.start(path, "argument") as child:                # as subprocess.Popen
        child.send_signal(signal.SIGINT)
    digests = children.call(function, argument, timeout=60)        # a function of a test module

In such a child ``sys.executable`` is a launcher, which does the same for the processes that the child starts:
those of ``subprocess``, of torchrun, and of multiprocessing's ``spawn``. ``children.launcher()`` is its path.
What ``finalize`` says holds for them too. A process is not found by its environment: that in ``/proc`` is the
server's.

Such a process differs from a fresh interpreter in this: modules are imported already, and the hash seed is
that of its siblings. Variables that are read when an interpreter starts (``STARTUP_VARIABLES``) are refused
here, and make the launcher execute the real interpreter. A test that is about any of these starts
``sys.executable``.

The server is this file, run as a script: once per run of pytest-xdist, before its processes start, or else
once per pytest process that needs it. It has no threads, and opens nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import multiprocessing.spawn
import os
import pickle
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any, NoReturn

from huge_pages import take_huge_pages

HERE = Path(__file__).resolve().parent
PRELOADED = (
    "torch",
    "numpy",
    "PIL.Image",
    "fsspec",
    "obstore",
    "pytest",
    "hypothesis",
    "energon_stream.loader",
    "energon_stream.prewarming",
    "energon_stream.config.get_datasets",
    "energon_stream.cli.main",
    "energon_stream.testing.datasets",
    "energon_stream.testing.s3server",
    # What commands import when they run: half of what a short one takes.
    "numpy.ma",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "energon_stream.cli.dataset_yaml_wizard",
    "energon_stream.cli.training_arguments",
    "energon_stream.prepare.add_tables",
    "energon_stream.testing.demo_data",
    "energon_stream.tools.curation.compute_costs",
    "energon_stream.tools.curation.derive",
    "energon_stream.tools.curation.diff",
    "energon_stream.tools.doctor",
    "energon_stream.tools.lint.check_dataset",
    "energon_stream.tools.repair.repair_dataset",
    "energon_stream.tools.simulate",
    "energon_stream.write.convert",
    "energon_stream.write.sources.huggingface",
    "energon_stream.write.sources.mds",
    "energon_stream.write.sources.parquet",
    "energon_stream.write.sources.text",
)
# What optimizers, checkpoints and torchrun import takes longer than most programs of tests.
_MORE = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.run")
_IF_THERE = ("huggingface_hub.cli.hf",)  # recipes download datasets
STARTUP_VARIABLES = (
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "ENERGON_STREAM_ALIAS",
)

_SERVER = "CHILDREN_SERVER"  # path of the server's socket
_FINALIZE = "CHILDREN_FINALIZE"
_OUTER = "CHILDREN_OUTER"  # the server of a process that is itself a fork of another one
_LARGE = "CHILDREN_LARGE"  # path and modules of the server that has imported more
_HEADER = struct.Struct("!I")
_STARTED = struct.Struct("!I")
_ENDED = struct.Struct("!i")
_SECONDS = 600.0  # as long as a busy machine might need
_CALL = """
import os, pickle, sys
answer = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what the function prints is no part of the answer
sys.path[:] = pickle.load(sys.stdin.buffer)
function, arguments = pickle.load(sys.stdin.buffer)
try:
    outcome = (function(*arguments), None)
except Exception as error:
    import traceback
    error.add_note(traceback.format_exc())
    outcome = (None, error)
pickle.dump(outcome, answer)
answer.close()
"""


# Plain: it starts in ten milliseconds because it imports nearly nothing.
_LAUNCHER = r"""#!{python} -IS
import json, os, resource, select, signal, socket, sys

def real():
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])

environment = dict(os.environ)
arguments = sys.argv[1:]
while arguments and arguments[0] in ("-u", "-B"):
    del arguments[0]
if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-c", "-m", "-")):
    real()
if any(environment.get(name) != value for name, value in {startup!r}.items()):
    real()
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(environment[{server!r}])
except (KeyError, OSError):
    real()
if arguments[:1] == ["-"]:  # the program comes on standard input
    arguments = ["-c", sys.stdin.read(), *arguments[1:]]
files = []
for number in map(int, os.listdir("/dev/fd")):
    try:
        if number < 3 or os.get_inheritable(number):
            files.append(number)
    except OSError:  # the listing's own
        pass
request = dict(arguments=arguments, cwd=os.getcwd(), env=environment, numbers=files)
request["finalize"] = {finalize!r} in environment
payload = json.dumps(request).encode()
socket.send_fds(connection, [len(payload).to_bytes(4, "big")], files)
connection.sendall(payload)
pid = int.from_bytes(connection.recv(4), "big")
# What is sent to a whole group, by a terminal for example, reaches the group there as well.
target = -pid if os.getpgrp() == os.getpid() else pid
def forward(number, frame):
    try:
        os.kill(target, number)
    except ProcessLookupError:
        pass
# A signal that arrives just before a blocking call would wait for the end of the call; this makes it wake the call.
awake, waking = socket.socketpair()
waking.setblocking(False)
signal.set_wakeup_fd(waking.fileno())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, forward)
while connection not in select.select([connection, awake], [], [])[0]:
    awake.recv(64)
ended = connection.recv(4)
code = int.from_bytes(ended, "big", signed=True) if ended else 255
if code < 0:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Child:
    """A process that :func:`start` started; the like of :class:`subprocess.Popen`.

    Attributes:
        pid: Its number.
        returncode: Its exit status, minus the signal that ended it, or None while it runs.
    """

    def __init__(self, arguments: tuple[str, ...], status: socket.socket) -> None:
        self.arguments = arguments
        self.returncode: int | None = None
        self._status = status
        self.pid: int = _STARTED.unpack(_receive(status, _STARTED.size))[0]

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = _SECONDS) -> int:
        """Wait until it ends; returns its exit status. Raises TimeoutExpired as ``subprocess.Popen``."""
        if self.returncode is None:
            with selectors.DefaultSelector() as ready:
                ready.register(self._status, selectors.EVENT_READ)
                if not ready.select(timeout):
                    raise subprocess.TimeoutExpired(list(self.arguments), timeout or 0.0)
            (self.returncode,) = _ENDED.unpack(_receive(self._status, _ENDED.size))
            self._status.close()
        assert self.returncode is not None
        return self.returncode

    def wait_or_kill(self, timeout: float | None) -> int:
        """Wait until it ends, and kill it if that takes too long; returns its exit status."""
        try:
            return self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
            raise

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.wait()


def start(
    *arguments: object,
    stdin: IO[Any] | int | None = None,
    stdout: IO[Any] | int | None = None,
    stderr: IO[Any] | int | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    finalize: bool = False,
    preload: tuple[str, ...] = (),
) -> Child:
    """Start a Python program, as ``subprocess.Popen`` with the same options.

    Args:
        arguments: What follows ``python`` on a command line: ``-c`` and source text, ``-m`` and a module, or
            a file; then arguments of the program.
        finalize: Free all objects and modules at the end, as interpreters do. Otherwise the child ends after
            its threads and ``atexit`` callbacks, as children of multiprocessing do.
        preload: Modules that are imported already in the child, beside ``PRELOADED``. Each choice of modules
            costs a server of its own.
    """
    environment = dict(os.environ if env is None else env)
    for name in STARTUP_VARIABLES:
        if environment.get(name) != _Server.environment.get(name):
            raise ValueError(f"{name} is read when an interpreter starts: use sys.executable")
    words = tuple(map(str, arguments))
    server = _server(preload)
    environment[_SERVER] = server.address  # what the child starts is forked from the same server
    if finalize:
        environment[_FINALIZE] = "1"
    request = {
        "arguments": words,
        "cwd": os.fspath(cwd or os.getcwd()),
        "env": environment,
        "finalize": finalize,
        "numbers": [0, 1, 2],
    }
    with open(os.devnull, "r+b") as nothing:
        numbers = [
            _number(own if stream is None else nothing if stream == subprocess.DEVNULL else stream)
            for own, stream in enumerate((stdin, stdout, stderr))
        ]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return Child(words, server.send(request, numbers))


def _number(stream: IO[Any] | int) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


def run(
    *arguments: object,
    input: str | None = None,
    timeout: float | None = _SECONDS,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end, as ``subprocess.run``; ``options`` are those of :func:`start`."""
    with contextlib.ExitStack() as files:
        stdin, *outputs = (files.enter_context(_file()) for _ in range(3))
        stdin.write((input or "").encode())
        stdin.seek(0)
        child = start(*arguments, stdin=stdin, stdout=outputs[0], stderr=outputs[1], **options)
        code = child.wait_or_kill(timeout)
        for file in outputs:
            file.seek(0)
        done = subprocess.CompletedProcess(
            ["python", *child.arguments], code, *(file.read().decode() for file in outputs)
        )
    if check and code:
        sys.stderr.write(done.stderr)
        done.check_returncode()
    return done


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile()


class Call:
    """A function that runs in a child; see :func:`submit`."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._files = contextlib.ExitStack()
        self._errors, self._answer, stdin = (self._files.enter_context(_file()) for _ in range(3))
        for message in (sys.path, (function, arguments)):
            pickle.dump(message, stdin)
        stdin.seek(0)
        self.process = start("-c", _CALL, stdin=stdin, stdout=self._answer, stderr=self._errors)

    def result(self, timeout: float | None = _SECONDS) -> Any:
        """Wait for the function; returns what it returns, and raises what it raises.

        If the child ended without an answer, an AssertionError has what it wrote to stderr.
        """
        with self._files:
            code = self.process.wait_or_kill(timeout)
            self._errors.seek(0)
            assert code == 0, self._errors.read().decode()
            self._answer.seek(0)
            value, error = pickle.load(self._answer)
            if error is not None:
                raise error
            return value


def submit(function: Callable[..., Any], *arguments: Any) -> Call:
    """Start a function of an importable module in a child."""
    return Call(function, arguments)


def call(function: Callable[..., Any], *arguments: Any, timeout: float | None = _SECONDS) -> Any:
    """Run a function of an importable module in a child; returns what it returns."""
    return submit(function, *arguments).result(timeout)


def launcher() -> str:
    """Path of a program that behaves as ``python`` and starts forks of the server."""
    server = _server()
    os.environ[_SERVER] = server.address
    return server.launcher


def interpreter(*preload: str) -> str:
    """Path of a program that behaves as ``python``, and has imported more modules.

    It is not for what tests start, but for processes of tests: ``sys.executable`` is an interpreter there.
    """
    launcher()  # whose server is that of the new process
    server = _server(preload)
    os.environ[_LARGE] = " ".join((server.address, *preload))
    program = Path(server.launcher + "-tests")
    program.write_text(
        f'#!/bin/sh\n{_OUTER}=${_SERVER} {_SERVER}={server.address} exec {server.launcher} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Let ``spawn`` and ``forkserver`` of multiprocessing start forks of the server."""
    interpreter = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(launcher())
    yield
    multiprocessing.set_executable(interpreter)


def torchrun_environment() -> dict[str, str]:
    """Variables with which torchrun starts its ranks as forks of the server."""
    return {"PYTHON_EXEC": launcher(), _SERVER: os.environ[_SERVER]}


def is_shared() -> bool:
    """Whether a process before this one has started the server."""
    return os.path.exists(os.environ.get(_SERVER, ""))


class _Server:
    """The way to a server."""

    environment: Mapping[str, str] = dict(os.environ)

    def __init__(self, address: str) -> None:
        self.address = address
        self.launcher = os.path.join(os.path.dirname(address), "python")

    def send(self, request: Mapping[str, Any], streams: list[int]) -> socket.socket:
        """Send a request; returns the connection, on which the child's number and status come."""
        payload = json.dumps(request).encode()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        socket.send_fds(connection, [_HEADER.pack(len(payload))], streams)
        connection.sendall(payload)
        return connection


class _OwnServer(_Server):
    """A server that this process starts."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self.pid = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="children-")
        super().__init__(os.path.join(self._folder.name, "socket"))
        values = {
            "python": sys.executable,
            "startup": {name: self.environment.get(name) for name in STARTUP_VARIABLES},
            "server": _SERVER,
            "finalize": _FINALIZE,
        }
        Path(self.launcher).write_text(_LAUNCHER.format(**values))
        os.chmod(self.launcher, 0o755)
        ours, theirs = socket.socketpair()
        self._life = ours  # the server ends when this is closed
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(64)
            numbers = (listener.fileno(), theirs.fileno())
            # One that imports more begins as a fork of the one that has imported the rest.
            python = launcher() if preload else sys.executable
            self._process = subprocess.Popen(
                [python, __file__, *map(str, numbers), self.launcher, sys.executable, *preload],
                pass_fds=numbers,
                # OpenBLAS starts threads when it is imported.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server, which kills children that still run."""
        if self.pid == os.getpid():
            self._life.close()
            self._process.wait()
            self._folder.cleanup()


_servers: dict[tuple[int, tuple[str, ...]], _Server] = {}
_starting = threading.RLock()


def _server(preload: tuple[str, ...] = ()) -> _Server:
    key = (os.getpid(), preload)
    with _starting:
        if key not in _servers:
            large, *modules = os.environ.get(_LARGE, "").split(" ")
            address = large if preload and {*preload} <= {*modules} else os.environ.get(_SERVER, "")
            is_there = os.path.exists(address) and (not preload or address == large)
            _servers[key] = _Server(address) if is_there else _OwnServer(preload)
        return _servers[key]


def _receive(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = stream.recv(size - len(data))
        if not more:
            raise EOFError("the server of child processes ended")
        data += more
    return data


# From here on: the server.


class _Forker:
    """The server's loop.

    A child whose connection is closed is killed: its starter is gone, or does not want it any more.
    """

    def __init__(self, listener: socket.socket, life: socket.socket) -> None:
        self._listener, self._life = listener, life
        self._signals, writing = socket.socketpair()
        self._children: dict[int, socket.socket] = {}
        self._ready = selectors.DefaultSelector()
        for end in (self._signals, writing):
            end.setblocking(False)
        for end in (listener, life, self._signals):
            self._ready.register(end, selectors.EVENT_READ)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._own = [listener, life, self._signals, writing]

    def serve(self) -> dict[str, Any]:
        """Fork for each request; returns the request in the child, and never in the server."""
        while True:
            for key, _ in self._ready.select():
                if key.fileobj is self._listener:
                    request = self._fork()
                    if request is not None:
                        return request
                elif key.fileobj is self._signals:
                    with contextlib.suppress(BlockingIOError):
                        self._signals.recv(4096)
                    self._report()
                elif key.fileobj is self._life:
                    self._end()
                elif key.data in self._children:
                    self._ready.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)

    def _fork(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        header, streams, _, _ = socket.recv_fds(connection, _HEADER.size, 200)
        if not header:  # the launcher was killed
            connection.close()
            return None
        request: dict[str, Any] = json.loads(_receive(connection, _HEADER.unpack(header)[0]))
        pid = os.fork()
        if pid == 0:
            self._ready.close()
            for other in (*self._own, connection, *self._children.values()):
                other.close()
            request["streams"] = streams
            return request
        for stream in streams:
            os.close(stream)
        self._children[pid] = connection
        self._ready.register(connection, selectors.EVENT_READ, pid)
        if hasattr(
            fcntl, "F_SETSIG"
        ):  # where the system can, it kills the child before the starter is reaped
            fcntl.fcntl(connection, fcntl.F_SETOWN, pid)
            fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
        with contextlib.suppress(OSError):
            connection.sendall(_STARTED.pack(pid))
        return None

    def _report(self) -> None:
        for pid, connection in list(self._children.items()):
            found, code = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._children[pid]
                with contextlib.suppress(KeyError):
                    self._ready.unregister(connection)
                with contextlib.suppress(OSError), connection:
                    connection.sendall(_ENDED.pack(os.waitstatus_to_exitcode(code)))

    def _end(self) -> NoReturn:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        os._exit(0)


_imported: list[weakref.finalize[..., Any]] = []  # finalizers of what the server has imported


def _become(request: dict[str, Any], path: list[str], executable: str) -> None:
    """Turn a fork of the server into what a fresh interpreter is; runs the program."""
    os.setpgid(0, 0)
    if outer := request["env"].pop(_OUTER, None):
        request["env"][_SERVER] = outer
        executable = sys.executable
    sys.executable = executable
    multiprocessing.set_executable(executable)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _place(dict(zip(request["numbers"], request["streams"], strict=True)))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    tempfile.tempdir = None
    sys.modules["numpy"].random.seed()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [*own, *(entry for entry in path if entry not in own)]
    gc.enable()
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if request["finalize"]:
        for finalizer in _imported:
            finalizer.atexit = True
        _execute(main, path, *request["arguments"])
        return
    code: object = 0
    try:
        _execute(main, path, *request["arguments"])
    except SystemExit as exit:
        code = exit.code
    except KeyboardInterrupt:
        raise  # the interpreter ends by the signal
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    # As multiprocessing ends its children. Freeing torch's modules one by one would cost a quarter of a
    # second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(int(code or 0) & 0xFF)


def _place(files: dict[int, int]) -> None:
    """Give open files the numbers that they have in the process that asked."""
    above = max([*files, *files.values()]) + 1
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, above) for number, file in files.items()}
    for file in files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)


def _execute(main: ModuleType, path: list[str], kind: str, *arguments: str) -> None:
    """Run what a command line names as ``__main__``."""
    if kind == "-m":
        sys.argv, sys.path[:] = list(arguments), [os.getcwd(), *path]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[:] = ["-c", *arguments[1:]], ["", *path]
        exec(compile(arguments[0], "<string>", "exec"), main.__dict__)
    else:
        file = os.path.abspath(kind)
        main.__file__ = file
        sys.argv, sys.path[:] = [kind, *arguments], [os.path.dirname(os.path.realpath(file)), *path]
        exec(compile(Path(file).read_bytes(), file, "exec"), main.__dict__)


def _main() -> None:
    listener, life = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    executable, path = sys.argv[3], [*sys.path[1:], str(HERE)]
    sys.executable = sys.argv[4]  # of a fork, it is a launcher
    for name in (*PRELOADED, *_MORE, *sys.argv[5:]):
        __import__(name)
    for name in _IF_THERE:
        with contextlib.suppress(ImportError):
            __import__(name)
    sys.modules["PIL.Image"].preinit()  # the usual formats, which each child would import for its first image
    # torch takes its operators back one by one at an exit: four fifths of what a short child costs.
    _imported.extend(each for each in weakref.finalize._registry if each.atexit)  # type: ignore[attr-defined]
    for finalizer in _imported:
        finalizer.atexit = False
    gc.collect()
    gc.disable()
    gc.freeze()
    take_huge_pages()
    _become(_Forker(listener, life).serve(), path, executable)


if __name__ == "__main__":
    _main()
