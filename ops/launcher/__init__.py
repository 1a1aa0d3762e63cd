"""Starts a whole deployment on one machine, keeps it running, and ends it without a trace.

`specs` says which processes there are, `child` runs one, `supervisor` keeps all of them alive,
`launch` puts them together; `record` remembers on disk what runs, for `quire status` and `down`.
"""
