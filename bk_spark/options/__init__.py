"""The options of the data source: their table, their grammar and help about them."""
