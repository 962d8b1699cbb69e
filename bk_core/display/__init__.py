"""The tables of ledgers, logs, bookies and reports, which ``bk`` prints in a terminal and a notebook shows. Text that comes from others is
shown as text and never as markup."""
