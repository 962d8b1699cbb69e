"""Rare states that some seed must reach, or the swarm is weaker than it looks (style 1D, lesson 15)."""

from __future__ import annotations

PROBES = (
    "a bookie in limbo was asked by a recoverer",
    "a candidate was sent entries before the metadata named it",
    "a compare-and-set applied after its client heard UNKNOWN",
    "a crash took a fence mark that was not durable",
    "a guaranteed ledger was closed by a plain client",
    "a guaranteed ledger was sealed",
    "a log was truncated",
    "a metadata request never arrived",
    "a recoverer adopted an end it had not decided on",
    "a recoverer adopted another client's close",
    "a recoverer changed its private ensemble",
    "a recoverer died after a private ensemble change",
    "a recovery began at the LAFR it heard",
    "a window closed with more failures",
    "an add was acknowledged after the ledger left OPEN",
    "an ensemble came back (A, X, A)",
    "an ensemble change conflicted and the ledger was still OPEN",
    "closed with an empty last fragment",
    "the answer to an applied compare-and-set was lost",
    "three fragments",
    "three leaders served a log",
    "two bookies were replaced at once",
    "two recoverers disagree",
    "undecidable, then closed by a later run",
)
