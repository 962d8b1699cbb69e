"""The tables of ledgers, logs, bookies and reports, which ``bk`` prints in a terminal and a notebook shows, and the same by the names that
scripts get. Text that comes from others is shown as text and never as markup."""
