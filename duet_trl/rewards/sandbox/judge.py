# SPDX-License-Identifier: Apache-2.0
"""The process that runs the tests, on functions whose bodies are in another process.

The names that the tests call are stand-ins here: each call sends its arguments to the program under test and gets a
plain value back, which is compared here. The program sees no expected value and cannot touch this process.
"""

import builtins
from collections.abc import Callable
from functools import partial
from typing import Any

from . import codec
from .codec import MAX_CHECK_BYTES, Caught, EndOfData, Link, NotPlainData

OF_THE_PROGRAM = ("source", "names", "preamble", "reads_input")
"""The fields of a check that the program's process gets."""


class ProgramFailed(BaseException):
    """The program under test cannot answer any more. Not an Exception: tests must not take it for an expected one."""


class ProgramError(Exception):
    """The program under test raised an exception that this process has no class for."""


class UnusableTests(BaseException):
    """The tests cannot be run, whatever the program."""


def judge(channel: Link, link: Link) -> None:
    """Read a check from the channel, run it against the program across the link, write the verdict to the channel."""
    check = channel.receive(MAX_CHECK_BYTES)
    program = _Program(link)
    with Caught() as outcome:
        _run(check, program)
    error = outcome.error
    if isinstance(error, UnusableTests):
        verdict = {"passed": None, "reason": str(error)}
    elif program.failure is not None or error is not None:
        verdict = {"passed": False, "reason": program.failure or codec.description(error)}
    else:
        verdict = {"passed": True, "reason": "all tests passed"}
    channel.send(verdict)


def _run(check: dict[str, Any], program: "_Program") -> None:
    """Compile the tests and run their setup, which can fail without the program; then load it and run them."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    with Caught() as outcome:
        tests = [compile(test, "<test>", "exec", dont_inherit=True) for test in check["tests"]]
        for setup in check["setup"]:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
    if outcome.error is not None:
        raise UnusableTests(f"unusable tests, {codec.description(outcome.error)}")
    namespace.update({name: program.object_of(place) for place, name in enumerate(check["names"])})
    program.load({name: check[name] for name in OF_THE_PROGRAM})
    for test in tests:
        exec(test, namespace)


def _asks(operation: str) -> Callable[..., Any]:
    def method(self: "_Remote", *arguments: Any, **options: Any) -> Any:
        return object.__getattribute__(self, "_ask")(operation, *arguments, **options)

    return method


class _Remote:
    """Stands for an object of the program, which is asked all but what an expected value is the other side of."""

    def __init__(self, program: "_Program", number: int) -> None:
        object.__setattr__(self, "_ask", partial(program.ask, number))

    __call__, __getattr__, __setattr__ = map(_asks, ("call", "attribute", "assign"))
    __len__, __getitem__, __setitem__ = map(_asks, ("length", "item", "replace"))
    __str__ = __repr__ = _asks("text")
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(_asks("items")(self))

    def __contains__(self, item: Any) -> bool:
        return item in list(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Remote) and other is not self:
            raise UnusableTests("unusable tests: they compare two objects of the program")
        return other is self


class _Program(codec.Objects):
    """The program under test, as seen from here. Its first failure is final, even if the tests catch it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._has_answered = False
        self._remotes: dict[int, _Remote] = {}
        self.failure: str | None = None
        codec.objects = self

    def load(self, program: dict[str, Any]) -> None:
        self._send(program)
        self._receive("loaded")

    def object_of(self, number: Any) -> _Remote:
        """The stand-in for an object of the program; the first are those that the tests name."""
        if type(number) is not int or number < 0:
            return super().object_of(number)
        return self._remotes.setdefault(number, _Remote(self, number))

    def number_of(self, value: Any) -> int:
        """The number of an object that came from the program; those of the tests themselves have none."""
        for number, remote in self._remotes.items():
            if remote is value:
                return number
        raise UnusableTests(f"unusable tests, an argument is of type {type(value).__name__!r}, which cannot cross")

    def ask(self, number: int, operation: str, *arguments: Any, **options: Any) -> Any:
        """The program's answer to an operation on one of its objects."""
        try:
            request = {"operation": operation, "arguments": codec.encode(arguments), "options": codec.encode(options)}
        except NotPlainData as error:
            if self._has_answered:  # what it answered may be part of the argument
                self._fail(f"an argument that came from the program is {error}")
            raise UnusableTests(f"unusable tests, an argument is {error}") from error
        self._send({"object": number, **request})
        value = self._receive("value")
        self._has_answered = True
        return value

    def _send(self, message: Any) -> None:
        if self.failure is not None:
            raise ProgramFailed(self.failure)
        try:
            self._link.send(message, MAX_CHECK_BYTES)
        except EndOfData:
            self._fail("the program ended before a call")

    def _receive(self, expected: str) -> Any:
        try:
            reply = self._link.receive()
            if not isinstance(reply, dict):
                raise NotPlainData("bytes that are not an answer")
            if expected in reply:
                return codec.decode(reply[expected])
        except EndOfData:
            self._fail("the program ended without an answer")
        except NotPlainData as error:
            self._fail(f"the program sent {error}")
        if expected == "value" and "raised" in reply:
            raise _exception(reply)
        self._fail(str(reply.get("ended", "the program sent bytes that are not an answer"))[:300])

    def _fail(self, reason: str) -> None:
        self.failure = reason
        raise ProgramFailed(reason)


def _exception(reply: dict[str, Any]) -> Exception:
    """The program's exception, as tests may expect it: a built-in exception, or a new class below the nearest one."""
    with Caught():
        first, *others = reply["raised"]
        if _is_expected(first):
            return vars(builtins)[first](*codec.decode(reply["arguments"]))
        kind = next((vars(builtins)[name] for name in others if _is_expected(name)), ProgramError)
        return type(first, (kind,), {})(reply["text"])
    return ProgramError(str(reply.get("text"))[:300])


def _is_expected(name: str) -> bool:
    """Whether it names a built-in exception that cannot cut a test short, as StopIteration does in `all(map(...))`."""
    kind = vars(builtins).get(name)
    is_exception = isinstance(kind, type) and issubclass(kind, Exception)
    return is_exception and not issubclass(kind, StopIteration | StopAsyncIteration)
