"""Messages of the metadata store: ``make proto`` made the modules of ``ledger_formats.proto``."""
