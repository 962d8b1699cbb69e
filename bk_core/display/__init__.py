"""The tables of a cluster's things, which ``bk`` prints in a terminal and a notebook shows. No text of others gets past it as markup."""
