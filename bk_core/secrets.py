"""Secrets that are read when they are needed: from a file, from a variable of the environment, or from a function of the program."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from bk_core.errors import ArgumentTypeError, BkError, SecretUnavailableError

Secret: TypeAlias = str | bytes | Callable[[], str | bytes]
"""A secret itself, or a function without arguments that returns it, such as a SecretFile."""
SECRET_MAX = 65_536  # bytes; nobody's password is longer, and a wrong path may name a large file


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A secret in a file, without the line break at its end. It is read anew each time that it is needed, so a new one needs no restart.

    Pickles of it hold the path alone: the file is read in the process that needs the secret.

    >>> bk_core.ZooKeeperAuth("sasl", "flights", SecretFile("/run/secrets/zookeeper"))
    """

    path: str
    """The path of the file, in each process that needs the secret."""

    def __call__(self) -> bytes:
        """Return the secret. Raises SecretUnavailableError for a file that cannot be read, that is empty or that is too long."""
        try:
            with open(self.path, "rb") as file:
                found = file.read(SECRET_MAX + 1)
        except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SecretUnavailableError(f"the secret file {self.path!r} cannot be read: {reason}") from None
        if len(found) > SECRET_MAX:
            raise SecretUnavailableError(f"the secret file {self.path!r} has more than {SECRET_MAX} bytes: this is no secret")
        found = found.removesuffix(b"\n").removesuffix(b"\r")
        if not found:
            raise SecretUnavailableError(f"the secret file {self.path!r} is empty")
        return found


@dataclass(frozen=True, slots=True)
class SecretVariable:
    """A secret in a variable of the environment, of each process that needs it. Pickles of it hold the name alone."""

    name: str
    """The name of the variable."""

    def __call__(self) -> bytes:
        """Return the secret. Raises SecretUnavailableError for a variable that is empty or not set."""
        found = os.environ.get(self.name)
        if not found:
            raise SecretUnavailableError(f"the variable {self.name}, which is to hold a secret, is not set or empty")
        return found.encode()


def check_secret(name: str, secret: object) -> None:
    """Raise ArgumentTypeError for what is no secret. ``name`` is that of the argument; its value is never shown."""
    if not isinstance(secret, str | bytes) and not callable(secret):
        raise ArgumentTypeError(f"{name} must be text, bytes or a function that returns one, not of type {type(secret).__name__}")


def revealed(name: str, secret: Secret) -> bytes:
    """Return a secret as bytes, calling the function that it may be. ``name`` says whose it is, for errors. Raises ArgumentTypeError for
    what is no secret, and SecretUnavailableError where the function fails: its own errors of this project as they are, of any other
    exception the class alone, because its words may hold the secret."""
    check_secret(name, secret)
    found = _returned(name, secret) if callable(secret) else secret
    if not isinstance(found, str | bytes):
        raise ArgumentTypeError(f"the function of {name} must return text or bytes, not {type(found).__name__}")
    if isinstance(found, bytes):
        return found
    try:
        return found.encode()
    except UnicodeEncodeError:
        pass  # the error holds the text
    raise SecretUnavailableError(f"{name} is no text: it holds halves of characters (surrogates)")


def _returned(name: str, function: Callable[[], str | bytes]) -> str | bytes:
    """Return what the function of a program returns. What it raises is left behind here: no log, no pickle and no message gets it."""
    try:
        return function()
    except BkError:
        raise
    except BaseException as error:  # SystemExit and its like would end a thread that others wait for
        if is_interrupt(error):
            raise
        kind = type(error).__name__
    raise SecretUnavailableError(f"the function of {name} failed ({kind})")


def is_interrupt(error: BaseException) -> bool:
    """Return True for Ctrl-C, which only the main thread gets; anywhere else a program's own function raised it."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def told_of(error: BaseException, what: str) -> str:
    """Return the text of an error for messages: the words of an error of this project, and of any other that ``what`` failed and the class
    alone, because the words of a program's own may hold a secret."""
    own = isinstance(error, BkError) and error.args
    return str(error.args[0]) if own else f"{what} failed ({type(error).__name__})"


def is_another(name: str, secret: Secret, shown: bytes) -> bool:
    """Return True if the function ``secret`` now returns another secret than ``shown``, which was refused. False for a secret that is no
    function, and if the function fails."""
    try:
        return callable(secret) and revealed(name, secret) != shown
    except BkError:
        return False


def text_of(name: str, secret: Secret) -> str:
    """Return a secret as text, for what takes no bytes. Raises what ``revealed`` does, and SecretUnavailableError for bytes that are not
    UTF-8, which the message does not show."""
    try:
        return revealed(name, secret).decode()
    except UnicodeDecodeError:
        pass  # the error holds the bytes
    where = f" ({secret})" if isinstance(secret, SecretFile | SecretVariable) else ""
    raise SecretUnavailableError(f"{name}{where} is not UTF-8 text, and nothing else is taken here")
