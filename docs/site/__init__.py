"""The documentation site: pages of its own, the repository's documents, and a reference that is made from the code. See README.md."""
