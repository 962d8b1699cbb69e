"""The password and the digest type that open a ledger, as its metadata stores them or as the caller names them."""

from __future__ import annotations

from bk_core.errors import InvalidArgumentError, WrongDigestTypeError, WrongPasswordError
from bk_core.protocol.ledger.metadata import DigestType, LedgerAccess, LedgerMetadata


def digest_type_of(value: DigestType | str) -> DigestType:
    if isinstance(value, DigestType):
        return value
    names = {**DigestType.__members__, "HMAC": DigestType.MAC}
    try:
        return names[value.upper()]
    except (KeyError, AttributeError):
        raise InvalidArgumentError(f"digest_type must be one of {', '.join(DigestType.__members__)}, not {value!r}") from None


def granted(ledger_id: int, metadata: LedgerMetadata, password: bytes, digest_type: DigestType | str | None) -> LedgerMetadata:
    """Return the metadata, completed by what the caller gives where the store has nothing (META-15). Raises WrongPasswordError and
    WrongDigestTypeError for what is stored otherwise, before any bookie is asked (OP-1)."""
    given = LedgerAccess(None if digest_type is None else digest_type_of(digest_type), password)
    if metadata.stores_password and metadata.password != given.password:
        raise WrongPasswordError(_wrong_password(ledger_id, metadata.password, password), ledger=ledger_id)
    if metadata.has_digest and given.digest_type not in (None, metadata.digest_type):
        raise WrongDigestTypeError(
            f"ledger {ledger_id} has digest type {metadata.digest_type.name}, not {given.digest_type.name}", ledger=ledger_id
        )
    return metadata.with_access(given)


def _wrong_password(ledger_id: int, wanted: bytes, given: bytes) -> str:
    if not given:
        return f"ledger {ledger_id} was created with a password and none was given: {WrongPasswordError.given_by}"
    if not wanted:
        return f"ledger {ledger_id} was created without a password, but one was given: leave it out ({WrongPasswordError.given_by})"
    return f"the password given for ledger {ledger_id} is not the one it was created with: {WrongPasswordError.given_by}"
