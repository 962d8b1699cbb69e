"""Makes the requests of one recovery and reads their answers: numbers, keys and digests are in one place."""

from __future__ import annotations

from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol.effects import SendRead
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.recover.questions import Inquiry
from bk_core.protocol.wire.messages import (
    LAST_ENTRY,
    ForceLedgerRequest,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    Request,
    Response,
    WriteLacRequest,
)


class RecoveryRequests:
    """Numbers the requests across all runs of a machine, so that the answers to an abandoned run match no request (SM-3)."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self._last = 0
        self._outstanding: dict[int, tuple[Inquiry, int]] = {}
        self._digest_type = 0
        self._master_key = b""
        self._hmac_key = b""

    def number(self) -> int:
        self._last += 1
        return self._last

    def use_keys(self, metadata: LedgerMetadata) -> None:
        self._digest_type = int(metadata.digest_type)
        self._master_key = digests.master_key(metadata.password)
        self._hmac_key = digests.hmac_key(metadata.password)

    def forget(self) -> None:
        """Ignore every answer that is still to come."""
        self._outstanding.clear()

    def take(self, request: int) -> tuple[Inquiry, int] | None:
        """Return the inquiry and position that this answers, or None if no request waits for it."""
        return self._outstanding.pop(request, None)

    def _send(self, request: int, inquiry: Inquiry, position: int, message: Request) -> SendRead:
        self._outstanding[request] = (inquiry, position)
        return SendRead(request, inquiry.ensemble[position], message)

    # --- what is sent ------------------------------------------------------------------------------------------------

    def fence_read(self, inquiry: Inquiry, position: int, entry_id: int | None) -> SendRead:
        """Return a read with the fence flag and the key: of the last entry if ``entry_id`` is None (RC-4), else of one entry at high
        priority (RC-8)."""
        number = self.number()
        wanted = LAST_ENTRY if entry_id is None else entry_id
        message = ReadRequest(number, self.ledger_id, wanted, True, entry_id is not None, self._master_key)
        return self._send(number, inquiry, position, message)

    def plain_read(self, inquiry: Inquiry, position: int, entry_id: int) -> SendRead:
        """Return a read of an entry that is committed for certain. A denial of it would prove nothing and is ignored (RC-16)."""
        number = self.number()
        return self._send(number, inquiry, position, ReadRequest(number, self.ledger_id, entry_id))

    def read_explicit_lac(self, inquiry: Inquiry, position: int) -> SendRead:
        """Return a request for the explicit LAC (G-22)."""
        number = self.number()
        return self._send(number, inquiry, position, ReadLacRequest(number, self.ledger_id))

    def write_lac(self, inquiry: Inquiry, position: int, lac: int) -> SendRead:
        """Return a request to store a LAC (RC-11a). A value below the stored one costs only freshness."""
        number = self.number()
        body = layout.encode_lac_packet(self.ledger_id, lac, self._digest_type, self._hmac_key)
        return self._send(number, inquiry, position, WriteLacRequest(number, self.ledger_id, lac, self._master_key, body))

    def force(self, inquiry: Inquiry, position: int) -> SendRead:
        """Return a request to sync the journal, which read-only bookies take, too (RC-11a)."""
        number = self.number()
        return self._send(number, inquiry, position, ForceLedgerRequest(number, self.ledger_id))

    # --- answers ------------------------------------------------------------------------------------------------------

    def entry(self, body: bytes | None, entry_id: int | None) -> layout.Entry | None:
        """Return the entry if the copy is the one asked for (None: any entry) and its digest fits (RD-8, RC-12)."""
        if body is None:
            return None
        try:
            return layout.decode_body(body, self.ledger_id, entry_id, self._digest_type, self._hmac_key)
        except (DigestError, RemoteProtocolError):
            return None

    def explicit_lac(self, response: Response | None) -> int:
        """Return the checked explicit LAC in an answer, or -1. Bookies attach it to failures too (wire-protocol.md 8.8)."""
        if not isinstance(response, ReadLacResponse) or response.lac_body is None:
            return -1
        try:
            return layout.decode_lac_packet(response.lac_body, self.ledger_id, self._digest_type, self._hmac_key)
        except (DigestError, RemoteProtocolError):
            return -1
