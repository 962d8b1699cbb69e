"""A look at a whole cluster: what is wrong, and the command that helps."""
