"""One connection to one etcd server. Only this module knows grpc."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from bk_core.errors import ForkedClientError, MissingPackageError
from bk_core.metadata.etcd._proto import etcd_pb2 as pb
from bk_core.threads import Home

_VERBOSITY = "GRPC_VERBOSITY"
_told = os.environ.get(_VERBOSITY)
os.environ[_VERBOSITY] = _told or "NONE"  # it is read once; grpc writes every handshake that fails to stderr, and so do we, in words
try:
    import grpc
except ImportError:
    raise MissingPackageError(
        f"a metadata store in etcd needs grpcio, there is none ({sys.executable}): pip install 'bk-spark[etcd]', or pip install grpcio",
        package="grpcio",
    ) from None
finally:
    if _told is None:
        del os.environ[_VERBOSITY]

_METHODS: dict[str, tuple[str, Any, Any]] = {
    "range": ("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse),
    "txn": ("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse),
    "grant": ("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse),
    "revoke": ("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse),
    "authenticate": ("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse),
}
_WATCH = "/etcdserverpb.Watch/Watch"
_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
_NEEDS_LEADER = ("hasleader", "true")  # else a server that has lost the others keeps a stream on which nothing will come
_OPTIONS = (
    ("grpc.enable_retries", 0),  # what is repeated is decided by who knows if that does harm
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, with the certificates that are there now
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A server that has fallen silent. etcd ends connections that ask more often than every 5 s.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2500),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates and key for one server. ``authorities`` None stands for those that grpc brings along; ``name`` is the one that the
    certificate must have in place of the host's, "" for the host's."""

    authorities: bytes | None
    key: bytes | None = field(repr=False)
    chain: bytes | None
    name: str = ""


_homes: list[Home] = []


def check_fork() -> None:
    """Note that this process uses grpc. Raises ForkedClientError in a process that was forked from one that did: grpc would wait there for
    ever, for threads that a fork does not copy."""
    if not _homes:
        _homes.append(Home())
    if not _homes[0].is_here:
        raise ForkedClientError(
            "this process was forked from one that has connected to etcd, and grpc works only there: start the process by spawn or exec "
            "instead of by fork (multiprocessing: get_context('spawn')), or connect for the first time after the fork"
        )


class Failure(Exception):
    """An error that grpc tells: the name of its code, and the words of the server or of the library."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.code, self.words = code, words


class Connection:
    """A channel to one server. It is closed at the first sign of trouble, and never used again."""

    def __init__(self, address: str, pem: Pem | None) -> None:
        self.address = address
        self.token = ""
        options = [*_OPTIONS, *([("grpc.ssl_target_name_override", pem.name)] if pem is not None and pem.name else [])]
        if pem is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.chain)
            self._channel = grpc.secure_channel(address, credentials, options)
        self._calls: dict[str, Any] = {
            name: self._channel.unary_unary(path, request.SerializeToString, response.FromString)
            for name, (path, request, response) in _METHODS.items()
        }

    def _metadata(self, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return (*more, ("token", self.token)) if self.token else more

    def ask(self, method: str, request: Any, timeout_s: float, answered: Callable[[Any], None]) -> None:
        """Send a request. ``answered`` gets the response, or a Failure, on a thread of grpc's."""

        def done(call: Any) -> None:
            try:
                found = call.result(0)
            except BaseException as error:
                found = _failure(error)
            answered(found)

        try:
            self._calls[method].future(request, timeout=timeout_s, metadata=self._metadata()).add_done_callback(done)
        except Exception as error:  # a channel that was closed meanwhile
            answered(_failure(error))

    def keep_alive(self, lease: int, timeout_s: float) -> int:
        """Return the seconds that a lease has from now on, 0 if it is gone. Raises Failure."""
        call = self._channel.stream_stream(_KEEP_ALIVE, pb.LeaseKeepAliveRequest.SerializeToString, pb.LeaseKeepAliveResponse.FromString)
        try:
            for answer in call(iter([pb.LeaseKeepAliveRequest(ID=lease)]), timeout=timeout_s, metadata=self._metadata(_NEEDS_LEADER)):
                return int(answer.TTL)
        except Exception as error:
            raise _failure(error) from None
        raise Failure("UNAVAILABLE", "the stream ended without an answer")

    def watch(self, requests: SimpleQueue[Any]) -> Generator[pb.WatchResponse, None, None]:
        """Yield the events of the watches that are asked for by ``requests``, in which None ends it, as does the generator's end. Raises
        Failure."""
        call = self._channel.stream_stream(_WATCH, pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString)
        answers = None
        try:
            answers = call(iter(requests.get, None), metadata=self._metadata(_NEEDS_LEADER))
            yield from answers
        except Exception as error:
            raise _failure(error) from None
        finally:
            if answers is not None:
                answers.cancel()

    def close(self) -> None:
        """End it with all that waits on it; this may be called again."""
        with suppress(Exception):
            self._channel.close()


def _failure(error: BaseException) -> Failure:
    if isinstance(error, grpc.RpcError):
        return Failure(error.code().name, error.details() or "")
    return Failure("CANCELLED", f"{type(error).__name__}: {error}")
