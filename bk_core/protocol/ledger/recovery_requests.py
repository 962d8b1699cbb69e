"""The requests of one recovery and how its answers are read: numbers, keys and digests in one place."""

from __future__ import annotations

from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol.effects import SendRead
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.recovery_questions import Inquiry
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadLacRequest, ReadLacResponse, ReadRequest, Request, Response, WriteLacRequest


class RecoveryRequests:
    """Numbers requests across all runs of a machine, so that answers to an abandoned run find nobody (SM-3)."""

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
        """Every answer that is still to come is to be ignored."""
        self._outstanding.clear()

    def take(self, request: int) -> tuple[Inquiry, int] | None:
        """The inquiry and position that this answers. None if nobody waits for it."""
        return self._outstanding.pop(request, None)

    def _send(self, request: int, inquiry: Inquiry, position: int, message: Request) -> SendRead:
        self._outstanding[request] = (inquiry, position)
        return SendRead(request, inquiry.ensemble[position], message)

    # --- what is sent ------------------------------------------------------------------------------------------------

    def fence_read(self, inquiry: Inquiry, position: int, entry_id: int | None) -> SendRead:
        """RC-4 (``entry_id`` None: the last entry) and RC-8: with the fence flag and the key; single entries at high priority."""
        number = self.number()
        wanted = LAST_ENTRY if entry_id is None else entry_id
        message = ReadRequest(number, self.ledger_id, wanted, True, entry_id is not None, self._master_key)
        return self._send(number, inquiry, position, message)

    def plain_read(self, inquiry: Inquiry, position: int, entry_id: int) -> SendRead:
        """RC-16: of an entry that is committed for certain; a denial of it would prove nothing and is not looked at."""
        number = self.number()
        return self._send(number, inquiry, position, ReadRequest(number, self.ledger_id, entry_id))

    def read_explicit_lac(self, inquiry: Inquiry, position: int) -> SendRead:
        """G-22."""
        number = self.number()
        return self._send(number, inquiry, position, ReadLacRequest(number, self.ledger_id))

    def write_lac(self, inquiry: Inquiry, position: int, lac: int) -> SendRead:
        """RC-11a. A value below the one stored costs only freshness."""
        number = self.number()
        body = layout.encode_lac_packet(self.ledger_id, lac, self._digest_type, self._hmac_key)
        return self._send(number, inquiry, position, WriteLacRequest(number, self.ledger_id, lac, self._master_key, body))

    # --- what comes back ---------------------------------------------------------------------------------------------

    def entry(self, body: bytes | None, entry_id: int | None) -> layout.Entry | None:
        """RD-8, RC-12: the entry if the copy is the one asked for (None: any entry) and its digest fits."""
        if body is None:
            return None
        try:
            return layout.decode_body(body, self.ledger_id, entry_id, self._digest_type, self._hmac_key)
        except (DigestError, RemoteProtocolError):
            return None

    def explicit_lac(self, response: Response | None) -> int:
        """The checked explicit LAC in an answer, -1 if there is none. Bookies attach it to failures too (wire-protocol.md 8.8)."""
        if not isinstance(response, ReadLacResponse) or response.lac_body is None:
            return -1
        try:
            return layout.decode_lac_packet(response.lac_body, self.ledger_id, self._digest_type, self._hmac_key)
        except (DigestError, RemoteProtocolError):
            return -1
