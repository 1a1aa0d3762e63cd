"""The flight recorder: what a scheduler was told and decided in the last minutes, kept in memory.

    snapshot.py     the state of the core as plain values, and back
    tape.py         what happens to one worker's scheduler from such a state on
    recordings.py   the directory of files that are left behind

`ops/replay` reads the files.
"""
