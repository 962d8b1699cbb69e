"""The names that clients and bookies have for the ways to authenticate (wire-protocol.md 10.3, 10.4)."""

from __future__ import annotations

SASL = "sasl"
"""The name of Apache's provider for SASL, whatever its mechanism is."""
BY_ROLE = "BookieAuthZFactory"
"""The name of the provider that authorizes by role, which stands in the certificate."""
SERVICE = "bookkeeper"
"""The first part of the principal of a bookie, as Apache has it by default; with DIGEST-MD5 the realm and both parts of the address that a
response is for."""
