"""What only some requests or deployments use: one module for each capability, which phases call by name.

    module             what it adds                            called from
    samples.py         several answers from one prompt         submit, settle
    beams.py           beam search                             submit, decode, prefill, preempt, settle
    drafts.py          speculative decoding                    decode, settle
    roll.py            texts that go on past their context     fleet, settle
    embeddings.py      texts that are read and not continued   admit, prefill, settle
    prompt_scores.py   log probabilities of prompts            prefill, settle
    partial_blocks.py  prefixes that end within a block        admit, prefill, settle, router
    whole_images.py    images that are seen as a whole         decode, prefill

A new capability has a module here and a call in each phase that it changes:

    admit      it may give a sequence more of what is cached
    decode     it may hold a sequence back, or add to its row
    prefill    it may say what the row that ends a prompt does
    preempt    it may let a sequence wait for something else before it waits for a slot
    settle     it may take in a row's result in its own way, before or instead of one sampled token

The call is behind one comparison, so that a request that does not use the capability pays nothing more. What
a group or a sequence has to remember is an attribute of it, whose class knows nothing of sequences
(`beam_round.py`, `draft_state.py`).
"""
