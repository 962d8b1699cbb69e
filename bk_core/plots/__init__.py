"""Pictures of ledgers, logs and recoveries, by matplotlib, which is imported when the first one is drawn."""
