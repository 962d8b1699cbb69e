"""The address that a new connection takes."""

from __future__ import annotations

from bk_core.display.words import meet
from bk_core.protocol.session.addresses import AddressBook, Lookup

OLD, NEW = ("10.0.0.1", 3181), ("10.0.0.2", 3181)


def test_the_last_known_address_is_taken_while_the_store_is_silent() -> None:
    """SES-5."""
    book = AddressBook()
    assert book.look_up("b") == Lookup(None, True)
    book.learned("b", OLD)
    assert book.look_up("b") == Lookup(OLD, True)
    assert book.not_learned("b", unreachable=True) == OLD
    assert book.look_up("b") == Lookup(OLD, True)
    book.learned("b", NEW)
    assert book.look_up("b").known == NEW


def test_one_look_up_at_a_time() -> None:
    """SES-6: connections that are tried again and again do not fill the threads that wait for the store."""
    book = AddressBook()
    assert book.look_up("b").ask and not book.look_up("b").ask and book.look_up("c").ask
    assert book.not_learned("b", unreachable=True) is None
    assert book.look_up("b").ask


def test_what_the_store_does_not_know_is_forgotten() -> None:
    """SES-6."""
    book = AddressBook()
    book.learned("b", OLD)
    assert book.not_learned("b", unreachable=False) is None and book.look_up("b").known is None


def test_what_is_known_of_an_address_holds_no_more_when_another_bookie_registers_there() -> None:
    """LINK-4: the store has to say which of them came later."""
    book = AddressBook()
    book.learned("b", OLD)
    book.learned("c", NEW)
    book.taken("b", NEW)
    assert not book.is_known("c", NEW) and book.look_up("c").known is None and book.look_up("b").known == OLD
    book.learned("b", NEW)
    book.taken("b", NEW)
    assert book.is_known("b", NEW)


def test_an_answer_of_before_another_bookie_registered_there_does_not_count() -> None:
    """LINK-4: the store is asked again, once for each that comes."""
    book = AddressBook()
    assert book.look_up("b").ask
    book.taken("b", OLD)  # its own registration
    book.taken("c", NEW)
    assert not book.learned("b", NEW) and not book.look_up("b").ask and not book.is_known("b", NEW)
    assert book.learned("b", NEW) and book.is_known("b", NEW)
    assert book.look_up("b").ask
    book.taken("c", NEW)
    assert book.learned("b", OLD) and book.is_known("b", OLD)


def test_addresses_are_compared_and_not_their_spellings() -> None:
    for one, other in (
        ("::1", "0:0:0:0:0:0:0:1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("localhost", "::1"),
        ("Shelf.example.", "shelf.example"),
    ):
        assert meet((one, 1), (other, 1)) and not meet((one, 1), (other, 2)) and not meet((one, 1), ("10.0.0.9", 1))
    book = AddressBook()
    book.learned("b", ("10.0.0.1", 1))
    book.taken("c", ("::ffff:10.0.0.1", 1))
    assert book.look_up("b") == Lookup(None, True)
    book.taken("c", ("::ffff:10.0.0.1", 1))
    assert not book.learned("b", ("10.0.0.1", 1))
