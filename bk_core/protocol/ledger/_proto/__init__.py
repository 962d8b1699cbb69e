"""Messages generated from ledger_formats.proto (the command stands at the top of that file)."""
