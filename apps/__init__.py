"""The command line: one file per command, on top of edgert's public API only."""
