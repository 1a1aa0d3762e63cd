"""`quire replay`: what the flight recorder has left behind, carried out again.

file.py      reads a recording
plans.py     the scheduler's core is told the same, and must make the same plans
tokens.py    a worker is given the same plans, and must give the same tokens
cut.py       plans without what came before the recording
found.py     what a replay has found
shown.py     a difference for a person
"""
