"""What a scheduler shows of itself: who looks inside sees blocks, sequences and steps change.

service.py          the servicer of `quire.Inside`
lookout.py          all workers of the scheduler, for one who watches
worker_changes.py   what has changed of one worker since the last look
"""
