"""The live page of a cluster: ``bk ui`` serves it. It reads only."""
