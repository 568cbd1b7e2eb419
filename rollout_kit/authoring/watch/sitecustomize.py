"""Watch a Python process and its children for reads of the clock and network access. Python imports
this module first in each of them, because its folder is first in PYTHONPATH. Standard library only.

ROLLOUT_KIT_WATCH is JSON: `log`, the file that gets a line of JSON per new observation; `folder`,
whose code is watched for reading the clock; `shift_s`, the shift of the wall clock; `deny`, whether
connections are refused; `allow`, hosts and ports that are exempt. Monotonic clocks are not shifted,
because they contain no date.
"""

import copyreg
import datetime
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from typing import Any

PLAN = json.loads(os.environ.get("ROLLOUT_KIT_WATCH", "{}"))
SHIFT_S = PLAN.get("shift_s", 0)
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(PLAN.get("folder") or "/nowhere", "")
ALLOWED = {(host, port) for host, port in PLAN.get("allow", ())}
_seen: set[tuple[str, str]] = set()


def record(kind: str, what: str) -> None:
    if (kind, what) in _seen:
        return
    _seen.add((kind, what))
    line = json.dumps({"kind": kind, "what": what}) + "\n"
    log = os.open(PLAN["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(log, line.encode())  # one write: several processes append
    finally:
        os.close(log)


def read_clock(name: str) -> None:
    """Record that the watched code read the clock, unless it did so while it was imported."""
    frame = sys._getframe(2)
    code = frame.f_code
    if code.co_filename.startswith(FOLDER) and code.co_name != "<module>":
        place = f"{os.path.relpath(code.co_filename, FOLDER)}:{frame.f_lineno}"
        record("clock", f"{name} at {place}, in {code.co_name}")


def watch_network() -> None:
    asked = {"socket.connect", "socket.sendto", "socket.sendmsg"}
    looked_up = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in asked:
            address = arguments[1]
            if not isinstance(address, tuple) or address[:2] in ALLOWED:
                return  # a Unix socket, or an exempt server
            what = f"{event.removeprefix('socket.')} {address[0]}:{address[1]}"
        elif event in looked_up:
            host = arguments[0]
            host = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
            if any(host == allowed for allowed, _ in ALLOWED):
                return
            what = f"look-up of {host}"
        else:
            return
        record("network", what)
        if PLAN.get("deny"):
            raise OSError(101, "the audit blocks the network")

    sys.addaudithook(hook)


def watch_clock() -> None:
    for name in ("time", "time_ns"):
        setattr(time, name, _shift(name, getattr(time, name)))
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _wrap_now(name, getattr(time, name), place=0))
    time.strftime = _wrap_now("strftime", time.strftime, place=1)
    time.clock_gettime = _wrap_realtime("clock_gettime", time.clock_gettime)
    time.clock_gettime_ns = _wrap_realtime("clock_gettime_ns", time.clock_gettime_ns)
    datetime.datetime, datetime.date = _make_dates()


_now = time.time
_localtime = time.localtime


def _shift(name: str, real: Any) -> Any:
    shift = SHIFT_S * 10**9 if name.endswith("_ns") else SHIFT_S

    def clock() -> Any:
        read_clock(f"time.{name}")
        return real() + shift

    return clock


def _wrap_now(name: str, real: Any, place: int) -> Any:
    """Wrap a function that uses the current time if the argument at `place` is missing."""

    def clock(*arguments: Any) -> Any:
        if len(arguments) > place and arguments[place] is not None:
            return real(*arguments)
        read_clock(f"time.{name}")
        now = _now() + SHIFT_S
        return real(*arguments[:place], _localtime(now) if place else now)

    return clock


def _wrap_realtime(name: str, real: Any) -> Any:
    shift = SHIFT_S * 10**9 if name.endswith("_ns") else SHIFT_S

    def clock(which: int) -> Any:
        if which != time.CLOCK_REALTIME:
            return real(which)
        read_clock(f"time.{name}")
        return real(which) + shift

    return clock


def _make_dates() -> tuple[Any, Any]:
    """Make replacements for `datetime` and `date` with a shifted current time. Calling them creates
    instances of the real classes, which C code accepts."""
    real_datetime, real_date = datetime.datetime, datetime.date
    shift = datetime.timedelta(seconds=SHIFT_S)

    class StandIn(type):
        """Metaclass of the two replacements; subclasses of them behave as usual."""

        def __call__(cls, *arguments: Any, **more: Any) -> Any:
            made = cls.__mro__[1] if cls.__dict__.get("_is_stand_in") else cls
            return type.__call__(made, *arguments, **more)

        def __instancecheck__(cls, instance: Any) -> bool:
            if cls.__dict__.get("_is_stand_in"):
                return isinstance(instance, cls.__mro__[1])
            return type.__instancecheck__(cls, instance)

        def __subclasscheck__(cls, other: type) -> bool:
            if cls.__dict__.get("_is_stand_in"):
                return issubclass(other, cls.__mro__[1])
            return type.__subclasscheck__(cls, other)

    class datetime_(real_datetime, metaclass=StandIn):
        _is_stand_in = True

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            read_clock("datetime.now")
            return real_datetime.now(tz) + shift

        @classmethod
        def utcnow(cls) -> Any:
            read_clock("datetime.utcnow")
            return real_datetime.now(datetime.UTC).replace(tzinfo=None) + shift

        @classmethod
        def today(cls) -> Any:
            read_clock("datetime.today")
            return real_datetime.now() + shift

    class date_(real_date, metaclass=StandIn):
        _is_stand_in = True

        @classmethod
        def today(cls) -> Any:
            read_clock("date.today")
            return (real_datetime.now() + shift).date()

    for stand_in, name in ((datetime_, "datetime"), (date_, "date")):
        stand_in.__name__ = stand_in.__qualname__ = name
        stand_in.__module__ = "datetime"
    copyreg.pickle(real_datetime, lambda made: (datetime_, made.__reduce_ex__(2)[1]))  # type: ignore[arg-type]
    copyreg.pickle(real_date, lambda made: (date_, made.__reduce_ex__(2)[1]))  # type: ignore[arg-type]
    return datetime_, date_


def import_hidden() -> None:
    """Import the `sitecustomize` module that this one hides."""
    path = [each for each in sys.path if os.path.abspath(each) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if PLAN:
    watch_network()
    watch_clock()
    import_hidden()
