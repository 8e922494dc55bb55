# SPDX-License-Identifier: Apache-2.0
"""Data that may pass between a program under test and its judge: plain values, nothing executable.

A value crosses as JSON and is rebuilt from this module's types, so that no `__eq__` that always agrees and no code
crosses: a subclass arrives as the plain value it holds, anything else as a number for it, if `objects` gives it one.
"""

import json
import socket
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from types import TracebackType
from typing import Any

MAX_ANSWER_BYTES = 16 << 20
"""Longest message that is accepted from a program under test."""
MAX_CHECK_BYTES = 64 << 20
"""Longest message that is accepted from the trusted side."""
MAX_ITEMS_OF_ITERATOR = 1_000_000
"""Items taken from a generator or another iterator, which may be endless."""
_JSON_INTEGERS = 1 << 53  # beyond it as hexadecimal digits: decimal ones take quadratic time and Python limits them


class NotPlainData(Exception):
    """A value that cannot cross, or bytes that are not plain data."""


class EndOfData(Exception):
    """The other side has closed its end."""


class Objects:
    """Objects that are not plain data, by number. This one has none; each side of a check replaces it."""

    def number_of(self, value: Any) -> int:
        """The number of an object; NotPlainData if it cannot have one."""
        raise NotPlainData(f"a value of type {type(value).__name__!r}, which cannot leave the program")

    def object_of(self, number: Any) -> Any:
        """The object of a number; NotPlainData if there is none."""
        raise NotPlainData(f"object {number!r}, which is not there")


objects = Objects()


class Caught:
    """Runs untrusted code; whatever it raises, SystemExit included, ends the block and is its `error`."""

    error: BaseException | None = None

    def __enter__(self) -> "Caught":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        self.error = error
        return True


def shown(error: BaseException) -> str:
    """Text of an exception, whose arguments may be objects of the program."""
    with Caught():
        return str(error)
    return "(cannot be shown)"


def description(error: BaseException) -> str:
    """Name and text of an exception."""
    return f"{type(error).__name__}: {shown(error)}"[:300]


def framed(message: Any, limit: int = MAX_ANSWER_BYTES) -> bytes:
    """One JSON message after its length; NotPlainData if it is longer than the limit."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > limit:
        raise NotPlainData(f"{len(data)} bytes, more than the limit of {limit}")
    return struct.pack(">I", len(data)) + data


class Link:
    """One end of a pair of sockets, and the messages that pass through it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._incoming = end.makefile("rb")

    def send(self, message: Any, limit: int = MAX_ANSWER_BYTES) -> None:
        """Send one message; NotPlainData if it is longer than the limit, EndOfData if nobody reads."""
        try:
            self._end.sendall(framed(message, limit))
        except ConnectionError as error:
            raise EndOfData("nobody reads") from error

    def receive(self, limit: int = MAX_ANSWER_BYTES) -> Any:
        """The next message; NotPlainData if it is too long or not JSON, EndOfData if the other side ends within it."""
        (size,) = struct.unpack(">I", self._read(4))
        if size > limit:
            raise NotPlainData(f"a message of {size} bytes, more than the limit of {limit}")
        data = self._read(size)
        try:
            return json.loads(data)
        except (ValueError, RecursionError, MemoryError) as error:
            raise NotPlainData("bytes that are not a message") from error

    def _read(self, size: int) -> bytes:
        try:
            data = self._incoming.read(size)
        except ConnectionError:
            data = b""
        if len(data) < size:
            raise EndOfData("the other side closed its end")
        return data


def encode(value: Any) -> Any:
    """JSON form of a value; NotPlainData where `objects` refuses one, and for what is nested too deeply."""
    try:
        return _encode(value)
    except RecursionError as error:
        raise NotPlainData("a value nested too deeply, or within itself") from error


def decode(message: Any) -> Any:
    """The value that `encode` turned into a message; NotPlainData if the message is not of that form."""
    try:
        return _decode(message)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise NotPlainData(f"a malformed value ({type(error).__name__})") from error


def _encode(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is int and abs(value) < _JSON_INTEGERS:
        return value
    if kind is list:
        return [_encode(item) for item in value]
    if kind in _CODES:
        return {kind.__name__: _encode(_CODES[kind][0](value))}
    for base in kind.__mro__[1:]:
        if base in _PLAIN:
            return _encode(_PLAIN[base](value))
    if isinstance(value, Iterator):
        items = [_encode(item) for item in islice(value, MAX_ITEMS_OF_ITERATOR + 1)]
        if len(items) > MAX_ITEMS_OF_ITERATOR:
            raise NotPlainData(f"an iterator over more than {MAX_ITEMS_OF_ITERATOR} items")
        return {"iterator": items}
    return {"object": objects.number_of(value)}


def _decode(message: Any) -> Any:
    if isinstance(message, list):
        return [_decode(item) for item in message]
    if isinstance(message, dict):
        ((tag, content),) = message.items()
        return _DECODERS[tag](_decode(content))
    return message


def _pairs(value: dict) -> list:
    return [[key, item] for key, item in dict.items(value)]


def _without_zone(value: datetime | time) -> str:
    """A date or a time of day; a zone is code, which cannot cross."""
    if value.tzinfo is not None:
        raise NotPlainData(f"a {type(value).__name__} with a time zone, which cannot leave the program")
    return value.isoformat()


_CODES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: (hex, lambda content: int(content, 16)),
    float: (float.hex, float.fromhex),
    complex: (lambda value: [value.real, value.imag], lambda content: complex(*content)),
    bytes: (bytes.hex, bytes.fromhex),
    bytearray: (bytearray.hex, bytearray.fromhex),
    **{kind: (list, kind) for kind in (tuple, set, frozenset, deque)},
    **{kind: (_pairs, kind) for kind in (dict, OrderedDict)},
    Counter: (_pairs, lambda content: Counter(dict(content))),
    range: (lambda value: [value.start, value.stop, value.step], lambda content: range(*content)),
    Fraction: (lambda value: [value.numerator, value.denominator], lambda content: Fraction(*content)),
    Decimal: (str, Decimal),
    date: (date.isoformat, date.fromisoformat),
    datetime: (_without_zone, datetime.fromisoformat),
    time: (_without_zone, time.fromisoformat),
    timedelta: (lambda value: [value.days, value.seconds, value.microseconds], lambda content: timedelta(*content)),
    type({}.keys()): (list, lambda content: dict.fromkeys(content).keys()),
    type({}.values()): (list, lambda content: dict(enumerate(content)).values()),
    type({}.items()): (list, lambda content: dict(content).items()),
}
"""How a value of each type is written, and how it is rebuilt."""
_DECODERS: dict[str, Callable[[Any], Any]] = {
    **{kind.__name__: decoder for kind, (_, decoder) in _CODES.items()},
    "object": lambda content: objects.object_of(content),
    "iterator": iter,
}
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: lambda value: int.__add__(value, 0),
    float: lambda value: float.__add__(value, 0.0),
    str: lambda value: "".join(str.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    **{kind: lambda value, kind=kind: kind(kind.__iter__(value)) for kind in (bytes, tuple, list, set, frozenset)},
}
"""The plain value in an instance of a subclass, such as a named tuple or a defaultdict."""
